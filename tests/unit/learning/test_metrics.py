from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from hanse.errors import RejectedContribution
from hanse.learning.metrics import Confusion, Ranking, Ratio, add_sums, evaluate, scores
from hanse.learning.objectives import Logistic, Softmax, SquaredError


def test_scores_by_hand():
    confusion = Confusion.of(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 3)
    assert confusion.array.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    assert confusion.accuracy == 0.75
    assert confusion.macro_f1 == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_a_ratio_is_a_mean_of_rows_not_of_nodes():
    pooled = Ratio.of(np.array([1.0, 1.0, 1.0])) + Ratio.of(np.array([0.0]))
    assert (pooled.mean, pooled.rows) == (0.75, 4)
    assert np.isnan(Ratio.of(np.zeros(0)).mean)


def test_scores_equal_those_of_scikit_learn_and_do_not_depend_on_the_partition():
    rng = np.random.default_rng(0)
    margins = rng.normal(size=(300, 5)).astype(np.float32)
    labels = rng.integers(0, 3, 300).astype(np.float32)
    margins[:, 4] = -50
    whole = evaluate(Softmax(5), margins, labels)
    parts = [evaluate(Softmax(5), margins[i], labels[i]) for i in np.array_split(rng.permutation(300), 4)]
    pooled = parts[3]
    for part in parts[:3]:
        pooled = add_sums(pooled, part)
    for name, array in whole.items():
        np.testing.assert_array_equal(pooled[name], array)
    got, predicted = scores(pooled), margins.argmax(axis=1)
    assert got["rows"] == 300
    assert got["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert got["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    p = Softmax(5).predictions(margins).astype(np.float64)
    p /= p.sum(axis=1, keepdims=True)
    assert got["log_loss"] == pytest.approx(log_loss(labels, p, labels=range(5)), rel=1e-5)


def test_the_area_under_the_curve_is_scikit_learns_up_to_bins():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 500).astype(np.float32)
    margins = (rng.normal(size=500) + labels).astype(np.float32)[:, None]
    halves = [evaluate(Logistic(), margins[i], labels[i]) for i in (slice(0, 100), slice(100, None))]
    assert scores(add_sums(*halves))["auc"] == pytest.approx(roc_auc_score(labels, margins[:, 0]), abs=1e-3)
    assert Ranking.of(np.array([0, 1, 1], np.float32), np.array([0.2, 0.2, 1.0], np.float32)).auc == 0.75
    assert np.isnan(Ranking.of(np.zeros(2, np.float32), np.zeros(2, np.float32)).auc)


def test_regression_scores():
    sums = evaluate(SquaredError(), np.array([[1.0], [5.0]], np.float32), np.array([2.0, 2.0], np.float32))
    assert scores(sums) == {"rows": 2, "mse": 5.0, "rmse": pytest.approx(5**0.5)}


def test_sums_of_different_kinds_are_not_added():
    margins = np.zeros((1, 2), np.float32)
    with pytest.raises(RejectedContribution):
        add_sums(
            evaluate(Softmax(2), margins, np.zeros(1, np.float32)),
            evaluate(SquaredError(), margins[:, :1], np.zeros(1, np.float32)),
        )
