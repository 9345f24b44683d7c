"""Sums of float32 numbers without any rounding, as short vectors of integers.

A float32 is an integer of 24 bits times a power of two between 2^-149 and 2^104. Written in units of 2^-149
it is an integer of at most 277 bits, which is spread here over limbs of 32 bits, each held in an int64. Limbs
of different rows and nodes add up as plain integers, so the sum depends on nothing but the multiset of the
values: not on the partition into nodes, not on the order. The vectors have a fixed length, hence they may be
summed under a mask. Up to 2^30 rows fit. (Our choice; the idea is Kulisch's long accumulator.)
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.fixed_point import integer_bincount

LIMBS = 9
_LIMB_BITS = 32
_LOWEST_EXPONENT = -149


def exact_sum(values: Float32) -> Int64:
    """The limbs [LIMBS] of the sum of the finite numbers in `values` [n]; NaN counts for nothing."""
    present = values[~np.isnan(values)].astype(np.float64)
    fraction, exponent = np.frexp(present)
    mantissa = np.ldexp(fraction, 24).astype(np.int64)
    # Subnormal float32 have fewer bits: shift them so that the exponent never falls below the unit.
    shift = exponent.astype(np.int64) - 24 - _LOWEST_EXPONENT
    mantissa >>= np.maximum(-shift, 0)
    shift = np.maximum(shift, 0)
    limb, within = np.divmod(shift, _LIMB_BITS)
    shifted = mantissa << within  # at most 55 bits and a sign
    low = integer_bincount(limb, shifted & 0xFFFF_FFFF, LIMBS)
    high = integer_bincount(limb + 1, shifted >> _LIMB_BITS, LIMBS)
    return low + high


def exact_sum_float64(values: Float64) -> Int64:
    """The limbs of a sum of float64 numbers [n] of float32's range: each is split into three float32 parts."""
    total = np.zeros(LIMBS, dtype=np.int64)
    rest = values.astype(np.float64)
    for _ in range(3):
        part = rest.astype(np.float32)
        total = total + exact_sum(part)
        rest = rest - part.astype(np.float64)
    return total


def exact_total(limbs: Int64) -> Fraction:
    """The number that limbs [LIMBS] stand for."""
    units = sum(int(limb) << (_LIMB_BITS * place) for place, limb in enumerate(limbs))
    return Fraction(units, 1 << -_LOWEST_EXPONENT)
