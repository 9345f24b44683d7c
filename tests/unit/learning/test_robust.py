"""Robust rules on vectors whose answer a person can check, then the attacks that they must withstand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import MethodError
from hanse.learning.robust import best, coordinate_median, krum_scores, squared_distances, trimmed_mean


def rows(*values) -> np.ndarray:
    return np.array(values, dtype=np.float32)


FIVE = rows([1, 0, 0, 9], [2, 0, 1, 9], [3, 0, 2, 9], [4, 0, 3, 9], [1000, 0, -1000, 9])


def test_the_median_of_an_odd_and_of_an_even_number():
    np.testing.assert_array_equal(coordinate_median(FIVE), [3, 0, 1, 9])
    np.testing.assert_array_equal(coordinate_median(FIVE[:4]), [2.5, 0, 1.5, 9])
    np.testing.assert_array_equal(coordinate_median(FIVE[:1]), FIVE[0])


def test_the_trimmed_mean_loses_one_at_either_end():
    np.testing.assert_array_equal(trimmed_mean(FIVE, 1), [3, 0, 1, 9])
    np.testing.assert_array_equal(trimmed_mean(FIVE[:4], 1), [2.5, 0, 1.5, 9])
    np.testing.assert_array_equal(trimmed_mean(FIVE[:4], 0), [2.5, 0, 1.5, 9])
    with pytest.raises(MethodError, match="4 contributions cannot lose 2 at either end"):
        trimmed_mean(FIVE[:4], 2)


def test_krum_by_hand():
    points = rows([0, 0, 0, 0], [1, 0, 0, 0], [0, 2, 0, 0], [1, 1, 0, 0], [50, 0, 0, 0]).astype(np.float64)
    distances = squared_distances(points @ points.T)
    np.testing.assert_array_equal(distances[:4, :4], [[0, 1, 4, 2], [1, 0, 5, 1], [4, 5, 0, 2], [2, 1, 2, 0]])
    scores = krum_scores(distances, 1)  # the 5 - 1 - 2 = 2 nearest
    np.testing.assert_array_equal(scores[:4], [3, 2, 6, 3])
    np.testing.assert_array_equal(best(scores, 1), [1])
    np.testing.assert_array_equal(best(scores, 3), [0, 1, 3])
    with pytest.raises(MethodError, match="Krum with 2 hostile nodes needs 7 contributions, and 5 came"):
        krum_scores(distances, 2)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e3, 1e6, -1e6]), st.integers(1, 3))
def test_hostile_rows_move_no_rule_out_of_the_range_of_the_honest(seed, attack, hostile):
    rng = np.random.default_rng(seed)
    honest = rng.standard_normal((2 * hostile + 3, 6)).astype(np.float32)
    everyone = np.concatenate([honest, np.full((hostile, 6), attack, np.float32)])
    low, high = honest.min(axis=0), honest.max(axis=0)
    for result in (coordinate_median(everyone), trimmed_mean(everyone, hostile)):
        assert np.all((low <= result) & (result <= high))
    wide = everyone.astype(np.float64)
    chosen = best(krum_scores(squared_distances(wide @ wide.T), hostile), len(honest))
    assert chosen.max() < len(honest)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.randoms())
def test_the_order_of_rows_changes_no_bit(seed, random):
    table = np.random.default_rng(seed).standard_normal((7, 5)).astype(np.float32)
    order = list(range(7))
    random.shuffle(order)
    assert coordinate_median(table).tobytes() == coordinate_median(table[order]).tobytes()
    assert trimmed_mean(table, 2).tobytes() == trimmed_mean(table[order], 2).tobytes()
