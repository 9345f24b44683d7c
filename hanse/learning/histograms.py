"""Histograms: per open tree node, feature and bin, the sums of gradients and hessians of a node's rows.

Histograms have a dense, fixed shape, so nodes' histograms may be summed under a mask, and nothing smaller than
a bin of a tree node leaves a site. They hold the same numbers as atoms summed over all other features, hence
they give the same trees, at the price of one exchange per level of the tree. Of two siblings only the one with
the smaller hessian sum is asked for; integer subtraction from the parent gives the other exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hanse.errors import RejectedContribution
from hanse.learning.arrays import Int32, Int64
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import add, bincount_halves, exact_halves


@dataclass(frozen=True, eq=False)
class Histograms:
    """Sums for `R` tree nodes of one tree.

    `sums` int64 [R, 2, total bins]: gradients, then hessians, of all features one after the other, in the
    order of `BinEdges.cuts`; missing values are in no bin. `totals` int64 [R, 2]: the same sums over all rows.
    """

    sums: Int64
    totals: Int64

    def __add__(self, other: Histograms) -> Histograms:
        return Histograms(
            add(self.sums, other.sums, name="histogram sums"),
            add(self.totals, other.totals, name="histogram totals"),
        )

    def take(self, other: Histograms) -> None:
        """Add to these sums in place. Raises `MethodError` where 64 bits do not hold a total."""
        self.totals[:] = add(self.totals, other.totals, name="histogram totals")
        np.add(self.sums, other.sums, out=self.sums)

    def arrays(self) -> dict[str, np.ndarray]:
        """The histograms as named arrays, for a payload: int32 where the sums fit, else int64."""
        fits = max(int(self.sums.max(initial=0)), -int(self.sums.min(initial=0))) < 2**31
        return {"sums": self.sums.astype(np.int32) if fits else self.sums, "totals": self.totals}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, edges: BinEdges, nodes: int) -> Histograms:
        """The inverse of `arrays`. Raises `RejectedContribution` unless they are histograms of so many nodes.

        Hessians must not be negative, and those of a feature's bins must not exceed the total.
        """
        sums, totals = arrays.get("sums"), arrays.get("totals")
        if (
            sums is None
            or totals is None
            or sums.dtype not in (np.int32, np.int64)
            or totals.dtype != np.int64
            or sums.shape != (nodes, 2, len(edges.cuts))
            or totals.shape != (nodes, 2)
        ):
            raise RejectedContribution(
                f"The histograms are not integers for {nodes} tree nodes over {len(edges.cuts)} bins."
            )
        wide = sums.astype(np.int64)
        if np.any(wide[:, 1] < 0) or np.any(wide[:, 1] > totals[:, 1:]):
            raise RejectedContribution("A histogram holds a hessian that is negative or above its total.")
        return cls(wide, totals.astype(np.int64))


def histograms(
    bins: Int32, edges: BinEdges, position: Int32, nodes: Int32, gradient: Int64, hessian: Int64
) -> Histograms:
    """The histograms of the tree nodes `nodes` int32 [R] over a site's rows.

    `bins` int32 [n, F] with -1 for missing; `position` int32 [n]: the tree node of each row; `gradient` and
    `hessian` int64 [n]: the integers of the tree's output.
    """
    slot_of = np.full(max(int(position.max(initial=0)), int(nodes.max(initial=0))) + 1, -1, dtype=np.int64)
    slot_of[nodes] = np.arange(len(nodes))
    slot = slot_of[position]
    rows = np.flatnonzero(slot >= 0)
    everywhere = len(nodes) == 1 and len(rows) == len(slot)
    slot = slot[rows]
    pairs = (exact_halves(gradient[rows]), exact_halves(hessian[rows]))
    sums = np.zeros((len(nodes), 2, len(edges.cuts)), dtype=np.int64)
    for f, width in enumerate(edges.bins.tolist()):
        # The first cell of each slot takes the missing values, and is left out.
        own = bins[:, f] if everywhere else bins[:, f][rows]
        cell = np.add(own, 1, dtype=np.int64)
        if not everywhere:
            cell += slot * (width + 1)
        for which, values in enumerate(pairs):
            counted = bincount_halves(cell, values, len(nodes) * (width + 1)).reshape(len(nodes), width + 1)
            sums[:, which, edges.offsets[f] : edges.offsets[f + 1]] = counted[:, 1:]
    totals = np.stack([bincount_halves(slot, values, len(nodes)) for values in pairs], axis=1)
    return Histograms(sums, totals)
