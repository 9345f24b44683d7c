"""From raw values to bucket numbers, once per job, and from bucket numbers to bin ids, every round.

Values never change during a job and cuts lie on bucket boundaries, so the search through boundaries happens
once. After that a sketch is a bincount of bucket numbers, and binning is a table look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.errors import SiteError
from hanse.learning.arrays import FLOAT32_MAX, Float32, Float64, Int32, Int64
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import bincount_halves, exact_halves
from hanse.learning.sketch import BucketMapping, Sketch

MISSING = -1


def check_values(values: Float32, names: Sequence[str]) -> None:
    """Refuse ±inf and the largest float32, as XGBoost refuses infinities; NaN is a missing value.

    `values` float32 [n, F]. Raises `SiteError` that names the first such column.
    """
    bad = (np.abs(values) >= FLOAT32_MAX).any(axis=0)
    if bad.any():
        name = names[int(np.argmax(bad))]
        raise SiteError(
            f"The column {name!r} holds a value that is infinite or too large for float32.",
            code="INFINITE_VALUE",
            remedy="Replace such values, or leave them empty to mark them as missing.",
        )


def bin_values(values: Float32, edges: BinEdges) -> Int32:
    """Bin ids int32 [n, F] of raw values float32 [n, F], by search: the number of cuts at or below the value,
    at most the last bin; `MISSING` for NaN. Reference for the look-up of `BucketedValues.bins`."""
    ids = np.empty(values.shape, dtype=np.int32)
    for f in range(edges.features):
        cuts = edges.of_feature(f)
        ids[:, f] = np.minimum(np.searchsorted(cuts, values[:, f], side="right"), len(cuts) - 1)
    ids[np.isnan(values)] = MISSING
    return ids


@dataclass(frozen=True, eq=False)
class BucketedValues:
    """A node's values as numbers of the buckets they fall into.

    `codes` uint16 or int32 [F, n]: index into the feature's occupied buckets, or their count for a missing
    value. `ordinals[f]` int32: those buckets, ascending. `lower[f]` float32: the least value each may hold.
    """

    codes: np.ndarray
    ordinals: tuple[Int32, ...]
    lower: tuple[Float32, ...]

    @classmethod
    def of(cls, values: Float32, centres: Float64, mapping: BucketMapping) -> BucketedValues:
        """Number the sketch buckets of `values` float32 [n, F] around `centres` float64 [F]."""
        occupied, lower, codes = [], [], []
        for column, centre in zip(values.T, centres, strict=True):
            cuts = mapping.upper_cuts(float(centre))
            present = ~np.isnan(column)
            number = np.minimum(np.searchsorted(cuts, column[present], side="right"), len(cuts) - 1)
            buckets, place = np.unique(number, return_inverse=True)
            occupied.append(buckets.astype(np.int32))
            lower.append(np.where(buckets > 0, cuts[buckets - 1], -FLOAT32_MAX).astype(np.float32))
            codes.append(_filled(present, place, len(buckets)))
        return cls(_packed(codes, occupied, len(values)), tuple(occupied), tuple(lower))

    @classmethod
    def exact(cls, values: Float32) -> BucketedValues:
        """Give each distinct value of `values` float32 [n, F] a bucket of its own (`bin_source: exact`)."""
        lower, codes = [], []
        for column in values.T:
            present = ~np.isnan(column)
            distinct, place = np.unique(column[present] + np.float32(0), return_inverse=True)
            lower.append(distinct.astype(np.float32))
            codes.append(_filled(present, place, len(distinct)))
        ordinals = [np.arange(len(distinct), dtype=np.int32) for distinct in lower]
        return cls(_packed(codes, ordinals, len(values)), tuple(ordinals), tuple(lower))

    def sketches(self, weights: Int64, rows: np.ndarray | None = None) -> tuple[Sketch, ...]:
        """One sketch per feature with the integer `weights` [n] of the rows, of the chosen `rows` only if given
        (indices or a mask). Missing values are not counted."""
        codes = self.codes if rows is None else self.codes[:, rows]
        chosen = exact_halves(weights if rows is None else weights[rows])
        sketches = []
        for code, ordinals in zip(codes, self.ordinals, strict=True):
            counts = bincount_halves(code, chosen, len(ordinals) + 1)[:-1]
            kept = counts > 0
            sketches.append(Sketch(ordinals[kept], counts[kept]))
        return tuple(sketches)

    def bins(self, edges: BinEdges) -> Int32:
        """Bin ids int32 [n, F], column by column in memory, by look-up.

        They equal `bin_values` of the raw values, for edges that lie on bucket boundaries.
        """
        ids = np.empty(self.codes.shape, dtype=np.int32)
        for f, (code, lower) in enumerate(zip(self.codes, self.lower, strict=True)):
            cuts = edges.of_feature(f)
            table = np.minimum(np.searchsorted(cuts, lower, side="right"), len(cuts) - 1)
            ids[f] = np.append(table, MISSING).astype(np.int32)[code]
        return ids.T


def _filled(present: np.ndarray, place: np.ndarray, missing: int) -> Int32:
    code = np.full(len(present), missing, dtype=np.int32)
    code[present] = place
    return code


def _packed(codes: Sequence[Int32], occupied: Sequence[np.ndarray], rows: int) -> np.ndarray:
    most = max((len(buckets) for buckets in occupied), default=0)
    dtype = np.uint16 if most < 2**16 else np.int32
    return np.stack(codes).astype(dtype) if codes else np.zeros((0, rows), dtype=dtype)
