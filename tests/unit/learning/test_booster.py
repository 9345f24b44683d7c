"""The export, read by the installed xgboost."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xgboost

from hanse.errors import InvalidPayload, MethodError
from hanse.learning.booster import to_booster, to_json, to_ubjson
from hanse.learning.objectives import Softmax
from hanse.learning.trees import Forest, Tree
from tests.unit.learning.data import OBJECTIVES, exact_parameters, table
from tests.unit.learning.federation import federation

NAMES = ["pulse", "pressure", "temperature", "age", "height"]


def _trained(objective, missing=0.0):
    data = table(objective, 400, missing=missing)
    fed = federation(exact_parameters(objective), data.values, data.labels)
    fed.run(5)
    return fed, data


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("form", ["json", "ubj"])
def test_xgboost_predicts_what_we_predict(objective, missing, form, tmp_path):
    fed, data = _trained(objective, missing)
    write = to_json if form == "json" else to_ubjson
    path = tmp_path / f"model.{form}"
    path.write_bytes(write(fed.forest, fed.base, NAMES, fed.objective))
    booster = xgboost.Booster(model_file=path)
    matrix = xgboost.DMatrix(data.values, feature_names=NAMES)
    margins = fed.forest.margins(data.values, fed.base)
    theirs = booster.predict(matrix, output_margin=True).reshape(margins.shape)
    np.testing.assert_allclose(theirs, margins, atol=1e-6)
    predicted = fed.objective.predictions(margins)
    if objective == "binary:logistic":
        predicted = predicted[:, 1:]
    np.testing.assert_allclose(booster.predict(matrix).reshape(predicted.shape), predicted, atol=1e-6)


def test_the_export_carries_names_and_importance_but_no_hessian_sums():
    fed, _ = _trained("multi:softprob")
    booster = to_booster(fed.forest, fed.base, NAMES, fed.objective)
    assert booster.feature_names == NAMES
    gains = booster.get_score(importance_type="total_gain")
    assert max(gains, key=gains.get) == "pulse"
    assert booster.num_boosted_rounds() == 6
    trees = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"]
    assert not any(sum(tree["sum_hessian"]) for tree in trees)


def test_ubjson_loses_nothing():
    fed, _ = _trained("binary:logistic", missing=0.2)
    again = xgboost.Booster()
    again.load_model(bytearray(to_ubjson(fed.forest, fed.base, NAMES, fed.objective)))
    first = to_booster(fed.forest, fed.base, NAMES, fed.objective)
    assert bytes(again.save_raw("json")) == bytes(first.save_raw("json"))


def test_the_same_model_gives_the_same_bytes():
    fed, _ = _trained("reg:squarederror")
    assert to_ubjson(fed.forest, fed.base, NAMES, fed.objective) == to_ubjson(
        fed.forest, fed.base, NAMES, fed.objective
    )


def test_characters_that_xgboost_forbids_in_names_are_replaced():
    document = to_json(Forest.of_rounds([]), np.zeros(2, np.float32), ["a[mV]", "b<2"], Softmax(2))
    booster = xgboost.Booster()
    booster.load_model(bytearray(document))
    assert booster.feature_names == ["a(mV)", "b_2"]


def test_incomplete_rounds_and_unsound_trees_are_refused():
    with pytest.raises(MethodError, match="whole rounds"):
        to_json(Forest.of_rounds([[Tree.leaf(1.0)]]), np.zeros(2, np.float32), ["a"], Softmax(2))
    broken = Tree.leaf(float("nan"))
    with pytest.raises(InvalidPayload):
        to_json(Forest.of_rounds([[broken, broken]]), np.zeros(2, np.float32), ["a"], Softmax(2))
