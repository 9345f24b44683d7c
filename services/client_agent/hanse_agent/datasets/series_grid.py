"""From rows with a time and a value to a regular series: what is repaired, what is refused, and what is told of it.

Repaired and counted: rows out of order, the same row twice, short gaps, hours that the clock shows twice or never.
Refused, with station and row: two values for one time, a time between two steps, values below zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.errors import SiteError
from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.series import Series, check_series
from hanse.method import Column, DatasetDescription
from hanse.settings import Settings
from hanse_agent.datasets.series_time import MISSING, to_utc, week_minutes

__all__ = [
    "Negative",
    "Repairs",
    "Rows",
    "SeriesOptions",
    "Twice",
    "described",
    "fill_short_gaps",
    "finished",
    "on_grid",
]

Negative = Literal["refuse", "zero", "missing", "keep"]
Twice = Literal["refuse", "first", "mean", "sum"]
STEPS = (5, 6, 10, 12, 15, 20, 30, 60)
"""Minutes that a step may have."""
MOST_STEPS = 5_000_000
"""A series longer than this (47 years of 5 minutes) is a wrong year in some row."""


class SeriesOptions(Settings):
    """What all datasets of series have in their block in `agent.yaml`."""

    path: Path
    """The file, or the folder."""
    station: str = Field("", max_length=200)
    """What messages and forecasts call the station; the dataset's name when left out."""
    unit: str = Field("kWh", max_length=20)
    """The unit of the values."""
    holdout: float = Field(0.2, gt=0, lt=1)
    """Share of the last steps that is kept for evaluation and never trained on."""
    fill_gaps: int = Field(3, ge=0)
    """Gaps of at most so many steps are filled by straight lines; windows with a longer one are left out."""
    minimum_days: float = Field(7, gt=0)
    """A station with fewer days of known values in its training part is refused."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of a station's table: `local` seconds int64 [n] (UTC where `absolute`), `values` float64 [n] and
    `covariates` float32 [n, C], NaN where missing."""

    station: str
    local: Int64
    absolute: bool
    values: Float64
    covariates: Float32
    covariate_names: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Repairs:
    """How many rows or steps each repair concerned."""

    counts: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, count: int) -> None:
        """Add to a count; nothing is noted where nothing was done."""
        if count:
            self.counts[what] = self.counts.get(what, 0) + int(count)

    def facts(self) -> dict[str, str]:
        """As facts of a dataset's description."""
        return {f"repaired_{name}": str(count) for name, count in sorted(self.counts.items())}


def on_grid(
    rows: Rows, *, zone: str, step_minutes: int | None, negative: Negative, twice: Twice, repairs: Repairs
) -> tuple[np.datetime64, int, Float64, Float32]:
    """The grid's start (UTC), step in minutes, values [n] and covariates [n, C], NaN where there was no row.

    Raises:
        SiteError: see the module; the sentence names station and row.
    """
    values = _not_negative(rows, negative, repairs)
    utc, order = _in_order(rows, zone, repairs)
    rows_of, utc = order, utc[order]
    step = step_minutes or _usual_step(rows.station, utc)
    place = utc - utc[0]
    off = place % (60 * step) != 0
    if off.any():
        raise _refusal(
            rows.station,
            rows_of[int(np.argmax(off))],
            f"lies between two steps of {step} minutes",
            code="SERIES_IRREGULAR",
            remedy="Give the right 'step', or bring the table to regular times first.",
        )
    cells = place // (60 * step)
    if int(cells[-1]) >= MOST_STEPS:
        raise _refusal(
            rows.station,
            rows_of[-1],
            f"lies {int(cells[-1]):,} steps after the first one",
            code="SERIES_TOO_LONG",
            remedy="Look for a wrong year.",
        )
    kept = _once(rows, values, cells, rows_of, twice, repairs)
    count = int(cells[-1]) + 1
    series, side = np.full(count, np.nan), np.full((count, rows.covariates.shape[1]), np.nan, dtype=np.float32)
    for place_of, value in kept.items():
        series[place_of] = value
    side[cells] = rows.covariates[rows_of]
    return np.datetime64(int(utc[0]) // 60, "m"), step, series, side


def finished(
    station: str,
    start: np.datetime64,
    step: int,
    values: Float64,
    covariates: Float32,
    *,
    covariate_names: tuple[str, ...],
    zone: str,
    options: SeriesOptions,
    repairs: Repairs,
) -> Series:
    """A series to learn from: short gaps filled, the local clock beside it, and refused where it is worth nothing.

    Raises:
        SiteError: constant, without values, or too short.
    """
    values, filled = fill_short_gaps(values, options.fill_gaps)
    repairs.note("filled_steps", filled)
    repairs.note("missing_steps", int(np.isnan(values).sum()))
    for column in range(covariates.shape[1]):
        covariates[:, column] = fill_short_gaps(covariates[:, column].astype(np.float64), options.fill_gaps)[0]
    seconds = start.astype("datetime64[s]").astype(np.int64) + 60 * step * np.arange(len(values), dtype=np.int64)
    series = Series(
        name=station,
        start=start,
        step_minutes=step,
        values=values,
        week_minute=week_minutes(seconds, zone),
        training=len(values) - int(np.ceil(len(values) * options.holdout - 1e-9)),
        covariates=covariates,
        covariate_names=covariate_names,
        unit=options.unit,
        zone=zone,
    )
    check_series(series, minimum=max(2, round(options.minimum_days * series.steps_per_day)))
    return series


def described(name: str, kind: str, series: Series, facts: Mapping[str, str]) -> DatasetDescription:
    """What a node tells of a series: its length, step and repairs, never a value."""
    columns = [Column(name=each, dtype="float32") for each in series.covariate_names]
    return DatasetDescription(
        name=name,
        kind=kind,
        rows=len(series.values),
        columns=(*columns, Column(name="value", dtype="float64")),
        target="value",
        facts={"step_minutes": str(series.step_minutes), "unit": series.unit, **facts},
    )


def fill_short_gaps(values: Float64, most: int) -> tuple[Float64, int]:
    """Stretches of at most so many unknown steps, between known ones, by straight lines; and how many steps were."""
    unknown = np.isnan(values)
    if not unknown.any() or unknown.all() or not most:
        return values, 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], unknown, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    short = (ends - begins <= most) & (begins > 0) & (ends < len(values))
    chosen = np.zeros(len(values) + 1, dtype=np.int64)
    chosen[begins[short]] += 1
    chosen[ends[short]] -= 1
    inside: NDArray[np.bool_] = np.cumsum(chosen[:-1]) > 0
    known = np.flatnonzero(~unknown)
    filled = values.copy()
    filled[inside] = np.interp(np.flatnonzero(inside), known, values[known])
    return filled, int(inside.sum())


def _not_negative(rows: Rows, negative: Negative, repairs: Repairs) -> Float64:
    bad = rows.values < 0
    if not bad.any() or negative == "keep":
        return rows.values
    if negative == "refuse":
        row = int(np.argmax(bad))
        raise _refusal(
            rows.station,
            row,
            f"holds {rows.values[row]:g}, which is below zero ({int(bad.sum())} such rows)",
            code="VALUE_NEGATIVE",
            remedy="Correct the rows, or set 'negative' in agent.yaml to zero, missing or keep.",
        )
    repairs.note("negative_values", int(bad.sum()))
    return np.where(bad, 0.0 if negative == "zero" else np.nan, rows.values)


def _in_order(rows: Rows, zone: str, repairs: Repairs) -> tuple[Int64, Int64]:
    """UTC seconds by row, and the rows in order of time."""
    without = rows.local == MISSING
    if without.any():
        raise _refusal(
            rows.station,
            int(np.argmax(without)),
            "has no time",
            code="TIME_MISSING",
            remedy="Correct the row, or leave it out of the file.",
        )
    if rows.absolute:
        utc = rows.local
    else:
        utc, twice = to_utc(rows.local, zone)
        if twice.any():
            # In autumn an hour comes twice: of two rows with one local time, the later one in the file is the second.
            second = np.zeros(len(utc), dtype=np.bool_)
            among = np.flatnonzero(twice)
            _, first = np.unique(rows.local[among], return_index=True)
            second[np.setdiff1d(among, among[first])] = True
            utc, _ = to_utc(rows.local, zone, fold=second)
            repairs.note("second_hours", int(second.sum()))
    repairs.note("rows_out_of_order", int((np.diff(utc) < 0).sum()))
    return utc, np.argsort(utc, kind="stable")


def _once(
    rows: Rows, values: Float64, cells: Int64, rows_of: Int64, twice: Twice, repairs: Repairs
) -> Mapping[int, float]:
    """The value of each cell of the grid that has a row."""
    ordered = values[rows_of]
    again = np.concatenate([[False], np.diff(cells) == 0])
    if again.any():
        before = np.concatenate([[np.nan], ordered[:-1]])
        same = again & ((ordered == before) | (np.isnan(ordered) & np.isnan(before)))
        repairs.note("rows_twice", int(same.sum()))
        other = again & ~same
        if other.any() and twice == "refuse":
            place = int(np.argmax(other))
            raise _refusal(
                rows.station,
                int(rows_of[place]),
                f"has the time of row {int(rows_of[place - 1]) + 1} and another value",
                code="TIME_TWICE",
                remedy="Set 'timezone' if the clock was put back there, or 'twice' to first, mean or sum.",
            )
        repairs.note(f"times_twice_{twice}", int(other.sum()))
        keep = ~same
        cells, ordered = cells[keep], ordered[keep]
    places, first, counts = np.unique(cells, return_index=True, return_counts=True)
    if twice in ("mean", "sum"):
        totals = np.add.reduceat(ordered, first)
        found = totals / counts if twice == "mean" else totals
    else:
        found = ordered[first]
    return dict(zip(places.tolist(), found.tolist(), strict=True))


def _usual_step(station: str, utc: Int64) -> int:
    gaps = np.diff(utc)
    gaps = gaps[gaps > 0]
    if not gaps.size:
        raise SiteError(
            f"The table of station '{station}' has rows of one time alone.",
            code="SERIES_TOO_SHORT",
            remedy="Check the time column.",
        )
    found, counts = np.unique(gaps, return_counts=True)
    usual = int(found[np.argmax(counts)])
    if usual % 60 or usual // 60 not in STEPS:
        raise SiteError(
            f"The rows of station '{station}' are usually {usual} seconds apart.",
            code="SERIES_IRREGULAR",
            remedy="Bring the table to regular steps of 5 to 60 minutes that divide an hour.",
        )
    return usual // 60


def _refusal(station: str, row: int, what: str, *, code: str, remedy: str) -> SiteError:
    return SiteError(f"Row {int(row) + 1} of station '{station}' {what}.", code=code, remedy=remedy)
