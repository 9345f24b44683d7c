"""However the same rows are split into nodes, the model is the same, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.learning.binning import bin_values
from hanse.learning.parameters import BoostingParameters
from tests.unit.learning.data import OBJECTIVES, exact_parameters, random_parts, table
from tests.unit.learning.federation import federation


def _parameters(objective: str, **changes) -> BoostingParameters:
    classes = {"num_class": 3} if objective == "multi:softprob" else {}
    return BoostingParameters(**{"objective": objective, "bins": 24, "max_depth": 4, **classes, **changes})


def _assert_same_forest(a, b):
    for name, array in a.forest.arrays().items():
        np.testing.assert_array_equal(array, b.forest.arrays()[name], err_msg=name)
    np.testing.assert_array_equal(a.base, b.base)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 7),
    st.sampled_from(OBJECTIVES),
    st.sampled_from([0.0, 0.2]),
    st.booleans(),
)
def test_any_partition_of_the_rows_gives_bit_identical_trees(seed, nodes, objective, missing, weighted):
    rng = np.random.default_rng(seed)
    data = table(objective, 300, missing=missing, seed=seed)
    weights = rng.uniform(0.1, 4, 300).astype(np.float32) if weighted else None
    parameters = _parameters(objective)
    one = federation(parameters, data.values, data.labels, weights)
    many = federation(parameters, data.values, data.labels, weights, random_parts(rng, 300, nodes))
    one.run(3)
    many.run(3)
    _assert_same_forest(one, many)


@pytest.mark.parametrize(
    "changes",
    [
        {"edges": "per_class"},
        {"sketch_every": 0},
        {"sketch_every": 2},
        {"subsample": 0.5},
        {"colsample_bytree": 0.4},
        {"edges": "per_class", "colsample_bytree": 0.4, "subsample": 0.7},
        {"base_score": "0.5"},
        {"bin_source": "exact"},
    ],
    ids=str,
)
def test_every_option_keeps_independence_of_the_partition(changes):
    data = table("multi:softprob", 300, missing=0.1)
    parameters = _parameters("multi:softprob", **changes)
    one = federation(parameters, data.values, data.labels)
    many = federation(parameters, data.values, data.labels, parts=random_parts(np.random.default_rng(0), 300, 5))
    one.run(3)
    many.run(3)
    _assert_same_forest(one, many)


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_raw_thresholds_lead_each_row_to_the_leaf_that_its_bins_lead_to(objective, missing):
    """Also for values equal to cuts, negative zeros, and values beyond all that was seen in training."""
    data = table(objective, 400, missing=missing)
    fed = federation(_parameters(objective), data.values, data.labels)
    fed.setup()
    rng = np.random.default_rng(0)
    for round_number in range(3):
        trees = fed.boost(round_number)
        edges = fed.edges[0]
        probe = np.concatenate([data.values, -data.values, np.zeros((1, 5)), np.full((1, 5), -0.0)])
        at_cuts = np.stack([rng.choice(edges.of_feature(f)[:-1], 200) for f in range(5)], axis=1)
        below = np.nextafter(at_cuts, np.float32(-np.inf))
        probe = np.concatenate([probe, at_cuts, below, np.full((1, 5), 1e38), np.full((1, 5), -1e38)])
        probe = np.concatenate([probe, np.full((1, 5), np.nan)]).astype(np.float32)
        bins = bin_values(probe, edges)
        for tree in trees:
            np.testing.assert_array_equal(tree.leaves(probe), _leaves_by_bins(tree, bins, edges))


def _leaves_by_bins(tree, bins, edges):
    """Route a row by comparing its bin id with the id of the threshold's bin."""
    leaves = np.zeros(len(bins), dtype=np.int32)
    for row, ids in enumerate(bins):
        node = 0
        while tree.left[node] != -1:
            feature = tree.feature[node]
            threshold_bin = int(np.searchsorted(edges.of_feature(feature), tree.threshold[node])) + 1
            bin_id = ids[feature]
            left = tree.default_left[node] if bin_id < 0 else bin_id < threshold_bin
            node = tree.left[node] if left else tree.right[node]
        leaves[row] = node
    return leaves


def test_finer_sketches_and_more_bins_approach_the_loss_of_exact_bins():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(1500, 4)).astype(np.float32)
    labels = (np.sin(3 * values[:, 0]) + values[:, 1] * values[:, 2] > 0).astype(np.float32)

    def loss(**changes):
        parameters = BoostingParameters(objective="binary:logistic", max_depth=4, **changes)
        fed = federation(parameters, values, labels)
        margins = fed.run(8).margins(values, fed.base)
        return float(fed.objective.losses(margins, labels).mean())

    exact = loss(bin_source="exact")
    gaps = [
        abs(loss(bins=bins, sketch_accuracy=accuracy) - exact)
        for bins, accuracy in [(3, 0.1), (16, 0.05), (128, 0.01), (2048, 0.001)]
    ]
    assert gaps[0] > gaps[1] > gaps[3]
    assert gaps[2] < 0.2 * gaps[0]
    assert gaps[3] < 0.01


def test_subsampling_takes_about_its_share_and_new_rows_each_round():
    data = table("binary:logistic", 2000)
    fed = federation(_parameters("binary:logistic", subsample=0.3), data.values, data.labels)
    fed.setup()
    draws = []
    for round_number in range(2):
        fed.boost(round_number)
        draws.append(fed.nodes[0].chosen)
    assert abs(draws[0].mean() - 0.3) < 0.04
    assert abs((draws[0] & draws[1]).mean() - 0.09) < 0.03


def test_a_tree_splits_only_its_chosen_columns():
    data = table("multi:softprob", 400)
    fed = federation(exact_parameters("multi:softprob", colsample_bytree=0.2), data.values, data.labels)
    forest = fed.run(6)
    used = [set(tree.feature[tree.left != -1].tolist()) for tree in forest.trees]
    assert all(len(features) <= 1 for features in used)
    assert len(set.union(*used)) == 5


def test_classes_that_some_nodes_lack_do_no_harm():
    data = table("multi:softprob", 300)
    by_class = [np.flatnonzero(data.labels == k) for k in range(3)]
    parameters = _parameters("multi:softprob")
    one = federation(parameters, data.values, data.labels)
    many = federation(parameters, data.values, data.labels, parts=by_class)
    one.run(2)
    many.run(2)
    _assert_same_forest(one, many)


def test_a_constant_and_an_all_missing_column_are_never_split():
    data = table("binary:logistic", 300)
    values = data.values.copy()
    values[:, 3], values[:, 4] = 7.0, np.nan
    fed = federation(_parameters("binary:logistic"), values, data.labels)
    forest = fed.run(3)
    assert fed.edges[0].bins[3:].tolist() == [1, 1]
    assert {f for tree in forest.trees for f in tree.feature[tree.left != -1].tolist()} <= {0, 1, 2}
