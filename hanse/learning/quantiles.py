"""Scores of probabilistic forecasts: the pinball loss, coverage and width of intervals (methods: QS, ICP, MIL).

QS is the mean over windows, steps and quantiles of `max(q e, (q - 1) e)` with `e = y - forecast` (not twice that, as
some authors print it). ICP is the share of truths inside the interval of the outermost quantiles, MIL its mean width.
Truths within `TOUCHING` of an end, in units of the station's level, count as inside: charging demand is often exactly
zero, and so is the lower end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hanse.learning.arrays import Float64

__all__ = ["TOUCHING", "QuantileScores", "nominal_coverage", "pinball", "score_quantiles"]

TOUCHING = 0.005


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantileScores:
    """Scores by window, each float64 [n] (`below` [n, Q]): `qs`, `icp` (a fraction of one) and `mil`, and the share of
    the truths that are at most the forecast of each quantile."""

    qs: Float64
    icp: Float64
    mil: Float64
    below: Float64


def pinball(truth: Float64, forecast: Float64, quantiles: tuple[float, ...]) -> Float64:
    """The pinball loss by window, float64 [n]: truth [n, H], forecast [n, H, Q]."""
    error = truth[:, :, None] - forecast
    q = np.asarray(quantiles)
    loss: Float64 = np.maximum(q * error, (q - 1.0) * error).mean(axis=(1, 2))
    return loss


def nominal_coverage(quantiles: tuple[float, ...]) -> float:
    """The share of truths that should lie between the outermost quantiles."""
    return quantiles[-1] - quantiles[0]


def score_quantiles(truth: Float64, forecast: Float64, quantiles: tuple[float, ...]) -> QuantileScores:
    """Score forecasts in units of the station's level: truth [n, H], forecast [n, H, Q] ascending in Q."""
    low, high = forecast[:, :, 0], forecast[:, :, -1]
    inside = (truth >= low - TOUCHING) & (truth <= high + TOUCHING)
    return QuantileScores(
        qs=pinball(truth, forecast, quantiles),
        icp=inside.mean(axis=1, dtype=np.float64),
        mil=(high - low).mean(axis=1, dtype=np.float64),
        below=(truth[:, :, None] <= forecast).mean(axis=1, dtype=np.float64),
    )
