"""Evaluations of quantile forecasts: beside the figures, a picture of how often the truth lay below each quantile."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from hanse.evaluation import EvaluationAggregation
from hanse.method import MetricValue, Outcome, Picture, Scope
from hanse.payload.documents import document_payload

_COVERAGE = re.compile(r"(?:(?P<model>[a-z]+)_)?coverage_(?P<percent>\d+(?:_\d+)?)")


class CalibratedEvaluation(EvaluationAggregation):
    """An evaluation whose nodes may send `coverage_05`, `coverage_50` …: the share of truths below that quantile."""

    def finish(self) -> Outcome:
        """The evaluation's outcome, with the picture where there is anything to draw."""
        outcome = super().finish()
        picture = calibration(outcome.metrics)
        return outcome if picture is None else dataclasses.replace(outcome, pictures=(*outcome.pictures, picture))


def calibration(metrics: Sequence[MetricValue]) -> Picture | None:
    """Nominal against observed coverage, pooled and of unseen nodes, for each model that was judged; None without any.

    A figure with a prefix (`adapted_coverage_05`) is of another model than the one that nodes use.
    """
    lines: dict[str, dict[float, float]] = {}
    for metric in metrics:
        found = _COVERAGE.fullmatch(metric.name)
        if found is None or metric.scope not in (Scope.POOLED, Scope.UNSEEN):
            continue
        name = "_".join(filter(None, (metric.scope.value, found["model"])))
        lines.setdefault(name, {})[float(found["percent"].replace("_", ".")) / 100.0] = metric.value
    nominal = sorted({quantile for line in lines.values() for quantile in line})
    if not nominal:
        return None
    x = np.array(nominal)
    arrays = {"x": x, "nominal": x} | {
        name: np.array([line.get(quantile, np.nan) for quantile in nominal]) for name, line in sorted(lines.items())
    }
    return Picture(
        name="calibration",
        kind="series",
        title="How often the truth lay below each quantile (a calibrated forecast follows `nominal`)",
        payload=document_payload("picture", {"x_title": "quantile"}, arrays),
    )
