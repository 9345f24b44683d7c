"""The folder layout of ST-EVCDP (Qu et al., IEEE T-ITS 2024): 247 traffic zones of Shenzhen at steps of 5 minutes.

    occupancy.csv, volume.csv, duration.csv, price.csv    a column of row numbers, then one column a zone
    time.csv                                              month, day, year, hour, minute, second
    information.csv                                       one row a zone; `count` is its number of piles

The series are not part of Hanse, nor of the copy of the repository that we saw: this is for who has the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator

from hanse.errors import SiteError
from hanse.learning.arrays import Float64
from hanse.learning.series import Series
from hanse.method import DatasetDescription
from hanse_agent.datasets.npz_source import NpzNames
from hanse_agent.datasets.series_grid import STEPS, Repairs, SeriesOptions, described, finished
from hanse_agent.datasets.sources import open_source

__all__ = ["UNSEEN_ZONES", "EvcdpDataset", "read_zones"]

MINUTES = 5
UNSEEN_ZONES: frozenset[int] = frozenset(
    int(zone)
    for zone in """
    105 123 217 309 324 325 333 520 584 589 594 630 682 701 702 705 708 709 745 784 790 795 832 862 891 974 975
    982 987 988 989 1037 1061 1062 1075 1082 1086 1088 1099 1105 1106 1111 1124 1134 1149 1163 1170
    """.split()
)
"""The 47 zones that never train: the first of a permutation of the 247 by NumPy's default generator with the seed
20260302. The paper's own choice is not published."""


class EvcdpDataset:
    """One zone; a dataset of kind `st_evcdp` in `agent.yaml`."""

    kind: ClassVar[str] = "st_evcdp"

    class Options(SeriesOptions):
        """The dataset's block in `agent.yaml`."""

        zone: int
        """The zone's number."""
        value: Literal["occupancy", "volume", "duration"] = "occupancy"
        """What is forecast: the file of that name."""
        per_pile: bool = True
        """Divide by the zone's number of piles, as the data's authors do with occupancy."""
        price: bool = False
        """The price as a covariate."""
        step: int = MINUTES
        """Minutes of a step: means over that time (sums of `volume` and `duration`)."""
        unit: str = Field("busy share", max_length=20)
        """The unit of the values."""

        @field_validator("step")
        @classmethod
        def _divides_an_hour(cls, value: int) -> int:
            if value not in STEPS or value % MINUTES:
                raise ValueError("step must be 5, 10, 15, 20, 30 or 60 minutes")
            return value

    def __init__(self, name: str, options: BaseModel | Mapping[str, Any]) -> None:
        self.name = name
        self.options = options if isinstance(options, self.Options) else self.Options.model_validate(options)

    def describe(self) -> DatasetDescription:
        """Length and step."""
        series, repairs = self._read()
        return described(self.name, self.kind, series, {"zone": str(self.options.zone), **repairs.facts()})

    def load(self) -> tuple[Series, ...]:
        """The zone's series.

        Raises:
            SiteError: a file that is missing or does not fit, no such zone, or a series that is worth nothing.
        """
        return (self._read()[0],)

    def _read(self) -> tuple[Series, Repairs]:
        options, repairs = self.options, Repairs()
        zones, piles = read_zones(options.path)
        if options.zone not in zones:
            raise SiteError(
                f"{options.path} has no zone {options.zone} (it has {len(zones)}, from {zones[0]} to {zones[-1]}).",
                code="ZONE_UNKNOWN",
                remedy="Check 'zone' in agent.yaml.",
            )
        start, rows = _clock(options.path)
        place = zones.index(options.zone)
        values = _column(options.path / f"{options.value}.csv", options.zone, rows)
        if options.per_pile:
            values = values / max(1.0, piles[place])
        values = _coarser(values, options.step // MINUTES, total=options.value != "occupancy")
        covariates = np.empty((len(values), 0), dtype=np.float32)
        if options.price:
            price = _coarser(
                _column(options.path / "price.csv", options.zone, rows), options.step // MINUTES, total=False
            )
            covariates = price.astype(np.float32)[:, None]
        station = options.station or f"zone {options.zone}"
        names = ("price",) if options.price else ()
        series = finished(
            station,
            start,
            options.step,
            values,
            covariates,
            covariate_names=names,
            zone="",
            options=options,
            repairs=repairs,
        )
        return series, repairs


def read_zones(folder: Path) -> tuple[list[int], Float64]:
    """The zones in the order of the files, and the number of piles of each.

    Raises:
        SiteError: `information.csv` is missing, or has other columns.
    """
    columns = _read(folder / "information.csv", ("grid", "count"))
    return [int(zone) for zone in columns["grid"]], columns["count"].astype(np.float64)


def _clock(folder: Path) -> tuple[np.datetime64, int]:
    """When the series start, and how many rows they have."""
    parts = _read(folder / "time.csv", ("year", "month", "day", "hour", "minute"))
    first = {name: int(column[0]) for name, column in parts.items()}
    text = "{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}".format(**first)
    return np.datetime64(text, "m"), len(parts["year"])


def _column(path: Path, zone: int, rows: int) -> Float64:
    values = _read(path, (str(zone),))[str(zone)].astype(np.float64)
    if len(values) != rows:
        raise SiteError(
            f"{path} has {len(values)} rows, and time.csv has {rows}.",
            code="DATA_FORMAT",
            remedy="Take all files from the same copy of the data.",
        )
    return values


def _read(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    source = open_source(path, NpzNames(features="X", feature_names="feature_names"))
    for name in names:
        if name not in source.columns:
            raise SiteError(
                f"{path} has no column '{name}'.",
                code="COLUMN_MISSING",
                remedy="Check that the folder has the layout of ST-EVCDP.",
            )
    return source.read(names)


def _coarser(values: Float64, factor: int, *, total: bool) -> Float64:
    whole = values[: len(values) // factor * factor].reshape(-1, factor)
    coarse: Float64 = whole.sum(axis=1) if total else whole.mean(axis=1)
    return coarse
