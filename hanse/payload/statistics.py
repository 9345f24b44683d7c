"""Bin edges, atoms and trees as payloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import Grid
from hanse.learning.trees import Forest
from hanse.payload.histograms import narrow
from hanse.payload.payload import Payload
from hanse.v1 import payload_pb2

# No array of a contribution may add up to more, so that a thousand nodes stay within 64 bits.
MAX_TOTAL = 2.0**52
_SUMS = ("weight", "gradient", "hessian")
_COUNTS = "counts"


def edges_payload(edges: Sequence[BinEdges]) -> Payload:
    """Edges as a `BinEdges` payload: one set for all outputs, or one per output (arrays `0.offsets`, …)."""
    return Payload.build(
        payload_pb2.BinEdges(features=edges[0].features, outputs=len(edges)),
        prefixed([each.arrays() for each in edges]),
    )


def read_edges(payload: Payload, *, features: int, outputs: int) -> tuple[BinEdges, ...]:
    """The inverse of `edges_payload`.

    Raises:
        InvalidPayload: another kind or shape, or cuts that do not ascend, are not finite or do not end at the
            largest float32.
    """
    _expect(payload, "bin_edges")
    kind = payload.header.bin_edges
    if (kind.features, kind.outputs) != (features, outputs):
        raise InvalidPayload(
            f"there are edges of {kind.features} features and {kind.outputs} outputs, not of {features} and {outputs}."
        )
    edges = tuple(BinEdges.from_arrays(unprefixed(payload.arrays, k, outputs)) for k in range(outputs))
    if any(each.features != features for each in edges):
        raise InvalidPayload(f"the edges are not those of {features} features.")
    return edges


@dataclass(frozen=True, kw_only=True)
class AtomCounts:
    """How close to single records a node's atoms are, as the node has counted. Numbers are those of its worst set.

    `small` counts atoms of fewer rows than the site's policy asks for, before it has coarsened them by `coarsened`
    (1: not at all); `single` counts atoms of one row among those that are sent.
    """

    rows: int
    single: int
    small: int = 0
    found: int = 0
    """Atoms before coarsening; `small` of them were too small."""
    coarsened: int = 1


def atoms_payload(atoms: Sequence[Atoms], counts: AtomCounts, grid: Grid) -> Payload:
    """Atoms as an `AtomStatistics` payload: one set with the sums of all outputs, or one set per output.

    Sums travel as int32 where all of an array fit.
    """
    arrays = [each.arrays() for each in atoms]
    for each in arrays:
        for name in _SUMS:
            each[name] = narrow(each[name])
    told = [counts.single, counts.small, counts.found, counts.coarsened]
    kind = payload_pb2.AtomStatistics(
        features=atoms[0].ids.shape[1],
        outputs=sum(each.gradient.shape[1] for each in atoms),
        rows=counts.rows,
        fraction_bits=-grid.hessian,
    )
    return Payload.build(kind, prefixed(arrays) | {_COUNTS: np.array(told, dtype=np.int64)})


def read_atoms(
    payload: Payload, *, edges: Sequence[BinEdges], outputs: int, grid: Grid
) -> tuple[tuple[Atoms, ...], AtomCounts]:
    """The inverse of `atoms_payload`: atoms (as many sets as there are sets of edges), and what was counted.

    Raises:
        InvalidPayload: another kind, shape or grid, or sums too large.
        RejectedContribution: bins that do not exist, weights or hessians that are not positive.
    """
    _expect(payload, "atom_statistics")
    kind = payload.header.atom_statistics
    if (kind.features, kind.outputs) != (edges[0].features, outputs):
        raise InvalidPayload(
            f"there are atoms over {kind.features} features with {kind.outputs} outputs, "
            f"not over {edges[0].features} with {outputs}."
        )
    if kind.fraction_bits != -grid.hessian:
        raise InvalidPayload(f"the atoms have {kind.fraction_bits} fraction bits, not {-grid.hessian}.")
    told = payload.arrays.get(_COUNTS)
    if told is None or told.dtype != np.int64 or told.shape != (4,) or int(told.min()) < 0:
        raise InvalidPayload(f"the array '{_COUNTS}' is missing or not four numbers.")
    sets = []
    for k, own in enumerate(edges):
        arrays = unprefixed(payload.arrays, k, len(edges))
        for name in _SUMS:
            if name in arrays:
                arrays[name] = _wide(name, arrays[name])
        sets.append(Atoms.from_arrays(arrays, edges=own, outputs=outputs if len(edges) == 1 else 1))
    single, small, found, coarsened = (int(number) for number in told)
    counts = AtomCounts(rows=int(kind.rows), single=single, small=small, found=found, coarsened=coarsened)
    sent = max(len(each) for each in sets)
    if not sent <= counts.rows < 2**40 or max(single, found) > counts.rows or (counts.rows > 0) != (sent > 0):
        raise InvalidPayload(f"the atoms claim {counts.rows} rows, {found} atoms and {single} atoms of one row.")
    if small > found:
        raise InvalidPayload(f"the atoms claim {small} small ones among {found}.")
    return tuple(sets), counts


def trees_payload(forest: Forest, *, round_number: int) -> Payload:
    """The trees of one boosting round (counted from 1) as a `TreeUpdate` payload."""
    kind = payload_pb2.TreeUpdate(round=round_number, trees=len(forest))
    return Payload.build(kind, forest.arrays())


def read_trees(payload: Payload, *, features: int, outputs: int) -> Forest:
    """The inverse of `trees_payload`.

    Raises:
        InvalidPayload: another kind, or a tree that is not sound: children before parents, a feature that does not
            exist, a number that is not finite.
    """
    _expect(payload, "tree_update")
    forest = Forest.from_arrays(payload.arrays, features=features, outputs=outputs)
    if len(forest) != payload.header.tree_update.trees:
        raise InvalidPayload(
            f"the header claims {payload.header.tree_update.trees} trees, but there are {len(forest)}."
        )
    return forest


def prefixed(sets: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Several sets of arrays under one another: `0.name`, `1.name` …; a single set keeps its names."""
    if len(sets) == 1:
        return dict(sets[0])
    return {f"{k}.{name}": array for k, each in enumerate(sets) for name, array in each.items()}


def unprefixed(arrays: Any, k: int, sets: int) -> dict[str, NDArray[Any]]:
    """The arrays of set `k`; the inverse of `prefixed`."""
    if sets == 1:
        return dict(arrays)
    start = f"{k}."
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def _expect(payload: Payload, kind: str) -> None:
    if payload.kind != kind:
        raise InvalidPayload(f"a payload of kind '{kind}' was expected, not '{payload.kind}'.")


def _wide(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype not in (np.int32, np.int64):
        raise InvalidPayload(f"the atom array '{name}' is {values.dtype}, not int32 or int64.")
    if float(np.abs(values.astype(np.float64)).sum()) > MAX_TOTAL:
        raise InvalidPayload(f"the atom array '{name}' adds up to more than 2^52 units.")
    return values.astype(np.int64)
