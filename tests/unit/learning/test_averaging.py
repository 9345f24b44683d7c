"""Weighted sums: exact, whatever the order; a contribution enters whole or not at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import MethodError, RejectedContribution
from hanse.learning.averaging import (
    ABSOLUTE_BITS,
    BLOCK,
    DIFFERENCE_BITS,
    UNIFORM_BITS,
    WeightedSum,
    clip_factor,
    squared_norm,
)

BITS = (UNIFORM_BITS, DIFFERENCE_BITS, ABSOLUTE_BITS)


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def summed(contributions, bits=DIFFERENCE_BITS, contributors=8) -> WeightedSum:
    arrays, _ = contributions[0]
    sums = WeightedSum(
        {name: array.shape for name, array in arrays.items()}, dict.fromkeys(arrays, bits), contributors=contributors
    )
    for arrays, weight in contributions:
        sums.add(arrays, weight)
    return sums


def test_the_weighted_mean_of_four_numbers():
    sums = summed([({"w": f32(1, -2, 0.5, 0)}, 1), ({"w": f32(2, 2, 0.25, 4)}, 3)])
    assert sums.weight == 4
    np.testing.assert_array_equal(sums.means("w"), f32(1.75, 1, 0.3125, 3))


@pytest.mark.parametrize("bits", BITS)
def test_numbers_on_the_grid_are_added_without_any_rounding(bits):
    unit = 2.0**-bits
    sums = summed([({"w": f32(unit, 1.0)}, 1), ({"w": f32(-unit, 1.0)}, 1), ({"w": f32(unit, -1.0)}, 1)], bits)
    np.testing.assert_array_equal(sums.means("w", dtype=np.dtype(np.float64)), [unit / 3, 1 / 3])


def test_a_half_unit_is_rounded_to_even_once_after_weighting():
    half = 2.0 ** -(DIFFERENCE_BITS + 1)
    sums = summed([({"w": f32(half, 3 * half, -half)}, 1)])
    np.testing.assert_array_equal(sums.means("w") / (2 * half), [0, 2, 0])
    sums = summed([({"w": f32(half)}, 2)])  # two halves are a whole before anything is rounded
    np.testing.assert_array_equal(sums.means("w"), [half])


contribution = st.tuples(
    st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5), st.integers(min_value=1, max_value=10_000)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(contribution, min_size=1, max_size=6), st.sampled_from(BITS), st.randoms())
def test_the_mean_is_that_of_float64_within_the_bound_and_the_same_in_any_order(contributions, bits, random):
    given_ = [({"w": f32(*values)}, weight) for values, weight in contributions]
    if bits == UNIFORM_BITS:
        given_ = [(arrays, 1) for arrays, _ in given_]
    weights = np.array([weight for _, weight in given_], dtype=np.float64)
    reference = sum(w * arrays["w"].astype(np.float64) for arrays, w in given_) / weights.sum()
    mean = summed(given_, bits).means("w", dtype=np.dtype(np.float64))
    bound = 2.0 ** -(bits + 1) * len(given_) / weights.sum() + 1e-13
    assert np.all(np.abs(mean - reference) <= bound)
    random.shuffle(given_)
    assert summed(given_, bits).means("w", dtype=np.dtype(np.float64)).tobytes() == mean.tobytes()


def test_blocks_of_any_magnitude_give_the_same_bits_in_every_order():
    """Small numbers take the fast path, large ones the other; an array is longer than a block and no multiple of it."""
    rng = np.random.default_rng(5)
    shape = (2 * BLOCK + 77,)
    given_ = []
    for scale, weight in ((1e-6, 7), (1.0, 1000), (1e4, 100), (0.0, 3)):
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        array[BLOCK : BLOCK + 3] *= 100
        given_.append(({"w": array, "b": array[:2].reshape(1, 2)}, weight))
    results = {
        tuple(summed(list(order)).means(name).tobytes() for name in ("w", "b"))
        for order in itertools.permutations(given_)
    }
    assert len(results) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_a_number_that_is_not_finite_leaves_no_trace_and_names_its_array(bad, place):
    rng = np.random.default_rng(0)
    good = {name: rng.standard_normal(2 * BLOCK + 6).astype(np.float32) for name in ("a", "b", "c")}
    spoiled = {**good, "b": good["b"].copy()}
    spoiled["b"][place] = bad
    sums = summed([(good, 3)])
    with pytest.raises(RejectedContribution, match=rf"the array 'b' holds {bad}\.") as error:
        sums.add(spoiled, 5)
    assert error.value.code == "NOT_FINITE"
    assert sums.weight == 3
    for name, array in good.items():
        np.testing.assert_allclose(sums.means(name), array, atol=2**-32, rtol=0)


def test_whether_a_number_fits_depends_on_nobody_else():
    sums = WeightedSum({"w": (1,)}, {"w": UNIFORM_BITS}, contributors=4)
    most = 2.0 ** (62 - 2 - UNIFORM_BITS)
    for _ in range(3):
        sums.add({"w": f32(most)}, 1)
    with pytest.raises(
        RejectedContribution, match=r"'w' holds 1\.04858e\+06 in magnitude.*at most 1\.04858e\+06"
    ) as error:
        sums.add({"w": f32(np.nextafter(np.float32(most), np.float32(np.inf)))}, 1)
    assert error.value.code == "OUT_OF_RANGE"
    sums.add({"w": f32(-most)}, 1)
    assert sums.means("w") == most / 2
    with pytest.raises(MethodError, match="4 contributions were announced"):
        sums.add({"w": f32(0)}, 1)


def test_nothing_added_is_nothing_to_average():
    with pytest.raises(MethodError, match="nothing to average"):
        WeightedSum({"w": (2,)}, {"w": 32}, contributors=2).means("w")


def test_a_scalar_and_an_empty_array_are_arrays_too():
    sums = summed([({"s": np.array(2.5, np.float32), "e": np.zeros((0, 3), np.float32)}, 2)])
    assert sums.means("s").shape == ()
    assert sums.means("s" if "s" in sums._sums else "e").shape == (0, 3)


def test_an_update_sees_every_block_with_its_place():
    array = np.arange(BLOCK + 10, dtype=np.float32)
    seen = []

    def update(place: slice, block: np.ndarray) -> np.ndarray:
        seen.append((place.start, place.stop))
        return block * 2

    np.testing.assert_array_equal(summed([({"w": array}, 1)]).means("w", update), array * 2)
    assert seen == [(0, BLOCK), (BLOCK, BLOCK + 10)]


def test_factors_scale_what_they_name_and_squares_are_those_of_what_was_given():
    sums = WeightedSum({"a": (2,), "b": (2,)}, {"a": 32, "b": 32}, contributors=2)
    arrays = {"a": f32(3, 4), "b": f32(1, 0)}
    sums.add(arrays, 2, factors={"a": 0.5})
    assert sums.squares == {"a": 25.0, "b": 1.0}
    assert squared_norm(arrays) == 26.0
    np.testing.assert_array_equal(sums.means("a"), f32(1.5, 2))
    np.testing.assert_array_equal(sums.means("b"), f32(1, 0))


@pytest.mark.parametrize(
    ("norm", "limit", "factor"), [(4.0, 2.0, 0.5), (2.0, 2.0, 1.0), (9.0, None, 1.0), (1e30, 1.0, 1e-30)]
)
def test_clipping_never_leaves_more_than_the_limit(norm, limit, factor):
    assert clip_factor(norm, limit) == pytest.approx(factor, rel=1e-6)
    assert limit is None or norm * clip_factor(norm, limit) <= limit * (1 + 1e-15)
