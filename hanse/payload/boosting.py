"""What the two halves of FedSCS-XGB say to each other.

An instruction is complete: a node that has missed any number of rounds finds in it everything that it needs
(schema, base margins, centres, units) and the digests of all trees in order of round. The newest trees also ride
along, so that a node that has missed nothing fetches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hanse.errors import InvalidPayload
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import Grid
from hanse.learning.parameters import BoostingParameters
from hanse.learning.trees import LEAF, Forest
from hanse.payload.documents import document_payload, read_document, read_text_array, text_array
from hanse.payload.payload import Payload
from hanse.payload.statistics import prefixed, trees_payload, unprefixed

INSTRUCTION = "fedscs_xgb.instruction"
SETUP = "fedscs_xgb.setup"
DISTINCT = "fedscs_xgb.distinct"
DELIVERY = "fedscs_xgb.delivery"
DELIVERED = "fedscs_xgb.delivered"
MODEL = "xgboost.booster"
_TREES = "trees."
_EDGES = "edges."
_FRONTIER = "frontier."
_WANTED = "wanted"
_WANTED_COUNTS = "wanted_counts"


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns that a model is about, in order, and the names of the classes (when they have names)."""

    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the preparation has fixed for the whole job.

    `base_margins` float32 [K], `centres` float64 [F].
    """

    base_margins: NDArray[np.float32]
    centres: NDArray[np.float64]
    grid: Grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Frontier:
    """Where the trees of a round stand: `trees` holds one unfinished tree an output, whose open nodes are leaves;
    `wanted` int32 [R] an output: the nodes whose histograms are asked for (none where a tree is finished)."""

    trees: Forest
    wanted: tuple[NDArray[np.int32], ...]


@dataclass(frozen=True, kw_only=True)
class BoostingInstruction:
    """An instruction of any phase.

    `setup` is None in the preparation alone, whose `schema` may be empty (then the nodes' own is compared).
    `grown` lists the digests of the tree artifacts of all rounds so far; `newest` holds the trees of the last one.
    `edges` come with the phases `atoms` and `histogram`: one set, or one per output; `frontier` with `histogram`.
    `earlier` counts the rounds of the model that the job continues from, whose trees are the first of `grown`.
    """

    parameters: BoostingParameters
    schema: Schema = Schema()
    select: bool = False
    """Whether the job names its columns: nodes then pick them by name, whatever else they have."""
    setup: Setup | None = None
    grown: tuple[bytes, ...] = ()
    newest: Forest | None = None
    edges: tuple[BinEdges, ...] = ()
    frontier: Frontier | None = None
    earlier: int = 0

    @property
    def rounds(self) -> int:
        """Boosting rounds so far, those of the earlier model among them."""
        return len(self.grown) + (self.earlier - 1 if self.earlier else 0)

    def boosting_round(self, round_number: int) -> int:
        """The number from 0, over all jobs, of the job's round `round_number` (from 1): what draws depend on."""
        return self.earlier + round_number - 1

    def to_payload(self) -> Payload:
        """The instruction as a payload."""
        document: dict[str, Any] = {
            "parameters": self.parameters.model_dump(by_alias=True),
            "select": self.select,
            "edge_sets": len(self.edges),
            "earlier": self.earlier,
        }
        arrays: dict[str, NDArray[Any]] = {
            "features": text_array(self.schema.features),
            "classes": text_array(self.schema.classes),
        }
        if self.setup is not None:
            document["grid"] = {"gradient": self.setup.grid.gradient, "hessian": self.setup.grid.hessian}
            arrays |= {"base_margins": self.setup.base_margins, "centres": self.setup.centres}
        if self.newest is not None:
            arrays |= {_TREES + name: array for name, array in self.newest.arrays().items()}
        if self.edges:
            sets = prefixed([each.arrays() for each in self.edges])
            arrays |= {_EDGES + name: array for name, array in sets.items()}
        if self.frontier is not None:
            arrays |= {_FRONTIER + name: array for name, array in self.frontier.trees.arrays().items()}
            arrays[_WANTED] = np.concatenate(self.frontier.wanted).astype(np.int32)
            arrays[_WANTED_COUNTS] = np.array([len(each) for each in self.frontier.wanted], dtype=np.int32)
        return document_payload(INSTRUCTION, document, arrays, references=self.grown)

    @classmethod
    def from_payload(cls, payload: Payload) -> BoostingInstruction:
        """The inverse of `to_payload`.

        Raises:
            InvalidPayload: anything that does not fit together; newest trees that are not those of the last digest.
        """
        document = read_document(payload, INSTRUCTION)
        try:
            parameters = _parameters(json.dumps(document["parameters"], sort_keys=True))
            grid = Grid(**document["grid"]) if "grid" in document else None
            sets, select, earlier = int(document["edge_sets"]), bool(document["select"]), int(document["earlier"])
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            raise InvalidPayload(f"the instruction cannot be read: {' '.join(str(error).split())[:200]}") from error
        schema = Schema(features=read_text_array(payload, "features"), classes=read_text_array(payload, "classes"))
        features, outputs = len(schema.features), parameters.outputs
        if sets not in (0, 1, outputs):
            raise InvalidPayload(f"the instruction has {sets} sets of edges for {outputs} outputs.")
        setup = None
        if grid is not None:
            setup = Setup(
                base_margins=_array(payload, "base_margins", np.float32, (outputs,)),
                centres=_array(payload, "centres", np.float64, (features,)),
                grid=grid,
            )
        edge_arrays = _starting(payload, _EDGES)
        edges = tuple(BinEdges.from_arrays(unprefixed(edge_arrays, k, sets)) for k in range(sets))
        if any(each.features != features for each in edges):
            raise InvalidPayload(f"the edges of the instruction are not those of {features} features.")
        tree_arrays = _starting(payload, _TREES)
        newest = Forest.from_arrays(tree_arrays, features=features, outputs=outputs) if tree_arrays else None
        if newest is not None:
            grown = payload.references
            number = len(grown) - (1 if earlier else 0)
            if not grown or trees_payload(newest, round_number=number).digest != grown[-1]:
                raise InvalidPayload("the newest trees of the instruction are not those of its last reference.")
        return cls(
            parameters=parameters,
            schema=schema,
            select=select,
            setup=setup,
            grown=payload.references,
            newest=newest,
            edges=edges,
            frontier=_read_frontier(payload, features=features, outputs=outputs),
            earlier=earlier,
        )


@lru_cache(maxsize=64)
def _parameters(text: str) -> BoostingParameters:
    """The parameters of a job are the same in every instruction."""
    return BoostingParameters.model_validate_json(text)


def _read_frontier(payload: Payload, *, features: int, outputs: int) -> Frontier | None:
    arrays = _starting(payload, _FRONTIER)
    if not arrays:
        return None
    trees = Forest.from_arrays(arrays, features=features, outputs=outputs)
    counts = _array(payload, _WANTED_COUNTS, np.int32, (outputs,))
    if np.any(counts < 0) or not np.array_equal(trees.outputs, np.arange(outputs)):
        raise InvalidPayload("the instruction's unfinished trees are not one an output.")
    wanted = _array(payload, _WANTED, np.int32, (int(counts.sum()),))
    parts = tuple(np.split(wanted, np.cumsum(counts)[:-1]))
    for tree, nodes in zip(trees.trees, parts, strict=True):
        if np.any(nodes < 0) or np.any(nodes >= len(tree)) or np.any(tree.left[nodes] != LEAF):
            raise InvalidPayload("the instruction asks for a tree node that is not open.")
        if len(np.unique(nodes)) != len(nodes):
            raise InvalidPayload("the instruction asks for a tree node twice.")
    return Frontier(trees=trees, wanted=parts)


def delivery_payload(model: bytes) -> Payload:
    """The instruction of the phase `deliver`: the digest of the finished model, an artifact."""
    return document_payload(DELIVERY, {}, references=(model,))


def read_delivery(payload: Payload) -> bytes:
    """The inverse of `delivery_payload`.

    Raises:
        InvalidPayload: another kind, or not one reference.
    """
    read_document(payload, DELIVERY)
    if len(payload.references) != 1:
        raise InvalidPayload("the delivery does not refer to one model.")
    return payload.references[0]


def distinct_payload(values: Sequence[NDArray[np.float32]]) -> Payload:
    """All distinct values of each feature (`bin_source: exact`)."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in values])]).astype(np.int64)
    joined = np.concatenate([*values, np.zeros(0, np.float32)]).astype(np.float32)
    return document_payload(DISTINCT, {}, {"offsets": offsets, "values": joined})


def read_distinct(payload: Payload, *, features: int) -> list[NDArray[np.float32]]:
    """The inverse of `distinct_payload`.

    Raises:
        InvalidPayload: values that are not finite, or offsets that do not enclose them.
    """
    read_document(payload, DISTINCT)
    offsets = _array(payload, "offsets", np.int64, (features + 1,))
    values = payload.arrays.get("values")
    if values is None or values.dtype != np.float32 or values.ndim != 1 or not np.all(np.isfinite(values)):
        raise InvalidPayload("the array 'values' is missing or not one of finite float32 numbers.")
    if offsets[0] != 0 or offsets[-1] != len(values) or np.any(np.diff(offsets) < 0):
        raise InvalidPayload("the offsets of the distinct values do not enclose them.")
    return [values[begin:end] for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def _array(payload: Payload, name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    array = payload.arrays.get(name)
    if array is None or array.dtype != dtype or array.shape != shape:
        raise InvalidPayload(f"the array '{name}' is missing, or not {np.dtype(dtype)} of shape {shape}.")
    if not np.all(np.isfinite(array)):
        raise InvalidPayload(f"the array '{name}' holds a number that is not finite.")
    return array


def _starting(payload: Payload, prefix: str) -> dict[str, NDArray[Any]]:
    return {name[len(prefix) :]: array for name, array in payload.arrays.items() if name.startswith(prefix)}
