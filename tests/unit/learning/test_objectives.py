"""Gradients, base margins and predictions, against hand-worked numbers and against xgboost."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xgboost

from hanse.errors import MethodError, RejectedContribution, SiteError
from hanse.learning.fixed_point import Grid
from hanse.learning.objectives import Logistic, Softmax, SquaredError, check_labels, rounded_gradients
from hanse.learning.parameters import BoostingParameters
from hanse.learning.setup_sums import SetupSums
from tests.unit.learning.data import OBJECTIVES, exact_parameters, random_parts, table
from tests.unit.learning.federation import federation


def test_logistic_by_hand():
    gradient, hessian = Logistic().gradients(np.zeros((2, 1), np.float32), np.array([0, 1], np.float32), None)
    assert gradient[:, 0].tolist() == [0.5, -0.5]
    assert hessian[:, 0].tolist() == [0.25, 0.25]


def test_softmax_by_hand_has_the_factor_two():
    margins = np.log(np.array([[1, 2, 1]], dtype=np.float32))
    gradient, hessian = Softmax(3).gradients(margins, np.array([1], np.float32), np.array([2], np.float32))
    np.testing.assert_allclose(gradient, [[0.5, -1.0, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(hessian, [[0.75, 1.0, 0.75]], rtol=1e-6)


def test_squared_error_by_hand():
    gradient, hessian = SquaredError().gradients(
        np.array([[3.0]], np.float32), np.array([1.0], np.float32), np.array([4.0], np.float32)
    )
    assert gradient.tolist() == [[8.0]]
    assert hessian.tolist() == [[4.0]]


def test_a_confident_row_keeps_an_integer_hessian_of_one():
    margins = np.array([[60.0, -60.0]], dtype=np.float32)
    _, hessian = rounded_gradients(Softmax(2), margins, np.zeros(1, np.float32), None, Grid())
    assert hessian.tolist() == [[1, 1]]


@pytest.mark.parametrize("rows", [1, 3, 7, 16, 17])
def test_a_rows_gradient_does_not_depend_on_the_rows_beside_it(rows):
    rng = np.random.default_rng(0)
    margins = rng.normal(scale=3, size=(50, 7)).astype(np.float32)
    labels = rng.integers(0, 7, 50).astype(np.float32)
    whole = Softmax(7).gradients(margins, labels, None)
    part = Softmax(7).gradients(np.ascontiguousarray(margins[:rows]), labels[:rows], None)
    np.testing.assert_array_equal(part[0], whole[0][:rows])
    np.testing.assert_array_equal(part[1], whole[1][:rows])


def _base_score(objective, labels, weights, classes):
    settings = {"objective": objective, "max_depth": 1, "nthread": 1}
    if classes:
        settings["num_class"] = classes
    matrix = xgboost.DMatrix(np.zeros((len(labels), 1)), label=labels, weight=weights)
    config = json.loads(xgboost.train(settings, matrix, 1).save_config())
    return np.array(json.loads(config["learner"]["learner_model_param"]["base_score"]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_base_margins_equal_those_of_xgboost(objective, weighted):
    data = table(objective, 300)
    weights = np.random.default_rng(5).uniform(0.1, 3, 300).astype(np.float32) if weighted else None
    ours = federation(exact_parameters(objective), data.values, data.labels, weights=weights)
    ours.setup()
    expected = _base_score(objective, data.labels, weights, ours.parameters.num_class)
    if objective == "binary:logistic":
        expected = np.log(expected / (1 - expected))
    np.testing.assert_allclose(ours.base, expected, rtol=2e-6, atol=1e-6)


def test_a_class_that_nobody_has_gets_xgboosts_base_margin():
    labels = np.repeat([0.0, 1.0, 2.0], [57, 186, 57]).astype(np.float32)
    parameters = BoostingParameters(objective="multi:softprob", num_class=4)
    ours = federation(parameters, np.zeros((300, 1), np.float32), labels)
    ours.setup()
    np.testing.assert_allclose(ours.base, _base_score("multi:softprob", labels, None, 4), rtol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_predictions_equal_those_of_xgboost(objective):
    data = table(objective, 200)
    settings = {"objective": objective, "nthread": 1}
    if objective == "multi:softprob":
        settings["num_class"] = 3
    matrix = xgboost.DMatrix(data.values, label=data.labels)
    booster = xgboost.train(settings, matrix, 5)
    margins = booster.predict(matrix, output_margin=True).reshape(200, -1)
    made = federation(exact_parameters(objective), data.values, data.labels)
    made.setup()
    predicted = made.objective.predictions(margins)
    if objective == "binary:logistic":
        predicted = predicted[:, 1:]
    np.testing.assert_allclose(predicted, booster.predict(matrix).reshape(predicted.shape), atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_equal_those_of_xgboost(objective):
    data = table(objective, 200)
    settings = {"objective": objective, "nthread": 1}
    metric = {"binary:logistic": "logloss", "multi:softprob": "mlogloss", "reg:squarederror": "rmse"}[objective]
    if objective == "multi:softprob":
        settings["num_class"] = 3
    matrix = xgboost.DMatrix(data.values, label=data.labels)
    booster = xgboost.train({**settings, "eval_metric": metric}, matrix, 5)
    expected = float(booster.eval(matrix).split(":")[-1])
    made = federation(exact_parameters(objective), data.values, data.labels)
    made.setup()
    margins = booster.predict(matrix, output_margin=True).reshape(200, -1)
    mean = made.objective.losses(margins, data.labels).mean()
    assert (np.sqrt(mean) if metric == "rmse" else mean) == pytest.approx(expected, rel=1e-4)


def test_setup_sums_do_not_depend_on_the_partition():
    rng = np.random.default_rng(2)
    data = table("reg:squarederror", 200, missing=0.2)
    values = data.values * np.float32(1e3) ** rng.integers(-3, 4, size=5).astype(np.float32)
    weights = rng.uniform(0.01, 100, 200).astype(np.float32)
    whole = SetupSums.of(SquaredError(), values, data.labels, weights)
    total = None
    for part in random_parts(rng, 200, 5):
        sums = SetupSums.of(SquaredError(), values[part], data.labels[part], weights[part])
        total = sums if total is None else total + sums
    np.testing.assert_array_equal(total.centres(), whole.centres())
    np.testing.assert_allclose(whole.centres(), np.nanmean(values.astype(np.float64), axis=0), rtol=1e-12)
    assert total.grid(SquaredError()) == whole.grid(SquaredError())
    parameters = exact_parameters("reg:squarederror")
    assert total.base_margins(SquaredError(), parameters) == whole.base_margins(SquaredError(), parameters)


def test_setup_arrays_make_the_round_trip_and_are_checked():
    data = table("multi:softprob", 50)
    sums = SetupSums.of(Softmax(3), data.values, data.labels, None)
    again = SetupSums.from_arrays(sums.arrays(), features=5, objective=Softmax(3))
    np.testing.assert_array_equal(again.centres(), sums.centres())
    with pytest.raises(RejectedContribution, match="class_weights"):
        SetupSums.from_arrays(sums.arrays(), features=5, objective=Softmax(4))


def test_class_weights_that_do_not_add_up_are_rejected():
    data = table("multi:softprob", 50)
    arrays = SetupSums.of(Softmax(3), data.values, data.labels, None).arrays()
    with pytest.raises(RejectedContribution, match="add up"):
        SetupSums.from_arrays({**arrays, "weight_sum": -arrays["weight_sum"]}, features=5, objective=Softmax(3))


def test_no_rows_at_all_is_an_error_with_a_remedy():
    sums = SetupSums.of(Logistic(), np.zeros((0, 2), np.float32), np.zeros(0, np.float32), None)
    assert sums.centres().tolist() == [0.0, 0.0]
    with pytest.raises(MethodError, match="No node has a row"):
        sums.grid(Logistic())


def test_the_grid_follows_weights_and_targets_by_powers_of_two():
    y = np.array([1000.0, 1008.0], dtype=np.float32)
    values = np.zeros((2, 1), np.float32)
    assert SetupSums.of(SquaredError(), values, y, None).grid(SquaredError()) == Grid(gradient=-18, hessian=-20)
    light = np.full(2, 0.001, dtype=np.float32)
    ones = np.ones(2, np.float32)
    assert SetupSums.of(Logistic(), values, ones, light).grid(Logistic()) == Grid(gradient=-29, hessian=-29)


@pytest.mark.parametrize("label", [3.0, -1.0, 0.5, np.nan, np.inf])
def test_a_label_out_of_range_is_refused_with_its_row(label):
    with pytest.raises(SiteError, match=r"row 1 .*0 to 2"):
        check_labels(Softmax(3), np.array([0, label], np.float32), None)


def test_a_weight_that_is_not_positive_is_refused():
    with pytest.raises(SiteError, match="instance weight of row 0"):
        check_labels(Logistic(), np.ones(2, np.float32), np.array([0, 1], np.float32))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "binary:logistic", "colsample_bylevel": 0.5}, "colsample_bytree"),
        ({"objective": "binary:logistic", "max_bin": 64}, "bins"),
        ({"objective": "binary:logistic", "lamda": 1}, "lamda"),
        ({"objective": "binary:logistic", "num_class": 2}, "num_class"),
        ({"objective": "multi:softprob"}, "num_class"),
        ({"objective": "rank:ndcg"}, "binary:logistic"),
        ({"objective": "binary:logistic", "eta": float("nan")}, "eta"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused_with_a_reason(settings, words):
    with pytest.raises(ValueError, match=words):
        BoostingParameters(**settings)


def test_parameters_take_xgboosts_names():
    parameters = BoostingParameters(**{"objective": "reg:squarederror", "lambda": 2, "alpha": 1})
    assert (parameters.reg_lambda, parameters.reg_alpha) == (2, 1)
