"""Histograms give the trees that atoms give, bit for bit, gains and leaves included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import RejectedContribution
from hanse.learning import split_finder
from hanse.learning.arrays import FLOAT32_MAX
from hanse.learning.bin_edges import BinEdges
from hanse.learning.histograms import Histograms, histograms
from hanse.learning.parameters import BoostingParameters
from tests.unit.learning.data import OBJECTIVES, random_parts, table
from tests.unit.learning.federation import federation

SETTINGS = [
    {},
    {"reg_lambda": 0.0, "min_child_weight": 0.0},
    {"reg_lambda": 10.0, "eta": 0.1},
    {"reg_alpha": 2.0},
    {"gamma": 3.0},
    {"min_child_weight": 20.0},
    {"max_delta_step": 0.1},
    {"max_delta_step": 0.3, "reg_alpha": 0.5, "reg_lambda": 2.0, "gamma": 0.1},
    {"max_leaves": 5, "max_depth": 6},
    {"max_leaves": 11, "max_depth": 8},
    {"max_depth": 1},
    {"max_depth": 10, "min_child_weight": 0.0},
    {"subsample": 0.5, "colsample_bytree": 0.5},
    {"edges": "per_class"},
    {"sketch_every": 0},
]


def _edges(bins: int, features: int) -> BinEdges:
    return BinEdges.of([np.append(np.arange(1, bins, dtype=np.float32), FLOAT32_MAX)] * features)


def _compare(objective, data, parts, weights=None, rounds=3, **changes):
    classes = {"num_class": 3} if objective == "multi:softprob" else {}
    parameters = BoostingParameters(**{"objective": objective, "bins": 32, "max_depth": 5, **classes, **changes})
    by_atoms = federation(parameters, data.values, data.labels, weights, parts)
    by_histograms = federation(parameters, data.values, data.labels, weights, parts, "histograms")
    expected = by_atoms.run(rounds).arrays()
    for name, array in by_histograms.run(rounds).arrays().items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    return by_atoms.forest


def test_histograms_by_hand():
    bins = np.array([[0, 1], [1, -1], [0, 0], [1, 1]], dtype=np.int32)
    position = np.array([1, 1, 2, 1], dtype=np.int32)
    got = histograms(
        bins, _edges(2, 2), position, np.array([1], np.int32), np.array([5, -7, 100, 1]), np.array([1, 2, 3, 4])
    )
    assert got.sums.tolist() == [[[5, -6, 0, 6], [1, 6, 0, 5]]]
    assert got.totals.tolist() == [[-1, 7]]


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_histograms_give_the_trees_of_atoms(objective, missing, changes):
    data = table(objective, 700, missing=missing, seed=9)
    forest = _compare(objective, data, random_parts(np.random.default_rng(0), 700, 3), **changes)
    assert any(len(tree) > 1 for tree in forest.trees)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    objective=st.sampled_from(OBJECTIVES),
    missing=st.sampled_from([0.0, 0.1, 0.6]),
    rows=st.integers(20, 400),
    weighted=st.booleans(),
    bins=st.integers(2, 64),
    reg_alpha=st.sampled_from([0.0, 0.3]),
    max_delta_step=st.sampled_from([0.0, 0.0, 0.2]),
    min_child_weight=st.sampled_from([0.0, 1.0, 3.0]),
    reg_lambda=st.sampled_from([0.0, 1.0]),
)
def test_any_data_and_any_regulariser_give_the_same_trees_both_ways(
    seed, objective, missing, rows, weighted, **changes
):
    rng = np.random.default_rng(seed)
    data = table(objective, rows, missing=missing, features=4, seed=seed)
    weights = rng.uniform(0.1, 4, rows).astype(np.float32) if weighted else None
    _compare(objective, data, random_parts(rng, rows, 2), weights, rounds=2, **changes)


def test_searching_nodes_in_blocks_changes_nothing(monkeypatch):
    data = table("binary:logistic", 500, missing=0.1)
    monkeypatch.setattr(split_finder, "_CELLS_AT_ONCE", 1)
    _compare("binary:logistic", data, random_parts(np.random.default_rng(0), 500, 2))


def test_histograms_make_the_round_trip_in_the_width_that_fits():
    small = Histograms(np.array([[[1, -2], [3, 4]]]), np.array([[-1, 7]]))
    assert small.arrays()["sums"].dtype == np.int32
    large = Histograms(np.array([[[1, -(2**40)], [3, 4]]]), np.array([[1, 7]]))
    assert large.arrays()["sums"].dtype == np.int64
    for one in (small, large):
        again = Histograms.from_arrays(one.arrays(), edges=_edges(2, 1), nodes=1)
        np.testing.assert_array_equal(again.sums, one.sums)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"sums": np.zeros((1, 2, 3), np.int64), "totals": np.zeros((1, 2), np.int64)},
        {"sums": np.zeros((1, 2, 2)), "totals": np.zeros((1, 2), np.int64)},
        {"sums": np.array([[[0, 0], [-1, 0]]]), "totals": np.zeros((1, 2), np.int64)},
        {"sums": np.array([[[0, 0], [9, 0]]]), "totals": np.array([[0, 8]])},
    ],
)
def test_arrays_that_are_no_histograms_are_rejected(arrays):
    with pytest.raises(RejectedContribution):
        Histograms.from_arrays(arrays, edges=_edges(2, 1), nodes=1)
