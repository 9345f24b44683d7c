"""Regular series of demand: the form in which they reach a learner, their scale, and their windows of input and target.

A series has one value a step of 5 to 60 minutes. Its first `training` steps are learned from, the rest is held out.
Everything that is fitted (the scale, the covariates' means) is fitted on the training part alone; a window's inputs end
where its targets begin, so that nothing of the future reaches them.

    values[t - window + 1] … values[t]   |   values[t + 1] … values[t + horizon]
    inputs, `t` being the origin             targets
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hanse.errors import SiteError
from hanse.learning.arrays import Float32, Float64, Int64

__all__ = ["FLOOR", "Series", "SeriesScale", "check_series", "fit_scale", "origins", "standardised_covariates"]

FLOOR = 0.02
"""The least mean difference, in units of the level, that offsets are divided by: a series that hardly moves must not
blow up its own loss. [measured by others; our choice]"""
LEVEL_QUANTILE = 0.99
WEEK_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One station's demand at regular steps.

    `start`: UTC, to the minute, of the first step; `values` float64 [n], NaN where nothing is known; `week_minute`
    int64 [n], the local minute of the week at which each step begins (Monday 00:00 is 0); `covariates` float32 [n, C],
    known up to the origin and no further; `training`: the first so many steps are for training.
    """

    name: str
    start: np.datetime64
    step_minutes: int
    values: Float64
    week_minute: Int64
    training: int
    covariates: Float32
    covariate_names: tuple[str, ...] = ()
    unit: str = "kWh"
    zone: str = ""
    """The station's time zone; empty where times are those of the clock that its records were written by."""

    @property
    def steps_per_day(self) -> int:
        """Steps in 24 hours."""
        return 24 * 60 // self.step_minutes

    def times(self) -> NDArray[np.datetime64]:
        """When each step begins, UTC to the minute, [n]."""
        steps = np.arange(len(self.values)) * np.timedelta64(self.step_minutes, "m")
        times: NDArray[np.datetime64] = self.start.astype("datetime64[m]") + steps
        return times

    def recent(self, weeks: float) -> Series:
        """As if the station had opened so many weeks before the training part ends."""
        first = max(0, self.training - round(weeks * 7 * self.steps_per_day))
        return replace(
            self,
            start=self.times()[first],
            values=self.values[first:],
            week_minute=self.week_minute[first:],
            covariates=self.covariates[first:],
            training=self.training - first,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesScale:
    """What a station's numbers are divided by.

    `level`: its 0.99 quantile of training values that are not zero, in the series' unit: robust against the one
    impossible peak that records often hold. `steps` float64 [horizon]: the mean absolute difference over 1 … horizon
    steps on the training part, in units of the level, at least `FLOOR`.
    """

    level: float
    steps: Float64


def check_series(series: Series, *, minimum: int) -> None:
    """Refuse a series that nothing can be learned from.

    `minimum`: the least number of known training values.

    Raises:
        SiteError: too short, nothing known, or constant on the training part; the sentence names station and row.
    """
    part = series.values[: series.training]
    known = np.flatnonzero(np.isfinite(part))
    where = f"The series of station '{series.name}'"
    if not known.size:
        raise SiteError(
            f"{where} has no value in its training part (rows 1 to {series.training}).",
            code="SERIES_EMPTY",
            remedy="Check the value column, or take the station out.",
        )
    if known.size < minimum:
        raise SiteError(
            f"{where} has {known.size} known values in its training part (rows 1 to {series.training}); "
            f"at least {minimum} are needed.",
            code="SERIES_TOO_SHORT",
            remedy="Wait until the station has a longer history, or hold out less.",
        )
    if float(part[known].max()) == float(part[known].min()):
        raise SiteError(
            f"{where} is constant: every training value from row {known[0] + 1} to row {known[-1] + 1} "
            f"is {part[known[0]]:g}.",
            code="SERIES_CONSTANT",
            remedy="Take the station out until it is in use, or check the value column.",
        )


def fit_scale(series: Series, horizon: int) -> SeriesScale:
    """The scale of a series, from its training part alone."""
    part = series.values[: series.training]
    moving = np.abs(part[np.isfinite(part) & (part != 0)])
    level = float(np.quantile(moving, LEVEL_QUANTILE)) if moving.size else 1.0
    steps = np.full(horizon, FLOOR)
    for ahead in range(1, horizon + 1):
        differences = np.abs(part[ahead:] - part[:-ahead]) if len(part) > ahead else np.empty(0)
        differences = differences[np.isfinite(differences)]
        if differences.size:
            steps[ahead - 1] = max(FLOOR, float(differences.mean()) / level)
    return SeriesScale(level=level, steps=steps)


def origins(series: Series, *, window: int, lags: tuple[int, ...], horizon: int) -> tuple[Int64, Int64]:
    """The origins of whole windows: those to train on, and those held out.

    An origin is for training if its last target is in the training part, and held out if its first target is not; the
    few between are used for neither. Windows with an unknown value among inputs or targets are left out.
    """
    known = np.isfinite(series.values)
    if series.covariates.size:
        known &= np.isfinite(series.covariates).all(axis=1)
    known_value = np.isfinite(series.values)
    back = max([window - 1, *(lag - 1 for lag in lags)])
    candidates = np.arange(back, len(known) - horizon)
    good = np.ones(len(candidates), dtype=np.bool_)
    for offset in range(-window + 1, 1):
        good &= known[candidates + offset]
    for ahead in range(1, horizon + 1):
        good &= known_value[candidates + ahead]
        for lag in lags:
            good &= known_value[candidates + ahead - lag]
    found = candidates[good].astype(np.int64)
    return found[found + horizon < series.training], found[found + 1 >= series.training]


def standardised_covariates(series: Series) -> Float32:
    """Covariates with mean 0 and deviation 1 on the training part, float32 [n, C]; constant ones become 0."""
    if not series.covariates.size:
        return series.covariates.reshape(len(series.values), -1)
    part = series.covariates[: series.training].astype(np.float64)
    known = np.isfinite(part)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, part, 0.0).sum(axis=0) / count
    spread = np.sqrt(np.where(known, (part - mean) ** 2, 0.0).sum(axis=0) / count)
    scaled = (series.covariates - mean) / np.where(spread > 0, spread, np.inf)
    clipped: Float32 = np.clip(scaled, -5.0, 5.0).astype(np.float32)
    return clipped
