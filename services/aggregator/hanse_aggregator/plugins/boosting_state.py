"""What FedSCS-XGB's aggregator carries from phase to phase: of constant size, whatever the number of rounds.

Trees are artifacts of their own; their digests travel in the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.bin_edges import BinEdges
from hanse.learning.growth import Growth
from hanse.learning.trees import LEAF, Forest, Tree
from hanse.payload import Payload
from hanse.payload.histograms import narrow
from hanse.payload.kinds import document_payload, prefixed, read_document, read_text_array, text_array, unprefixed

STATE = "fedscs_xgb.state"
_EDGES = "edges."
_GROWTH = "growth."
_TREE = ("left", "right", "feature", "threshold", "default_left", "value", "gain")
_GROWING = ("wanted", "siblings", "parents", "totals", "occupied", "columns")


@dataclass(frozen=True, kw_only=True, eq=False)
class BoostingState:
    """The edges in force, the importance of the features so far, and what a round has reached.

    `gains` float64 [F]: summed loss reductions; `splits` int64 [F]: how often a feature was split. `growths` are the
    unfinished trees of a round by histograms, one an output; `cohort` the nodes that have answered at every level of
    them, and `left_out` those that fell away in this round (their sums would not add up to the levels before).
    `best_round` (from 1, over all jobs; 0: none yet) had the least pooled validation loss so far, `best_loss`.
    """

    edges: tuple[BinEdges, ...]
    gains: NDArray[np.float64]
    splits: NDArray[np.int64]
    growths: tuple[Growth, ...] = ()
    cohort: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    best_round: int = 0
    best_loss: float = 0.0
    model: bytes = b""
    """The digest of the finished model, once it is made."""

    @classmethod
    def fresh(cls, features: int) -> BoostingState:
        """Before the first round."""
        return cls(edges=(), gains=np.zeros(features), splits=np.zeros(features, dtype=np.int64))

    def with_trees(self, forest: Forest) -> BoostingState:
        """With the splits of further trees counted, tree by tree in their order."""
        gains, splits = self.gains.copy(), self.splits.copy()
        for tree in forest.trees:
            split = tree.left != LEAF
            np.add.at(gains, tree.feature[split], tree.gain[split].astype(np.float64))
            np.add.at(splits, tree.feature[split], 1)
        return replace(self, gains=gains, splits=splits, growths=(), cohort=(), left_out=())

    def to_payload(self) -> Payload:
        """The state as a payload."""
        arrays: dict[str, NDArray[Any]] = {"gains": self.gains, "splits": self.splits}
        if self.edges:
            sets = prefixed([each.arrays() for each in self.edges])
            arrays |= {_EDGES + name: array for name, array in sets.items()}
        if self.growths:
            arrays |= {"cohort": text_array(self.cohort), "left_out": text_array(self.left_out)}
            for k, growth in enumerate(self.growths):
                arrays |= {f"{_GROWTH}{k}.{name}": array for name, array in _arrays_of(growth).items()}
        document = {
            "edge_sets": len(self.edges),
            "depths": [growth.depth for growth in self.growths],
            "best_round": self.best_round,
            "best_loss": self.best_loss,
            "model": self.model.hex(),
        }
        return document_payload(STATE, document, arrays)

    @classmethod
    def from_payload(cls, payload: Payload | None, *, features: int) -> BoostingState:
        """The inverse of `to_payload`; a fresh state when there is none.

        Raises:
            InvalidPayload: a state of something else.
        """
        if payload is None:
            return cls.fresh(features)
        document = read_document(payload, STATE)
        sets, depths = document.get("edge_sets"), document.get("depths")
        gains, splits = payload.arrays.get("gains"), payload.arrays.get("splits")
        if not isinstance(sets, int) or not isinstance(depths, list) or gains is None or splits is None:
            raise InvalidPayload("the aggregation state is not one of this method.")
        if gains.shape != (features,):
            raise InvalidPayload(f"the aggregation state is not one of {features} features.")
        arrays = {name[len(_EDGES) :]: array for name, array in payload.arrays.items() if name.startswith(_EDGES)}
        edges = tuple(BinEdges.from_arrays(unprefixed(arrays, k, sets)) for k in range(sets))
        return cls(
            edges=edges,
            gains=gains,
            splits=splits,
            growths=tuple(_growth_of(payload, k, int(depth)) for k, depth in enumerate(depths)),
            cohort=read_text_array(payload, "cohort") if depths else (),
            left_out=read_text_array(payload, "left_out") if depths else (),
            best_round=int(document["best_round"]),
            best_loss=float(document["best_loss"]),
            model=bytes.fromhex(document["model"]),
        )


def _arrays_of(growth: Growth) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {name: getattr(growth.tree, name) for name in _TREE}
    arrays |= {name: getattr(growth, name) for name in _GROWING}
    return arrays | {"parents": narrow(growth.parents)}


def _growth_of(payload: Payload, k: int, depth: int) -> Growth:
    try:
        arrays = {name: payload.arrays[f"{_GROWTH}{k}.{name}"] for name in (*_TREE, *_GROWING)}
    except KeyError as error:
        raise InvalidPayload(f"the aggregation state lacks the array {error}.") from error
    growing = {name: arrays[name] for name in _GROWING} | {"parents": arrays["parents"].astype(np.int64)}
    return Growth(tree=Tree(**{name: arrays[name] for name in _TREE}), depth=depth, **growing)


class _Mergeable(Protocol):
    def __len__(self) -> int: ...

    def merge(self, other: Any, /) -> Any: ...


Item = TypeVar("Item", bound=_Mergeable)


class MergingStack(Generic[Item]):
    """Merges items as they arrive, like with like in size, so that all of it costs little more than one sort.

    Merging is exact and without order, so the total is the same whatever the order of arrival.
    """

    def __init__(self) -> None:
        self._items: list[Item] = []

    def push(self, item: Item) -> None:
        """Add an item; merge while the last one has outgrown the one before."""
        self._items.append(item)
        while len(self._items) > 1 and len(self._items[-1]) * 2 > len(self._items[-2]):
            self._collapse()

    def total(self) -> Item | None:
        """All items merged; None when there was none."""
        while len(self._items) > 1:
            self._collapse()
        return self._items[0] if self._items else None

    def _collapse(self) -> None:
        last = self._items.pop()
        self._items[-1] = self._items[-1].merge(last)


def totals(stacks: Sequence[MergingStack[Item]]) -> list[Item]:
    """The total of each stack that holds something."""
    return [total for stack in stacks if (total := stack.total()) is not None]
