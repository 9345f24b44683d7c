from __future__ import annotations

import numpy as np
import pytest

from hanse.errors import InvalidPayload
from hanse.learning.trees import Forest, Tree


def _tree(**changes) -> Tree:
    """x0 < 1 ? 10 : (x1 < 2 ? 20 : 30), missing x0 to the left, missing x1 to the right."""
    columns = {
        "left": np.array([1, -1, 3, -1, -1], np.int32),
        "right": np.array([2, -1, 4, -1, -1], np.int32),
        "feature": np.array([0, 0, 1, 0, 0], np.int32),
        "threshold": np.array([1, 0, 2, 0, 0], np.float32),
        "default_left": np.array([True, False, False, False, False]),
        "value": np.array([0, 10, 0, 20, 30], np.float32),
        "gain": np.array([5, 0, 3, 0, 0], np.float32),
    }
    return Tree(**{**columns, **changes})


NAN = np.nan


def test_routing_by_hand():
    values = np.array([[0, 9], [1, 1], [1, 2], [NAN, NAN], [5, NAN], [-np.inf, 0], [np.inf, -0.0]], np.float32)
    assert _tree().predict(values).tolist() == [10, 20, 30, 10, 30, 10, 20]
    assert _tree().leaves(values).tolist() == [1, 3, 4, 1, 4, 1, 3]


def test_no_rows_reach_no_leaf():
    assert len(_tree().predict(np.zeros((0, 2), np.float32))) == 0


def test_margins_add_each_tree_to_its_output():
    forest = Forest.of_rounds([[_tree(), Tree.leaf(0.5)], [Tree.leaf(1.0), Tree.leaf(-2.0)]])
    margins = forest.margins(np.array([[0, 0]], np.float32), np.array([100, 0], np.float32))
    assert margins.tolist() == [[111, -1.5]]


def test_rounds_one_at_a_time_give_the_same_margins():
    rounds = [[_tree(), Tree.leaf(0.1)], [Tree.leaf(0.3), _tree()]]
    values = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    step = Forest.of_rounds([]).margins(values, np.array([0.1, 0.2], np.float32))
    for trees in rounds:
        step = Forest.of_rounds([trees]).margins(values, step)
    np.testing.assert_array_equal(step, Forest.of_rounds(rounds).margins(values, np.array([0.1, 0.2], np.float32)))


def test_a_sound_tree_is_accepted():
    _tree().check(2)
    Tree.leaf(3.0).check(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"left": np.array([1, -1, 0, -1, -1], np.int32)},
        {"left": np.array([1, -1, 2, -1, -1], np.int32)},
        {"left": np.array([1, -1, 9, -1, -1], np.int32)},
        {"left": np.array([1, -1, 4, -1, -1], np.int32)},
        {"left": np.array([1, -1, -7, -1, -1], np.int32)},
        {"left": np.array([1, -1, -1, -1, -1], np.int32)},
        {"right": np.array([2, -1, -1, -1, -1], np.int32), "left": np.array([1, -1, -1, -1, -1], np.int32)},
        {"feature": np.array([0, 0, 2, 0, 0], np.int32)},
        {"feature": np.array([-1, 0, 1, 0, 0], np.int32)},
        {"threshold": np.array([NAN, 0, 2, 0, 0], np.float32)},
        {"threshold": np.array([-np.inf, 0, 2, 0, 0], np.float32)},
        {"value": np.array([0, np.inf, 0, 20, 30], np.float32)},
        {"value": np.zeros(4, np.float32)},
        {"value": np.zeros(5, np.float64)},
    ],
)
def test_a_tree_that_is_not_sound_is_refused(changes):
    with pytest.raises(InvalidPayload):
        _tree(**changes).check(2)


def test_a_forest_makes_the_round_trip():
    forest = Forest.of_rounds([[_tree(), Tree.leaf(0.5)]])
    again = Forest.from_arrays(forest.arrays(), features=2, outputs=2)
    assert again.arrays().keys() == forest.arrays().keys()
    for name, array in forest.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
    nothing = Forest.from_arrays(Forest.of_rounds([]).arrays(), features=2, outputs=2)
    assert len(nothing) == 0


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("offsets", np.array([0, 5, 5, 6], np.int64)),
        ("offsets", np.array([0, 3], np.int64)),
        ("offsets", np.array([0, 6], np.int32)),
        ("outputs", np.array([0, 2], np.int32)),
        ("outputs", np.array([-1, 0], np.int32)),
    ],
)
def test_a_forest_that_is_not_sound_is_refused(name, array):
    arrays = Forest.of_rounds([[_tree(), Tree.leaf(0.5)]]).arrays()
    with pytest.raises(InvalidPayload):
        Forest.from_arrays({**arrays, name: array}, features=2, outputs=2)
