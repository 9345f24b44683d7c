"""Fixed point: numbers are rounded once, per row, to integers; from there on only integers are added.

Floating-point sums depend on the order and the grouping of their terms, so two splits of the same rows into
nodes would give two models. Integer sums do not: whatever the partition and the order of arrival, the bits
are the same, and the same sums can be taken under a mask. Rounding is to nearest, half to even. On the
default grid of 2^-20 every gradient of a classification objective is exact in float32 after rounding, so
XGBoost can be given the very same numbers (our choice of grid).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.errors import MethodError
from hanse.learning.arrays import Float64, Int64

GRID_EXPONENT = -20
# Sums of a node stay below 2^62, so that one more addition is always representable.
_LIMIT = 2.0**62
# float64 adds integers exactly below this.
_EXACT_FLOAT64 = 2**53
_HALF_BITS = 26


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The job's units: an integer `i` means `i * 2**exponent`.

    One grid holds for all nodes, rounds and classes of a job; it is fixed before the first round from sums
    over all nodes (see `SetupSums.grid`).
    """

    gradient: int = GRID_EXPONENT
    """Exponent of the unit of gradients."""
    hessian: int = GRID_EXPONENT
    """Exponent of the unit of hessians and of instance weights."""


def power_of_two_at_least(value: float) -> int:
    """The least integer `e` with `2**e >= value`; 0 when `value` is not positive and finite."""
    if not (np.isfinite(value) and value > 0):
        return 0
    mantissa, exponent = np.frexp(value)
    return int(exponent) - (1 if mantissa == 0.5 else 0)


def encode(values: np.ndarray, exponent: int, *, name: str) -> Int64:
    """Round floats to integers in units of `2**exponent`, half to even.

    `values` has any shape; the result has the same. Raises `MethodError` that names the array when a value
    is not finite, or when the sum of so many values might leave 64 bits.
    """
    scaled = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), -exponent))
    largest = float(np.max(np.abs(scaled), initial=0.0))
    if not np.isfinite(largest):
        raise MethodError(
            f"The array {name!r} holds a value that is not finite.",
            code="NOT_FINITE",
            remedy="Check the labels, the weights and the learning rate.",
        )
    if largest * max(scaled.shape[0] if scaled.ndim else 1, 1) >= _LIMIT:
        raise MethodError(
            f"The array {name!r} does not fit into 64-bit sums: its largest magnitude is {largest:.3g} units.",
            code="FIXED_POINT_OVERFLOW",
            remedy="Scale the target or the instance weights down.",
        )
    return scaled.astype(np.int64)


def decode(values: Int64, exponent: int) -> Float64:
    """Integers in units of `2**exponent` as float64; exact for magnitudes below 2^53."""
    return np.ldexp(values.astype(np.float64), exponent)


def add(left: Int64, right: Int64, *, name: str) -> Int64:
    """The sum of two integer arrays of one shape; `MethodError` naming the array if 64 bits do not hold it."""
    total: Int64 = left + right
    if bool(np.any(((left ^ total) & (right ^ total)) < 0)):
        raise _overflow(name)
    return total


def _overflow(name: str) -> MethodError:
    return MethodError(
        f"The sum of the array {name!r} over the nodes leaves 64 bits.",
        code="FIXED_POINT_OVERFLOW",
        remedy="Scale the target or the instance weights down.",
    )


def check_sum(arrays: Sequence[Int64], *, name: str) -> None:
    """Raise `MethodError` naming the array if a sum with one term from each of `arrays` might leave 64 bits."""
    if sum(int(np.max(np.abs(array.astype(np.float64)), initial=0.0)) for array in arrays) >= _LIMIT:
        raise _overflow(name)


Halves = tuple[tuple[int, Float64], ...]


def exact_halves(weights: Int64) -> Halves:
    """Integer weights [n] as float64 numbers that bincount adds exactly, each with the power of two it counts.

    NumPy's bincount adds in float64: weights whose total magnitude could pass 2^53 come in two halves.
    """
    if int(np.max(np.abs(weights), initial=0)) * len(weights) < _EXACT_FLOAT64:
        return ((0, weights.astype(np.float64)),)
    low = weights & ((1 << _HALF_BITS) - 1)
    return (0, low.astype(np.float64)), (_HALF_BITS, (weights >> _HALF_BITS).astype(np.float64))


def bincount_halves(index: np.ndarray, halves: Halves, length: int) -> Int64:
    """Sum the weights that `halves` stand for by `index` [n] into `length` cells, exactly."""
    total = np.zeros(length, dtype=np.int64)
    for power, weights in halves:
        total += np.bincount(index, weights, length).astype(np.int64) << power
    return total


def integer_bincount(index: np.ndarray, weights: Int64, length: int) -> Int64:
    """Sum integer `weights` [n] by `index` [n] into `length` cells, exactly."""
    return bincount_halves(index, exact_halves(weights), length)
