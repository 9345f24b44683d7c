from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hanse.errors import MethodError
from hanse.learning.exact_sum import exact_sum, exact_sum_float64, exact_total
from hanse.learning.fixed_point import add, check_sum, decode, encode, integer_bincount, power_of_two_at_least

finite32 = hnp.arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def test_rounding_is_to_the_nearest_and_half_to_even():
    assert encode(np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.75]), 0, name="x").tolist() == [0, 2, 2, 0, -2, 1]


def test_the_default_grid_keeps_float32_gradients_exact():
    integers = encode(np.array([0.3, -0.999999]), -20, name="g")
    back = decode(integers, -20)
    assert (back.astype(np.float32) == back).all()
    assert np.abs(back - [0.3, -0.999999]).max() <= 2.0**-21


def test_an_array_that_does_not_fit_is_named():
    with pytest.raises(MethodError, match="'gradient'"):
        encode(np.array([1e15]), -20, name="gradient")
    with pytest.raises(MethodError, match=r"'gradient'.*not finite"):
        encode(np.array([np.nan]), -20, name="gradient")
    with pytest.raises(MethodError, match="'hessian'"):
        add(np.array([2**62]), np.array([2**62]), name="hessian")
    with pytest.raises(MethodError, match="'weight'"):
        check_sum([np.array([2**61]), np.array([2**61])], name="weight")


@pytest.mark.parametrize(("value", "exponent"), [(1.0, 0), (1.5, 1), (2.0, 1), (0.25, -2), (0.3, -1), (0.0, 0)])
def test_power_of_two_at_least(value, exponent):
    assert power_of_two_at_least(value) == exponent


def test_bincount_is_exact_beyond_float64():
    weights = np.array([2**60 + 1, 1, -(2**60), 3], dtype=np.int64)
    assert integer_bincount(np.array([0, 0, 1, 1]), weights, 3).tolist() == [2**60 + 2, -(2**60) + 3, 0]


@settings(deadline=None, max_examples=100)
@given(finite32)
def test_an_exact_sum_is_the_sum_of_fractions(values):
    expected = sum((Fraction(float(value)) for value in values), Fraction(0))
    assert exact_total(exact_sum(values)) == expected


@settings(deadline=None, max_examples=50)
@given(finite32, finite32)
def test_exact_sums_of_parts_add_up(left, right):
    together = exact_total(exact_sum(np.concatenate([left, right])))
    assert exact_total(exact_sum(left) + exact_sum(right)) == together


def test_exact_sums_skip_missing_values_and_hold_the_extremes():
    tiny, huge = np.float32(2.0**-149), np.finfo(np.float32).max
    limbs = exact_sum(np.array([tiny, huge, np.nan, -huge, -tiny, tiny], dtype=np.float32))
    assert exact_total(limbs) == Fraction(1, 2**149)


def test_exact_sums_of_float64_lose_no_bit():
    values = np.array([1 / 3, 1e10 + 1 / 7, -0.1])
    assert exact_total(exact_sum_float64(values)) == sum(Fraction(v) for v in values.tolist())
