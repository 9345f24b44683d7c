"""Charging sessions at a node: start, end and energy of each, which become a regular series here.

A session's energy is spread evenly over the time in which it charged. Sessions may overlap (several connectors) and add
up. Repaired and counted in the dataset's facts: the same session twice, an hour that the clock shows twice; refused, or
left out where `invalid: drop` says so: an end before the start, energy below zero or missing, a session longer than
`longest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field, field_validator

from hanse.errors import SiteError
from hanse.learning.arrays import Float64, Int64
from hanse.learning.series import Series
from hanse.learning.series_sessions import overlapping, spread_energy
from hanse.method import DatasetDescription
from hanse.settings import Duration
from hanse_agent.datasets.columns import INSTANT, require_columns
from hanse_agent.datasets.npz_source import NpzNames
from hanse_agent.datasets.series_grid import STEPS, Repairs, SeriesOptions, described, finished
from hanse_agent.datasets.series_time import MISSING, check_zone, read_times, to_utc
from hanse_agent.datasets.sources import open_source


class ChargingSessionsDataset:
    """Raw charging sessions; a dataset of kind `charging_sessions` in `agent.yaml`."""

    kind: ClassVar[str] = "charging_sessions"

    class Options(SeriesOptions):
        """The dataset's block in `agent.yaml`."""

        start: str = Field("start", min_length=1)
        """The column that says when a session began (ISO 8601)."""
        end: str = Field("end", min_length=1)
        """The column that says when it ended."""
        energy: str = Field("energy_kwh", min_length=1)
        """The column of what it took."""
        charging_minutes: str = ""
        """A column that says for how long it charged, where cars stay plugged in longer: its energy is spread over that
        time from the start on, instead of to the end."""
        timezone: Annotated[str, AfterValidator(check_zone)] = ""
        """Where the station is, for instance Europe/Berlin. Empty: the clock of the file is taken as it is."""
        clock: Literal["local", "utc"] = "local"
        """What the times of the file are, where they name no offset of their own."""
        step: int = 60
        """Minutes of a step of the series."""
        longest: Duration = Field(timedelta(days=3))
        """A longer session is invalid."""
        invalid: Literal["refuse", "drop"] = "refuse"
        """What becomes of invalid sessions: the dataset is refused, or they are left out and counted."""
        idle_is_gap: Duration = Field(timedelta(days=14))
        """So long without any session means that the station was out of order: those steps are unknown, not zero."""

        @field_validator("step")
        @classmethod
        def _divides_an_hour(cls, value: int) -> int:
            if value not in STEPS:
                raise ValueError(f"step must be one of {', '.join(map(str, STEPS))} minutes")
            return value

    def __init__(self, name: str, options: BaseModel | Mapping[str, Any]) -> None:
        self.name = name
        self.options = options if isinstance(options, self.Options) else self.Options.model_validate(options)

    @property
    def station(self) -> str:
        """What the station is called in messages."""
        return self.options.station or self.name

    def describe(self) -> DatasetDescription:
        """Length of the series, sessions, and what was repaired."""
        series, repairs, sessions = self._read()
        return described(self.name, self.kind, series, {"sessions": str(sessions), **repairs.facts()})

    def load(self) -> tuple[Series, ...]:
        """The series.

        Raises:
            SiteError: sessions that cannot be read or repaired, or too few of them; the sentence names station and row.
        """
        return (self._read()[0],)

    def _read(self) -> tuple[Series, Repairs, int]:
        options, repairs = self.options, Repairs()
        columns = self._columns()
        begin, end = self._times(columns, repairs)
        energy = columns[options.energy].astype(np.float64)
        if options.charging_minutes:
            minutes = columns[options.charging_minutes].astype(np.float64)
            self._valid(~(minutes >= 0), "has no charging time", "SESSION_TIME")
            end = np.where(minutes >= 0, np.minimum(end, begin + 60 * minutes), end).astype(np.int64)
        good = self._good(begin, end, energy, repairs)
        begin, end, energy = self._once(begin[good], end[good], energy[good], repairs)
        start, values = self._spread(begin.astype(np.float64), end.astype(np.float64), energy, repairs)
        series = finished(
            self.station,
            start,
            options.step,
            values,
            np.empty((len(values), 0), dtype=np.float32),
            covariate_names=(),
            zone=options.timezone,
            options=options,
            repairs=repairs,
        )
        return series, repairs, len(begin)

    def _columns(self) -> dict[str, NDArray[Any]]:
        options = self.options
        source = open_source(options.path, NpzNames(features="X", feature_names="feature_names"))
        numeric = [name for name in (options.energy, options.charging_minutes) if name]
        require_columns(options.path, source, (options.start, options.end), numeric=numeric)
        if not source.rows:
            raise SiteError(f"{options.path} has no sessions.", code="NO_ROWS", remedy="Check 'path' in agent.yaml.")
        self._instants = {name for name in (options.start, options.end) if source.columns[name] == INSTANT}
        return source.read([options.start, options.end, *numeric])

    def _times(self, columns: Mapping[str, NDArray[Any]], repairs: Repairs) -> tuple[Int64, Int64]:
        """Start and end of each session, in UTC seconds."""
        options = self.options
        found, local = [], []
        for name in (options.start, options.end):
            seconds, absolute = read_times(columns[name], f"The column '{name}' of {options.path}")
            self._valid(seconds == MISSING, f"has no time in '{name}'", "TIME_MISSING")
            known = absolute or name in self._instants or options.clock == "utc"
            utc, twice = to_utc(seconds, "" if known else options.timezone)
            found.append(utc)
            local.append((seconds, twice))
        begin, end = found
        # The clock was put back while the car was there: the end is in the second of two hours of the same name.
        seconds, twice = local[1]
        again = twice & (end < begin)
        if again.any():
            end = np.where(again, to_utc(seconds, options.timezone, fold=again)[0], end)
            repairs.note("ends_in_second_hour", int(again.sum()))
        return begin, end

    def _good(self, begin: Int64, end: Int64, energy: Float64, repairs: Repairs) -> NDArray[np.bool_]:
        longest = int(self.options.longest.total_seconds())
        good = np.ones(len(begin), dtype=np.bool_)
        for bad, what, code, counted in (
            ((begin == MISSING) | (end == MISSING), "has no time", "TIME_MISSING", "sessions_without_time"),
            (end < begin, "ends before it starts", "SESSION_TIME", "sessions_backwards"),
            (end - begin > longest, f"lasts longer than {self.options.longest}", "SESSION_TIME", "sessions_too_long"),
            (~np.isfinite(energy), "has no energy", "SESSION_ENERGY", "sessions_without_energy"),
            (energy < 0, "has energy below zero", "SESSION_ENERGY", "sessions_below_zero"),
        ):
            self._valid(bad, what, code)
            repairs.note(counted, int((bad & good).sum()))
            good &= ~bad
        if not good.any():
            raise SiteError(
                f"Station '{self.station}' has no valid session.", code="NO_ROWS", remedy="Check the file's columns."
            )
        return good

    def _valid(self, bad: NDArray[np.bool_], what: str, code: str) -> None:
        if bad.any() and self.options.invalid == "refuse":
            raise SiteError(
                f"The session in row {int(np.argmax(bad)) + 1} of station '{self.station}' {what} "
                f"({int(bad.sum())} such sessions).",
                code=code,
                remedy="Correct these rows, or set 'invalid: drop' in agent.yaml.",
            )

    def _once(self, begin: Int64, end: Int64, energy: Float64, repairs: Repairs) -> tuple[Int64, Int64, Float64]:
        """Each session once: the same start, end and energy are the same session."""
        table = np.stack([begin.astype(np.float64), end.astype(np.float64), energy], axis=1)
        _, first = np.unique(table, axis=0, return_index=True)
        repairs.note("sessions_twice", len(begin) - len(first))
        first = np.sort(first)
        return begin[first], end[first], energy[first]

    def _spread(self, begin: Float64, end: Float64, energy: Float64, repairs: Repairs) -> tuple[np.datetime64, Float64]:
        step = 60 * self.options.step
        start = int(begin.min()) // step * step
        steps = int(-(-(max(end.max(), begin.max() + 1) - start) // step))
        values = spread_energy(begin, end, energy, start=float(start), step=float(step), steps=steps)
        _, busy = overlapping(begin, end)
        repairs.note("sessions_overlapping", int(busy.sum()))
        idle = int(self.options.idle_is_gap.total_seconds())
        order = np.argsort(begin)
        free = np.maximum.accumulate(end[order])[:-1]
        for place in np.flatnonzero(begin[order][1:] - free > idle) if idle else ():
            first, last = int(-(-(free[place] - start) // step)), int((begin[order][place + 1] - start) // step)
            values[first:last] = np.nan
            repairs.note("idle_steps", last - first)
        return np.datetime64(start // 60, "m"), values
