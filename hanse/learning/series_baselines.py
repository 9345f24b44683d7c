"""The floors that a learned forecaster must beat: persistence and the seasonal naive forecast, with residual quantiles.

Both add to a plain guess (the last value; what was seen a season ago) the quantiles of its own errors on the training
part, step by step ahead. Nothing is trained, nothing is shared.
"""

from __future__ import annotations

import numpy as np

from hanse.learning.arrays import Float64, Int64
from hanse.learning.series import Series

__all__ = ["persistence", "season_length", "seasonal_naive"]


def season_length(series: Series) -> int:
    """Steps of the season: a week where the training part holds at least three, else a day."""
    week = 7 * series.steps_per_day
    return week if series.training >= 3 * week else series.steps_per_day


def persistence(series: Series, rows: Int64, *, horizon: int, quantiles: tuple[float, ...]) -> Float64:
    """The last value stays: forecasts [rows, horizon, Q] in the series' unit, for origins `rows`."""
    ahead = np.arange(1, horizon + 1)
    guess = np.repeat(series.values[rows][:, None], horizon, axis=1)
    before = np.arange(0, max(0, series.training - horizon))
    errors = series.values[before[:, None] + ahead] - series.values[before][:, None]
    return _with_residuals(guess, errors, quantiles)


def seasonal_naive(series: Series, rows: Int64, *, horizon: int, quantiles: tuple[float, ...]) -> Float64:
    """The same as a season ago: forecasts [rows, horizon, Q] in the series' unit, for origins `rows`.

    Where the series does not reach back so far, the last value stays.
    """
    season = season_length(series)
    ahead = np.arange(1, horizon + 1)
    places = rows[:, None] + ahead
    back = places - season * -(-ahead // season)
    guess = np.where(back >= 0, series.values[np.maximum(back, 0)], series.values[rows][:, None])
    before = np.arange(season, max(season, series.training))
    errors = (series.values[before] - series.values[before - season])[:, None].repeat(horizon, axis=1)
    return _with_residuals(guess, errors, quantiles)


def _with_residuals(guess: Float64, errors: Float64, quantiles: tuple[float, ...]) -> Float64:
    known = errors[np.isfinite(errors).all(axis=1)]
    if not len(known):
        known = np.zeros((1, guess.shape[1]))
    spread = np.quantile(known, quantiles, axis=0).T  # [horizon, Q]
    forecast: Float64 = np.maximum(guess[:, :, None] + spread, 0.0)
    return forecast
