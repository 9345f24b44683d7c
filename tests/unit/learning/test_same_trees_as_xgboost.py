"""Comparison with the installed xgboost on raw rows.

The reference gets the same gradients, rounded to the same grid, through `Booster.boost`, and exact bins on
both sides. Then structure, features, thresholds and default directions are equal, not merely close; gains and
leaves are equal up to float32. One threshold differs by design: XGBoost separates present from missing values
at `max + (|max| + 1e-5)`, we at the largest float32. `exact` puts thresholds midway between values, so there
only structure and gains are compared.
"""

from __future__ import annotations

import numpy as np
import pytest
import xgboost

from tests.unit.learning.data import (
    OBJECTIVES,
    Reference,
    Table,
    assert_same_tree,
    exact_parameters,
    random_parts,
    table,
)
from tests.unit.learning.federation import federation

REGULARISERS = [
    {"reg_lambda": 0.0, "min_child_weight": 0.0},
    {"reg_lambda": 10.0},
    {"reg_alpha": 2.0},
    {"gamma": 3.0},
    {"min_child_weight": 20.0},
    {"max_delta_step": 0.1},
    {"max_delta_step": 0.3, "reg_alpha": 0.5, "reg_lambda": 2.0, "gamma": 0.1},
    {"max_leaves": 5, "max_depth": 6},
    {"eta": 1.0, "max_depth": 2},
]


def _compare(parameters, data, rounds=4, tree_method="hist", thresholds=True, weights=None):
    parts = random_parts(np.random.default_rng(3), len(data.labels), 3)
    ours = federation(parameters, data.values, data.labels, weights=weights, parts=parts)
    ours.setup()
    reference = Reference(ours, data, tree_method)
    split_nodes = 0
    for round_number in range(rounds):
        trees = ours.boost(round_number)
        for tree, other in zip(trees, reference.boost(round_number, weights), strict=True):
            assert_same_tree(tree, other, thresholds=thresholds)
            split_nodes += int((tree.left != -1).sum())
    margins = ours.forest.margins(data.values, ours.base)
    np.testing.assert_allclose(margins, reference.margins, atol=1e-5 * max(1.0, np.abs(margins).max()))
    return split_nodes


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tree_method", ["hist", "approx"])
def test_trees_equal_those_of_hist_and_approx(objective, missing, tree_method):
    data = table(objective, 800, missing=missing)
    assert _compare(exact_parameters(objective), data, tree_method=tree_method) > 30


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_structure_and_gains_equal_those_of_exact(objective):
    data = table(objective, 500)
    _compare(exact_parameters(objective), data, rounds=2, tree_method="exact", thresholds=False)


@pytest.mark.parametrize("settings", REGULARISERS, ids=str)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_every_regulariser_acts_as_in_xgboost(settings, missing):
    objective = "multi:softprob" if "max_delta_step" in settings else "binary:logistic"
    data = table(objective, 600, missing=missing, seed=7)
    assert _compare(exact_parameters(objective, **settings), data, rounds=3) > 0


def test_instance_weights_act_as_in_xgboost():
    data = table("multi:softprob", 600, missing=0.1, seed=11)
    weights = np.random.default_rng(0).choice([0.25, 1.0, 3.0], size=600).astype(np.float32)
    assert _compare(exact_parameters("multi:softprob"), data, weights=weights) > 30


def test_a_split_between_present_and_missing_has_the_largest_float_as_threshold():
    values = np.array([[1.0], [1.0], [np.nan], [np.nan]] * 10, dtype=np.float32)
    labels = np.array([0, 0, 1, 1] * 10, dtype=np.float32)
    tree = federation(exact_parameters("binary:logistic"), values, labels).run(1).trees[0]
    assert tree.left.tolist() == [1, -1, -1]
    assert tree.threshold[0] == np.finfo(np.float32).max
    assert not tree.default_left[0]
    assert tree.predict(values)[0] < 0 < tree.predict(values)[2]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_whole_run_stays_as_close_to_central_xgboost_as_rounding_allows(objective):
    data = table(objective, 1500, seed=5)
    parameters = exact_parameters(objective)
    ours = federation(parameters, data.values, data.labels)
    margins = ours.run(10).margins(data.values, ours.base)
    settings = {"objective": objective, "max_depth": 4, "tree_method": "hist", "max_bin": 4096, "nthread": 1}
    if parameters.num_class:
        settings["num_class"] = parameters.num_class
    matrix = xgboost.DMatrix(data.values, label=data.labels)
    central = xgboost.train(settings, matrix, 10).predict(matrix, output_margin=True).reshape(margins.shape)
    # Near-ties may fall differently after rounding to 2^-20; the fit as a whole may not.
    difference = np.abs(margins - central) / np.std(central)
    assert np.mean(difference < 1e-3) > 0.95
    loss, reference = (ours.objective.losses(m, data.labels).mean() for m in (margins, central))
    assert loss == pytest.approx(reference, rel=2e-3)


def test_many_rows_in_one_bin_are_summed_exactly():
    """100,000 rows in four atoms: sums beyond float32's 24 bits reach XGBoost in parts."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2, size=(100_000, 2)).astype(np.float32)
    labels = (rng.random(100_000) < 0.3 + 0.2 * values[:, 0]).astype(np.float32)
    data = Table(values, labels)
    ours = federation(exact_parameters("binary:logistic"), values, labels)
    ours.setup()
    reference = Reference(ours, data)
    for round_number in range(3):
        (tree,) = ours.boost(round_number)
        (other,) = reference.boost(round_number)
        np.testing.assert_array_equal(tree.value[tree.left == -1], other.condition[tree.left == -1].astype(np.float32))
        np.testing.assert_array_equal(tree.gain, np.where(tree.left != -1, other.gain, 0).astype(np.float32))
    assert len(ours.atoms) == 4


@pytest.mark.parametrize("bins", [2, 64, 255, 256, 257, 512])
def test_every_bin_id_is_a_bin_of_its_own_for_xgboost(bins):
    """Each bin has a value of its own, and a deep tree without penalties finds all of them."""
    values = np.tile(np.arange(bins, dtype=np.float32), 400)[:, None]
    labels = values[:, 0]
    parameters = exact_parameters("reg:squarederror", max_depth=16, min_child_weight=0.0, reg_lambda=0.0, eta=1.0)
    ours = federation(parameters, values, labels)
    tree = ours.run(1).trees[0]
    assert sorted(tree.threshold[tree.left != -1].tolist()) == list(range(1, bins))
    np.testing.assert_allclose(ours.forest.margins(values, ours.base)[:, 0], labels, atol=1e-4)
    (other,) = Reference(ours, Table(values, labels)).boost(0)
    assert_same_tree(tree, other)
