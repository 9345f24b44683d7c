"""Series at a node: a table of demand at regular steps, from CSV, Parquet or npz files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, model_validator

from hanse.errors import SiteError
from hanse.learning.series import Series
from hanse.method import DatasetDescription
from hanse_agent.datasets.columns import INSTANT, require_columns
from hanse_agent.datasets.npz_source import NpzNames
from hanse_agent.datasets.series_grid import (
    STEPS,
    Negative,
    Repairs,
    Rows,
    SeriesOptions,
    Twice,
    described,
    finished,
    on_grid,
)
from hanse_agent.datasets.series_time import check_zone, read_times
from hanse_agent.datasets.sources import open_source


class SeriesDataset:
    """Demand at regular steps of 5 to 60 minutes; a dataset of kind `series` in `agent.yaml`."""

    kind: ClassVar[str] = "series"

    class Options(SeriesOptions):
        """The dataset's block in `agent.yaml`."""

        time: str = Field("time", min_length=1)
        """The column that says when each step begins (ISO 8601)."""
        value: str = Field(min_length=1)
        """The column that is forecast."""
        covariates: tuple[str, ...] = ()
        """Further numeric columns (price, weather), known up to now."""
        timezone: Annotated[str, AfterValidator(check_zone)] = ""
        """Where the station is, for instance Europe/Berlin: daylight-saving days then have 23 or 25 hours. Empty: the
        clock of the file is taken as it is."""
        clock: Literal["local", "utc"] = "local"
        """What the times of the file are, where they name no offset of their own."""
        step: int | None = None
        """Minutes between rows; found in the file when left out."""
        negative: Negative = "refuse"
        """What becomes of values below zero: the dataset is refused, or they count as zero, as missing, as they are."""
        twice: Twice = "refuse"
        """What becomes of two different values for one time."""

        @model_validator(mode="after")
        def _fits(self) -> SeriesDataset.Options:
            if self.step is not None and self.step not in STEPS:
                raise ValueError(f"step must be one of {', '.join(map(str, STEPS))} minutes")
            named = [self.time, self.value, *self.covariates]
            if len(set(named)) < len(named):
                raise ValueError("time, value and covariates name a column twice")
            return self

    def __init__(self, name: str, options: BaseModel | Mapping[str, Any]) -> None:
        self.name = name
        self.options = options if isinstance(options, self.Options) else self.Options.model_validate(options)

    @property
    def station(self) -> str:
        """What the station is called in messages."""
        return self.options.station or self.name

    def describe(self) -> DatasetDescription:
        """Length, step and what was repaired."""
        series, repairs = self._read()
        return described(self.name, self.kind, series, repairs.facts())

    def load(self) -> tuple[Series, ...]:
        """The series.

        Raises:
            SiteError: a column that is missing or of the wrong type, or a series that cannot be repaired or learned
                from; the sentence names station and row (counted from 1, without the header line).
        """
        return (self._read()[0],)

    def _read(self) -> tuple[Series, Repairs]:
        options, repairs = self.options, Repairs()
        source = open_source(options.path, NpzNames(features="X", feature_names="feature_names"))
        numeric = (options.value, *options.covariates)
        require_columns(options.path, source, (options.time,), numeric=numeric)
        columns = source.read([options.time, *numeric])
        if not source.rows:
            raise SiteError(f"{options.path} has no rows.", code="NO_ROWS", remedy="Check 'path' in agent.yaml.")
        local, absolute = read_times(columns[options.time], f"The column '{options.time}' of {options.path}")
        rows = Rows(
            station=self.station,
            local=local,
            absolute=absolute or source.columns[options.time] == INSTANT or options.clock == "utc",
            values=columns[options.value].astype(np.float64),
            covariates=np.stack([columns[name].astype(np.float32) for name in options.covariates], axis=1)
            if options.covariates
            else np.empty((source.rows, 0), dtype=np.float32),
            covariate_names=options.covariates,
        )
        start, step, values, covariates = on_grid(
            rows,
            zone=options.timezone,
            step_minutes=options.step,
            negative=options.negative,
            twice=options.twice,
            repairs=repairs,
        )
        series = finished(
            self.station,
            start,
            step,
            values,
            covariates,
            covariate_names=options.covariates,
            zone=options.timezone,
            options=options,
            repairs=repairs,
        )
        return series, repairs
