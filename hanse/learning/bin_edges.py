"""Bin edges: where each feature is cut, and how they come from merged sketches.

As in XGBoost, bin `b` of a feature holds values in `[cuts[b - 1], cuts[b])`; the first bin is open to below.
The last cut is always the largest float32: it is needed as the threshold of a split between present and
missing values, and unlike XGBoost's `max + (|max| + 1e-5)` it reveals nothing about the data (our choice).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hanse.errors import InvalidPayload, MethodError
from hanse.learning.arrays import FLOAT32_MAX, Float32, Float64, Int64
from hanse.learning.sketch import BucketMapping, Sketch

# Atom ids have at most 16 bits and keep one value for a missing feature.
_MOST_BINS = 2**16 - 2


@dataclass(frozen=True, eq=False)
class BinEdges:
    """The cuts of all features, one feature after the other.

    `cuts` float32, strictly ascending within a feature; `offsets` int64 [F + 1]: the cuts of feature `f` are
    `cuts[offsets[f]:offsets[f + 1]]`, as many as the feature has bins.
    """

    offsets: Int64
    cuts: Float32

    @classmethod
    def of(cls, features: Sequence[Float32]) -> BinEdges:
        """Join the cuts of each feature; the last cut must be the largest float32."""
        offsets = np.concatenate([[0], np.cumsum([len(cuts) for cuts in features])]).astype(np.int64)
        edges = cls(offsets, np.concatenate([*features, np.zeros(0, dtype=np.float32)]).astype(np.float32))
        edges.check()
        return edges

    @property
    def features(self) -> int:
        """Number of features F."""
        return len(self.offsets) - 1

    @property
    def bins(self) -> Int64:
        """Number of bins of each feature, int64 [F]."""
        return np.diff(self.offsets)

    @property
    def widest(self) -> int:
        """The largest number of bins of any feature."""
        return int(self.bins.max(initial=1))

    def of_feature(self, feature: int) -> Float32:
        """The cuts of one feature."""
        return self.cuts[self.offsets[feature] : self.offsets[feature + 1]]

    def arrays(self) -> dict[str, np.ndarray]:
        """The edges as named arrays, for a payload."""
        return {"offsets": self.offsets, "cuts": self.cuts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> BinEdges:
        """The inverse of `arrays`. Raises `InvalidPayload` unless they are edges."""
        offsets, cuts = arrays.get("offsets"), arrays.get("cuts")
        if offsets is None or cuts is None or offsets.dtype != np.int64 or cuts.dtype != np.float32:
            raise InvalidPayload("Bin edges need the arrays 'offsets' (int64) and 'cuts' (float32).")
        edges = cls(offsets, cuts)
        edges.check()
        return edges

    def check(self) -> None:
        """Raise `InvalidPayload` unless each feature has ascending finite cuts that end at the largest float32."""
        offsets, cuts = self.offsets, self.cuts
        if offsets.ndim != 1 or cuts.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(cuts):
            raise InvalidPayload("The offsets of the bin edges do not enclose their cuts.")
        if np.any(np.diff(offsets) < 1):
            raise InvalidPayload("A feature has no bin.")
        if not np.all(np.isfinite(cuts)) or np.any(cuts[offsets[1:] - 1] != FLOAT32_MAX):
            raise InvalidPayload("A feature's cuts are not finite or do not end at the largest float32.")
        rising = cuts[1:] > cuts[:-1]
        rising[offsets[1:-1] - 1] = True
        if not np.all(rising):
            raise InvalidPayload("A feature's cuts do not ascend.")


def sketched_edges(sketches: Sequence[Sketch], centres: Float64, mapping: BucketMapping, bins: int) -> BinEdges:
    """Edges of at most `bins` bins per feature of about equal weight, from the merged sketches of all nodes.

    Buckets are walked in order with integer cumulative weights; for `i = 1..bins - 1` the first bucket at
    which they reach `i / bins` of the total is cut at its upper boundary. No bucket straddles a cut, so the
    sketch's weight per bin is exactly the hessian sum per bin. With at most `bins` occupied buckets, each has
    a bin of its own.
    """
    return BinEdges.of(
        [
            _edges_of_feature(sketch, mapping.upper_cuts(float(centre)), bins)
            for sketch, centre in zip(sketches, centres, strict=True)
        ]
    )


def _edges_of_feature(sketch: Sketch, upper_cuts: Float32, bins: int) -> Float32:
    ordinals = sketch.ordinals
    if sketch.total >= 2**62:
        raise MethodError("The weights of a sketch leave 64 bits.", code="FIXED_POINT_OVERFLOW")
    if len(ordinals) > bins:
        cumulative = np.cumsum(sketch.counts)
        # i * total / bins, rounded up, without leaving 64 bits.
        whole, rest = divmod(int(cumulative[-1]), bins)
        i = np.arange(1, bins, dtype=np.int64)
        targets = i * whole - (-i * rest // bins)
        ordinals = ordinals[np.unique(np.searchsorted(cumulative, targets))]
        # A cut above the last occupied bucket would only add an empty bin.
        ordinals = ordinals[ordinals < sketch.ordinals[-1]]
    else:
        ordinals = ordinals[:-1]
    return _closed(upper_cuts[ordinals])


def exact_edges(distinct: Sequence[Float32]) -> BinEdges:
    """A bin for each distinct value, from the distinct values of each feature over all nodes.

    For tests and tiny public data only: the cuts are the values themselves, as XGBoost's `hist` makes them
    when a feature has no more distinct values than bins.
    """
    edges = BinEdges.of([_closed(np.unique(values)[1:]) for values in distinct])
    if edges.widest > _MOST_BINS:
        raise MethodError(
            f"A feature has {edges.widest} distinct values; exact bins hold at most {_MOST_BINS}.",
            code="TOO_MANY_BINS",
            remedy="Use bin_source: sketch.",
        )
    return edges


def merge_distinct(left: Sequence[Float32], right: Sequence[Float32]) -> tuple[Float32, ...]:
    """The distinct values of each feature over two sets of rows, ascending."""
    return tuple(np.union1d(a, b) for a, b in zip(left, right, strict=True))


def _closed(cuts: Float32) -> Float32:
    inner = np.unique(cuts)
    return np.append(inner[inner < FLOAT32_MAX], FLOAT32_MAX).astype(np.float32)
