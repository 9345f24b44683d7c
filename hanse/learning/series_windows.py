"""Windows of one or several series as rows of numbers: what a forecaster is given, and what it should have said.

Row numbers are places in the series laid end to end, so that one task holds a station, or many. A row's inputs are one
flat float32 vector (see `hanse.learning.forecaster.Layout`):

    window x (value / level, (value - last) / step, sin and cos of the hour and of the week, covariates)
    lags x horizon ((value so many steps before the target - last) / step of that target)

`last` is the value at the origin, unclipped; inputs are clipped so that one impossible peak does not drown a round, and
targets are not. [methods 2.7: measured]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.errors import SiteError
from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.series import WEEK_MINUTES, Series, SeriesScale, fit_scale, origins, standardised_covariates

__all__ = ["SeriesWindows", "WindowShape"]

_LEVEL_CLIP = (-1.0, 3.0)
_OFFSET_CLIP = 10.0


@dataclass(frozen=True, kw_only=True)
class WindowShape:
    """What windows look like: `window` past steps, `lags` before each target, `horizon` steps ahead.

    `in_steps`: offsets in units of the mean difference over so many steps, else of the level.
    """

    window: int
    horizon: int
    lags: tuple[int, ...]
    covariates: tuple[str, ...] = ()
    in_steps: bool = True


class SeriesWindows:
    """The windows of series. `training`, `validation` and `held_out` are int64 row numbers (origins)."""

    def __init__(
        self,
        group: Sequence[Series],
        shape: WindowShape,
        *,
        validation: float,
        scales: Sequence[SeriesScale] | None = None,
    ) -> None:
        """`validation`: the last share of each series' training windows, which is kept apart; `scales`: those that a
        model was trained with, where the series have grown since."""
        self.shape = shape
        self.series = tuple(group)
        self.scales: tuple[SeriesScale, ...] = (
            tuple(scales) if scales is not None else tuple(fit_scale(each, shape.horizon) for each in group)
        )
        lengths = [len(each.values) for each in group]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._owner: Int64 = np.repeat(np.arange(len(lengths)), lengths)
        self._start = starts[:-1]
        self._levels: Float64 = np.array([scale.level for scale in self.scales])
        units = np.stack([scale.steps for scale in self.scales])
        self._steps: Float64 = units if shape.in_steps else np.ones_like(units)
        values = np.concatenate([each.values for each in group])
        self._values: Float64 = values / self._levels[self._owner]
        clock = np.concatenate([_clock(each.week_minute) for each in group])
        self._side: Float32 = np.concatenate([clock, np.concatenate([_chosen(each, shape) for each in group])], axis=1)
        parts: list[tuple[Int64, Int64, Int64]] = []
        for each, start in zip(group, self._start, strict=True):
            train, held = origins(each, window=shape.window, lags=shape.lags, horizon=shape.horizon)
            kept = round(len(train) * (1.0 - validation))
            # Targets of training windows must not reach into the windows that epochs are chosen by.
            first = train[kept] if kept < len(train) else len(each.values)
            parts.append((train[train + shape.horizon <= first] + start, train[kept:] + start, held + start))
        self.training, self.validation, self.held_out = (
            np.concatenate([part[place] for part in parts]) for place in range(3)
        )

    def owners(self, rows: Int64) -> Int64:
        """The number of the series of each row."""
        return self._owner[rows]

    def levels(self, rows: Int64) -> Float64:
        """The level of the series of each row."""
        levels: Float64 = self._levels[self._owner[rows]]
        return levels

    def inputs(self, rows: Int64) -> Float32:
        """Flat inputs float32 [B, width] of rows [B]."""
        shape = self.shape
        places = rows[:, None] + np.arange(1 - shape.window, 1)
        steps, last = self._steps[self._owner[rows]], self._values[rows][:, None]
        values = self._values[places]
        first = np.clip(values, *_LEVEL_CLIP)[:, :, None]
        second = np.clip((values - last) / steps.mean(axis=1, keepdims=True), -_OFFSET_CLIP, _OFFSET_CLIP)[:, :, None]
        window = np.concatenate([first, second, self._side[places]], axis=2, dtype=np.float32)
        flat = [window.reshape(len(rows), -1)]
        ahead = rows[:, None] + np.arange(1, shape.horizon + 1)
        for lag in shape.lags:
            seen = np.clip((self._values[ahead - lag] - last) / steps, -_OFFSET_CLIP, _OFFSET_CLIP)
            flat.append(seen.astype(np.float32))
        return np.concatenate(flat, axis=1)

    def targets(self, rows: Int64) -> Float32:
        """Offsets from the last value in units of the steps, float32 [B, horizon]."""
        ahead = rows[:, None] + np.arange(1, self.shape.horizon + 1)
        offsets = (self._values[ahead] - self._values[rows][:, None]) / self._steps[self._owner[rows]]
        narrow: Float32 = offsets.astype(np.float32)
        return narrow

    def truth(self, rows: Int64) -> Float64:
        """What came, in units of the level, float64 [B, horizon]."""
        truth: Float64 = self._values[rows[:, None] + np.arange(1, self.shape.horizon + 1)]
        return truth

    def absolute(self, rows: Int64, offsets: Float32, *, nonnegative: bool) -> Float64:
        """Offsets [B, horizon, Q] as forecasts in units of the level."""
        steps, last = self._steps[self._owner[rows]][:, :, None], self._values[rows][:, None, None]
        forecast: Float64 = last + offsets.astype(np.float64) * steps
        return np.maximum(forecast, 0.0) if nonnegative else forecast

    def last_origin(self, number: int) -> int:
        """The row of a series' last step, from which its future is forecast.

        Raises:
            SiteError: the last window is not whole.
        """
        series, shape = self.series[number], self.shape
        end = len(series.values) - 1
        back = max([shape.window, *shape.lags])
        part = series.values[max(0, end + 1 - back) :]
        if len(part) < back or not np.isfinite(part).all():
            raise SiteError(
                f"The last {back} steps of station '{series.name}' are not all known "
                f"(rows {end + 2 - back} to {end + 1}).",
                code="SERIES_GAP",
                remedy="Forecast again when the newest records are complete.",
            )
        return int(self._start[number]) + end


def _clock(week_minute: Int64) -> Float32:
    day = 2.0 * np.pi * (week_minute % (24 * 60)) / (24 * 60)
    week = 2.0 * np.pi * week_minute / WEEK_MINUTES
    return np.stack([np.sin(day), np.cos(day), np.sin(week), np.cos(week)], axis=1).astype(np.float32)


def _chosen(series: Series, shape: WindowShape) -> Float32:
    """The job's covariates in the job's order.

    Raises:
        SiteError: the series lacks one.
    """
    for name in shape.covariates:
        if name not in series.covariate_names:
            raise SiteError(
                f"The station '{series.name}' has no covariate '{name}' (it has: "
                f"{', '.join(series.covariate_names) or 'none'}).",
                code="COVARIATE_MISSING",
                remedy="List it under 'covariates' of the dataset in agent.yaml, or take the node out of the job.",
            )
    places = [series.covariate_names.index(name) for name in shape.covariates]
    return standardised_covariates(series)[:, places]
