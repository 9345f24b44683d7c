"""Hessian-weighted DDSketches (Masson, Rim & Lee, VLDB 2019) with integer weights.

A sketch counts the weight of values per bucket; bucket `k` of the positive store holds distances from the
centre in (gamma^(k-1), gamma^k], the negative store mirrors it, and distances too small to matter count as
zero. With integer weights the merge of two sketches is the sketch of the union, bit for bit.

Two decisions are ours. First, a bucket number is not found by a logarithm, whose last bit differs between
machines, but by the bucket's edges as float32 numbers, made in decimal arithmetic: bucket and bin can then
never disagree about a row. Second, all buckets of a feature, from the most negative to the most positive,
have one running number (the bucket's *ordinal*), and a sketch is the sorted list of occupied ordinals.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property, lru_cache

import numpy as np

from hanse.errors import RejectedContribution
from hanse.learning.arrays import FLOAT32_MAX, Float32, Float64, Int32, Int64
from hanse.learning.fixed_point import add

# Distances up to this count as zero: the least normal float32.
_SMALLEST = 2.0**-126
# The distance of two float32 numbers is at most twice the largest.
_LARGEST = 2.0**129


@dataclass(frozen=True)
class BucketMapping:
    """The buckets of one relative accuracy; the same on every node and at the server.

    For accuracy 0.01 there are about 8,900 keys per sign, and gamma = 1.0202.
    """

    relative_accuracy: float = 0.01

    @property
    def gamma(self) -> float:
        """Ratio of neighbouring bucket boundaries, (1 + alpha) / (1 - alpha), as the ddsketch package rounds it."""
        return 1 + 2 * self.relative_accuracy / (1 - self.relative_accuracy)

    @cached_property
    def lowest_key(self) -> int:
        """Key of the bucket next to zero."""
        return int(np.floor(np.log(_SMALLEST) / np.log(self.gamma))) + 1

    @cached_property
    def keys(self) -> int:
        """Number of keys per sign."""
        return int(np.ceil(np.log(_LARGEST) / np.log(self.gamma))) - self.lowest_key + 1

    @property
    def zero(self) -> int:
        """Ordinal of the zero bucket; below it lie the negative buckets, above it the positive ones."""
        return self.keys

    @cached_property
    def boundaries(self) -> Float64:
        """Powers gamma^(lowest_key - 1 + i), i = 0..keys, correctly rounded on every machine."""
        return _powers(self.gamma, self.lowest_key - 1, self.keys + 1)

    def upper_cuts(self, centre: float) -> Float32:
        """For each ordinal the least float32 that lies above its bucket, float32 [2 * keys + 1], ascending.

        A value `x` is in bucket `j` exactly when `cuts[j - 1] <= x < cuts[j]`: sketch buckets are closed on
        the right and XGBoost's bins on the left, hence the step up to the next float32. Centres are added in
        float64, before that step.
        """
        negative = _at_or_above(centre - self.boundaries[:-1][::-1])
        positive = _above(centre + self.boundaries)
        return np.concatenate([negative, positive])


@lru_cache(maxsize=8)
def _powers(gamma: float, first: int, count: int) -> Float64:
    context = Context(prec=50)
    ratio = Decimal(gamma)
    power = context.power(ratio, first)
    powers = np.empty(count, dtype=np.float64)
    for i in range(count):
        powers[i] = float(power)
        power = context.multiply(power, ratio)
    powers.setflags(write=False)
    return powers


def _at_or_above(values: Float64) -> Float32:
    """The least float32 >= each value, at most the largest finite one."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    up = np.where(nearest.astype(np.float64) < values, np.nextafter(nearest, np.float32(np.inf)), nearest)
    return np.clip(up, -FLOAT32_MAX, FLOAT32_MAX).astype(np.float32)


def _above(values: Float64) -> Float32:
    """The least float32 > each value, at most the largest finite one."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    up = np.where(nearest.astype(np.float64) <= values, np.nextafter(nearest, np.float32(np.inf)), nearest)
    return np.clip(up, -FLOAT32_MAX, FLOAT32_MAX).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Store:
    """One store of a published DDSketch: `counts[i]` is the weight at key `offset + i`, int64."""

    offset: int
    counts: Int64


@dataclass(frozen=True, eq=False)
class Sketch:
    """The weights of one feature by bucket.

    `ordinals` int32 [m] ascending, `counts` int64 [m] all positive. Missing values are not counted.
    """

    ordinals: Int32
    counts: Int64

    @classmethod
    def empty(cls) -> Sketch:
        """The sketch of no rows."""
        return cls(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, ordinals: Int32, counts: Int64) -> Sketch:
        """Buckets in any order, repeated or empty, as a sketch."""
        unique, place = np.unique(ordinals, return_inverse=True)
        summed = np.zeros(len(unique), dtype=np.int64)
        np.add.at(summed, place, counts)
        kept = summed > 0
        return cls(unique[kept].astype(np.int32), summed[kept])

    @property
    def total(self) -> int:
        """The weight of all values, in integer units."""
        low = int((self.counts & 0xFFFF_FFFF).sum())
        return (int((self.counts >> 32).sum()) << 32) + low

    def merge(self, other: Sketch) -> Sketch:
        """The sketch of both sets of rows. Raises `MethodError` where 64 bits do not hold the sum."""
        unique = np.union1d(self.ordinals, other.ordinals).astype(np.int32)
        mine, theirs = np.zeros((2, len(unique)), dtype=np.int64)
        mine[np.searchsorted(unique, self.ordinals)] = self.counts
        theirs[np.searchsorted(unique, other.ordinals)] = other.counts
        return Sketch(unique, add(mine, theirs, name="sketch"))

    def quantile(self, q: float, mapping: BucketMapping, centre: float) -> float:
        """The weighted quantile `q` in [0, 1]: the representative of the first bucket at which the cumulative
        weight reaches `q * total`. Relative to the centre it is within the mapping's accuracy."""
        cumulative = np.cumsum(self.counts)
        ordinal = int(self.ordinals[np.searchsorted(cumulative, q * int(cumulative[-1]))])
        place = abs(ordinal - mapping.zero)
        if place == 0:
            return centre
        middle = 2 * mapping.boundaries[place] / (mapping.gamma + 1)
        return centre + float(np.sign(ordinal - mapping.zero) * middle)

    def stores(self, mapping: BucketMapping) -> tuple[Store, Store, int]:
        """Positive store, negative store and zero count, with the keys of the published DDSketch."""
        zero = mapping.zero
        positive = self.ordinals > zero
        negative = self.ordinals < zero
        return (
            _dense(self.ordinals[positive] - zero - 1 + mapping.lowest_key, self.counts[positive]),
            _dense((zero - 1 - self.ordinals[negative] + mapping.lowest_key)[::-1], self.counts[negative][::-1]),
            int(self.counts[self.ordinals == zero].sum()),
        )

    @classmethod
    def from_stores(cls, positive: Store, negative: Store, zero: int, mapping: BucketMapping) -> Sketch:
        """The inverse of `stores`, for sketches from any DDSketch library with the same gamma.

        Keys below the mapping's range count as zero, keys above it as the outermost bucket. Raises
        `RejectedContribution` for negative counts.
        """
        if zero < 0 or np.any(positive.counts < 0) or np.any(negative.counts < 0):
            raise RejectedContribution("A sketch holds a negative count.")
        ordinals = [np.array([mapping.zero], dtype=np.int64)]
        for store, sign in ((positive, 1), (negative, -1)):
            keys = store.offset + np.arange(len(store.counts), dtype=np.int64)
            ordinals.append(mapping.zero + sign * np.clip(keys - mapping.lowest_key + 1, 0, mapping.keys))
        counts = np.concatenate([np.array([zero], dtype=np.int64), positive.counts, negative.counts])
        return cls.of(np.concatenate(ordinals).astype(np.int32), counts)


def _dense(keys: np.ndarray, counts: Int64) -> Store:
    if not len(keys):
        return Store(0, np.zeros(0, dtype=np.int64))
    dense = np.zeros(int(keys[-1] - keys[0]) + 1, dtype=np.int64)
    dense[keys - keys[0]] = counts
    return Store(int(keys[0]), dense)


def merge_sketches(left: Iterable[Sketch], right: Iterable[Sketch]) -> tuple[Sketch, ...]:
    """Merge feature by feature; both sides list the same features."""
    return tuple(a.merge(b) for a, b in zip(left, right, strict=True))
