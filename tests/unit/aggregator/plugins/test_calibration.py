"""The picture of a forecast's calibration: what was observed, and nothing made up."""

from __future__ import annotations

import numpy as np

from hanse.method import MetricValue, Scope
from hanse_aggregator.plugins.calibration import calibration


def metric(name: str, value: float, scope: Scope = Scope.POOLED, node: str = "") -> MetricValue:
    return MetricValue(name=name, value=value, scope=scope, node=node)


def test_coverage_becomes_one_line_for_each_model_and_scope() -> None:
    picture = calibration(
        [
            metric("coverage_95", 0.9),
            metric("coverage_05", 0.1),
            metric("coverage_2_5", 0.05),
            metric("adapted_coverage_05", 0.06, Scope.UNSEEN),
            metric("coverage_05", 0.5, Scope.NODE, "a"),
            metric("qs", 0.3),
        ]
    )
    assert picture is not None
    assert picture.kind == "series"
    arrays = picture.payload.arrays
    np.testing.assert_allclose(arrays["x"], [0.025, 0.05, 0.95])
    np.testing.assert_allclose(arrays["nominal"], arrays["x"])
    np.testing.assert_allclose(arrays["pooled"], [0.05, 0.1, 0.9])
    np.testing.assert_allclose(arrays["unseen_adapted"], [np.nan, 0.06, np.nan])
    assert set(arrays) == {"x", "nominal", "pooled", "unseen_adapted"}


def test_an_evaluation_of_something_else_has_no_such_picture() -> None:
    assert calibration([metric("accuracy", 0.9), metric("coverage", 0.9)]) is None
