"""Atoms: rows that fall into the same bin of every feature, with their sums of gradients and hessians.

Whoever holds the atoms can grow any tree over the bins, since all rows of an atom go the same way at every
split. Over many features nearly every row is an atom of its own: atoms are then the quantised records, and
`small_atom_share` says to what extent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hanse.errors import RejectedContribution
from hanse.learning.arrays import BinIds, Int32, Int64
from hanse.learning.bin_edges import BinEdges
from hanse.learning.binning import MISSING
from hanse.learning.fixed_point import check_sum

_NAMES = ("ids", "weight", "gradient", "hessian")


@dataclass(frozen=True, eq=False)
class Atoms:
    """Atoms in ascending order of their ids, each once.

    `ids` uint8 or uint16 [A, F]: bin + 1, or 0 where the value is missing; 8 bits where no feature has more
    than 255 bins. `weight` int64 [A]: the sum of instance weights; `gradient` and `hessian` int64 [A, K]. All
    sums are on the job's grid.
    """

    ids: BinIds
    weight: Int64
    gradient: Int64
    hessian: Int64

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bins(self) -> Int32:
        """Bin ids int32 [A, F], -1 where missing."""
        return self.ids.astype(np.int32) - 1

    def arrays(self) -> dict[str, np.ndarray]:
        """The atoms as named arrays, for a payload."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, edges: BinEdges, outputs: int) -> Atoms:
        """The inverse of `arrays`. Raises `RejectedContribution` unless they are atoms over these edges.

        Ids must exist, weights and hessians must be positive; the order may be any, and repeated atoms are
        added up.
        """
        missing = [name for name in _NAMES if name not in arrays]
        if missing:
            raise RejectedContribution(f"The atoms lack the array {missing[0]!r}.")
        ids, weight, gradient, hessian = (arrays[name] for name in _NAMES)
        count = len(ids) if ids.ndim else 0
        if ids.dtype != _id_dtype(edges) or ids.shape != (count, edges.features):
            raise RejectedContribution(
                f"The atom ids are {ids.dtype} of shape {ids.shape}, not {_id_dtype(edges)} over "
                f"{edges.features} features."
            )
        for name, array, shape in (
            ("weight", weight, (count,)),
            ("gradient", gradient, (count, outputs)),
            ("hessian", hessian, (count, outputs)),
        ):
            if array.dtype != np.int64 or array.shape != shape:
                raise RejectedContribution(
                    f"The atom array {name!r} is {array.dtype} of shape {array.shape}, not int64 of {shape}."
                )
        if np.any(ids > edges.bins.astype(ids.dtype)):
            raise RejectedContribution("An atom lies in a bin that does not exist.")
        if np.any(weight <= 0) or np.any(hessian <= 0):
            raise RejectedContribution("An atom has a weight or a hessian that is not positive.")
        order, starts = _groups(ids)
        if len(starts) == count and np.array_equal(order, np.arange(count)):
            return cls(ids, weight, gradient, hessian)
        return cls(
            ids[order[starts]],
            _sum(weight[order], starts),
            _sum(gradient[order], starts),
            _sum(hessian[order], starts),
        )

    def merge(self, *others: Atoms) -> Atoms:
        """The atoms of all sets of rows together. The result does not depend on the order or the grouping.

        Raises `MethodError` where 64 bits might not hold a sum.
        """
        parts = (self, *others)
        ids = np.concatenate([part.ids for part in parts])
        order, starts = _groups(ids)

        def joined(name: str) -> Int64:
            arrays: list[Int64] = [getattr(part, name) for part in parts]
            check_sum(arrays, name=f"atom {name}")
            return _sum(np.concatenate(arrays)[order], starts)

        return Atoms(ids[order[starts]], joined("weight"), joined("gradient"), joined("hessian"))

    def output(self, k: int) -> Atoms:
        """The same atoms with the sums of one output only."""
        return Atoms(self.ids, self.weight, self.gradient[:, [k]], self.hessian[:, [k]])


def aggregate(bins: Int32, edges: BinEdges, weight: Int64, gradient: Int64, hessian: Int64) -> tuple[Atoms, Int64]:
    """Atoms of a node's rows, and how many rows each holds.

    `bins` int32 [n, F] with -1 for missing, `weight` int64 [n], `gradient` and `hessian` int64 [n, K], on the
    job's grid. The row counts int64 [A] are the node's own business: they are not part of the atoms.
    """
    ids = pack(bins, edges)
    order, starts = _groups(ids)
    rows = np.diff(np.append(starts, len(order)))
    atoms = Atoms(
        ids[order[starts]],
        _sum(weight[order], starts),
        _sum(gradient[order], starts),
        _sum(hessian[order], starts),
    )
    return atoms, rows.astype(np.int64)


def pack(bins: Int32, edges: BinEdges) -> BinIds:
    """Bin ids int32 [n, F] as atom ids: one more, in 8 or 16 bits."""
    shifted = bins - MISSING
    return shifted.astype(np.uint8) if _id_dtype(edges) == np.uint8 else shifted.astype(np.uint16)


def small_atom_share(rows: Int64, fewer_than: int) -> float:
    """Share of atoms that hold fewer than so many rows, between 0 and 1; 0 without atoms. `rows` int64 [A]."""
    return float(np.mean(rows < fewer_than)) if len(rows) else 0.0


def coarsen(bins: Int32, factor: int) -> Int32:
    """Bin ids int32 [n, F] with each run of `factor` neighbouring bins taken for its first; missing stays -1.

    Coarser ids are ids over the same edges, so the atoms of sites that coarsen merge with those of others; only
    the coarsening site's statistics get blurred.
    """
    return np.where(bins == MISSING, MISSING, bins // factor * factor).astype(np.int32)


def coarsening_for(bins: Int32, edges: BinEdges, minimum_rows: int) -> int | None:
    """The least power of two by which `coarsen` leaves no atom with fewer than `minimum_rows` rows.

    1 if that holds already, and `None` if nothing helps: a pattern of missing values can be rare by itself.
    """
    factor = 1
    while True:
        order, starts = _groups(pack(coarsen(bins, factor), edges))
        if small_atom_share(np.diff(np.append(starts, len(order))), minimum_rows) == 0:
            return factor
        if factor >= edges.widest:
            return None
        factor *= 2


def _id_dtype(edges: BinEdges) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
    return np.dtype(np.uint8) if edges.widest <= 255 else np.dtype(np.uint16)


def _groups(ids: BinIds) -> tuple[Int64, Int64]:
    """The order [n] that sorts the rows of `ids`, and where each distinct row starts in it [A]."""
    if not len(ids):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # Big-endian bytes compare as the numbers do, so rows sort as opaque strings of bytes.
    keys = np.ascontiguousarray(ids, dtype=ids.dtype.newbyteorder(">"))
    rows = keys.view(np.dtype((np.void, keys.dtype.itemsize * keys.shape[1]))).ravel()
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return order, starts


def _sum(values: Int64, starts: Int64) -> Int64:
    if not len(starts):
        return values[:0]
    sums: Int64 = np.add.reduceat(values, starts, axis=0)
    return sums
