"""What FedSCS-XGB's aggregator carries from phase to phase: of constant size, whatever the number of rounds.

Trees are artifacts of their own; their digests travel in the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.bin_edges import BinEdges
from hanse.learning.trees import LEAF, Forest
from hanse.payload import Payload
from hanse.payload.kinds import document_payload, prefixed, read_document, unprefixed

STATE = "fedscs_xgb.state"
_EDGES = "edges."


@dataclass(frozen=True, kw_only=True, eq=False)
class BoostingState:
    """The edges in force, and the importance of the features so far.

    `gains` float64 [F]: summed loss reductions; `splits` int64 [F]: how often a feature was split.
    """

    edges: tuple[BinEdges, ...]
    gains: NDArray[np.float64]
    splits: NDArray[np.int64]

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
        return BoostingState(edges=self.edges, gains=gains, splits=splits)

    def to_payload(self) -> Payload:
        """The state as a payload."""
        arrays: dict[str, NDArray[Any]] = {"gains": self.gains, "splits": self.splits}
        if self.edges:
            sets = prefixed([each.arrays() for each in self.edges])
            arrays |= {_EDGES + name: array for name, array in sets.items()}
        return document_payload(STATE, {"edge_sets": len(self.edges)}, arrays)

    @classmethod
    def from_payload(cls, payload: Payload | None, *, features: int) -> BoostingState:
        """The inverse of `to_payload`; a fresh state when there is none.

        Raises:
            InvalidPayload: a state of something else.
        """
        if payload is None:
            return cls.fresh(features)
        sets = read_document(payload, STATE).get("edge_sets")
        gains, splits = payload.arrays.get("gains"), payload.arrays.get("splits")
        if not isinstance(sets, int) or gains is None or splits is None or gains.shape != (features,):
            raise InvalidPayload(f"the aggregation state is not one of {features} features.")
        arrays = {name[len(_EDGES) :]: array for name, array in payload.arrays.items() if name.startswith(_EDGES)}
        edges = tuple(BinEdges.from_arrays(unprefixed(arrays, k, sets)) for k in range(sets))
        return cls(edges=edges, gains=gains, splits=splits)


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
