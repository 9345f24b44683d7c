"""The data of the Fed-GAME benchmark: real charging demand by station, who is unseen, and who is whose neighbour.

charged        138 stations of three cities (Melbourne, Sao Paulo, Johannesburg), 4,392 hours each; 27 of them unseen
perth_kinross   13 sites in Scotland, 8,760 hours, straight from sessions; 3 unseen
palo_alto        5 stations, 14,400 hours, straight from sessions; 1 unseen

planted         24 generated stations in 4 groups, each with a week of its own, in units that differ a thousandfold; 4
                of them unseen. Only where `--dataset planted` asks for it: no evidence of what happens at real ones.

A folder of the ST-EVCDP layout (`occupancy.csv`, `time.csv` …) is a data set too: 247 zones, 47 of them unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from hanse.errors import SiteError
from hanse.learning.series import Series, check_series
from hanse.method import DatasetDescription

CITIES = {"charged": ("mel", "spo", "jhb"), "perth_kinross": ("perth_kinross",), "palo_alto": ("palo_alto",)}
UNSEEN = {"mel": 12, "spo": 8, "jhb": 7, "perth_kinross": 3, "palo_alto": 1}
UNSEEN_SEED = 20260302
"""Who is unseen is drawn once, for every seed of the weights the same."""
TRAINING = 0.8
NEIGHBOURS = 5
PLANTED = "planted"


@dataclass(frozen=True, kw_only=True, eq=False)
class Station:
    """`place`: latitude and longitude, or None where they are not known."""

    name: str
    city: str
    series: Series
    place: tuple[float, float] | None
    unseen: bool


class StationDataset:
    """A node's series in memory."""

    Options: ClassVar[type[BaseModel]] = BaseModel
    kind: ClassVar[str] = "series"

    def __init__(self, series: Sequence[Series]) -> None:
        self._series = tuple(series)

    def describe(self) -> DatasetDescription:
        return DatasetDescription(name="demand", kind="series", rows=sum(len(each.values) for each in self._series))

    def load(self) -> tuple[Series, ...]:
        return self._series


def read_stations(folder: Path, dataset: str) -> list[Station]:
    """The stations of a data set, in order of name."""
    if dataset == PLANTED:
        return _planted()
    if (folder / "occupancy.csv").exists():
        return _st_evcdp(folder)
    stations: list[Station] = []
    for city in CITIES[dataset]:
        stations += _city(file_of(folder, dataset, city), city)
    return sorted(stations, key=lambda station: station.name)


def file_of(folder: Path, dataset: str, city: str) -> Path:
    """Where a city's series are."""
    return folder / f"{'charged_' if dataset == 'charged' else ''}{city}.npz"


def shortened(stations: Sequence[Station], weeks: int | None, minimum: int) -> tuple[list[Station], list[str]]:
    """The stations as if they had opened so many weeks before the test, and the reasons of those left out."""
    kept, reasons = [], []
    for station in stations:
        series = station.series if weeks is None else station.series.recent(weeks)
        try:
            check_series(series, minimum=minimum)
        except SiteError as error:
            reasons.append(str(error))
            continue
        kept.append(replace(station, series=series))
    return kept, reasons


def neighbours(stations: Sequence[Station]) -> dict[str, list[str]]:
    """The nearest seen stations of the same city, by name; all of them where places are not known."""
    graph: dict[str, list[str]] = {}
    for station in stations:
        others = [o for o in stations if o.city == station.city and o.name != station.name and not o.unseen]
        if station.place is not None:
            here = station.place
            others.sort(key=lambda o: _distance(here, o.place or here))
            others = others[:NEIGHBOURS]
        graph[station.name] = [other.name for other in others]
    return graph


def with_neighbours(stations: Sequence[Station], graph: Mapping[str, list[str]], count: int) -> list[Station]:
    """Each station's series with those of its nearest neighbours as covariates (for GCRN alone)."""
    by_name = {station.name: station for station in stations}
    found = []
    for station in stations:
        names = (graph[station.name] * count)[:count]
        series = station.series
        columns = [np.asarray(by_name[name].series.values, dtype=np.float32) for name in names]
        covariates = np.stack(columns, axis=1)
        titles = tuple(f"neighbour_{i}" for i in range(count))
        found.append(replace(station, series=replace(series, covariates=covariates, covariate_names=titles)))
    return found


def _city(path: Path, city: str) -> list[Station]:
    with np.load(path, allow_pickle=False) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file}
    values = arrays["volume_kwh" if "volume_kwh" in arrays else "energy_kwh"].astype(np.float64)
    start = np.datetime64(str(arrays["time"][0]), "m")
    count = values.shape[1]
    drawn = np.random.default_rng([UNSEEN_SEED, *city.encode()]).permutation(count)[: UNSEEN[city]]
    places = list(zip(arrays["lat"], arrays["lon"], strict=True)) if "lat" in arrays else None
    prefix = city.replace("_", "-")
    return [
        Station(
            name=f"{prefix}-{number:03d}",
            city=city,
            series=_series(f"{prefix}-{number:03d}", start, values[:, number], minutes=60),
            place=(float(places[number][0]), float(places[number][1])) if places else None,
            unseen=number in drawn,
        )
        for number in range(count)
    ]


def _series(name: str, start: np.datetime64, values: np.ndarray, *, minutes: int) -> Series:
    # The files hold local wall clock time; 1970-01-01 was a Thursday.
    first = (int(start.astype(np.int64)) + 3 * 24 * 60) % (7 * 24 * 60)
    return Series(
        name=name,
        start=start,
        step_minutes=minutes,
        values=values,
        week_minute=(first + minutes * np.arange(len(values), dtype=np.int64)) % (7 * 24 * 60),
        training=round(TRAINING * len(values)),
        covariates=np.empty((len(values), 0), dtype=np.float32),
    )


def _planted() -> list[Station]:
    """Stations whose group alone tells what comes: hours of the week at which demand jumps, drawn by group."""
    rng = np.random.default_rng(UNSEEN_SEED)
    hours = np.arange(24 * 7 * 10)
    start = np.datetime64("2024-01-01T00:00", "m")
    stations = []
    for group in range(4):
        week = rng.gamma(0.5, 2.0, 168)
        for member in range(6):
            noise = np.convolve(rng.normal(0, 0.6, len(hours) + 2), np.ones(3) / 3, mode="valid")
            level = 10.0 ** rng.uniform(-1, 2)
            values = level * np.maximum(0.0, week[hours % 168] * rng.lognormal(0, 0.3, len(hours)) + 1 + noise)
            name = f"planted-{group}-{member}"
            series = _series(name, start, values, minutes=60)
            stations.append(Station(name=name, city=f"group-{group}", series=series, place=None, unseen=member == 5))
    return stations


def _distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    return float(np.hypot(a[0] - b[0], (a[1] - b[1]) * np.cos(np.deg2rad(a[0]))))


def _st_evcdp(folder: Path) -> list[Station]:
    """The 247 zones at hourly means, 47 of them unseen; no places: everybody is everybody's neighbour."""
    from hanse_agent.datasets.series_evcdp import UNSEEN_ZONES, EvcdpDataset, read_zones

    stations = []
    for zone in read_zones(folder)[0]:
        options = {"path": folder, "zone": zone, "step": 60, "station": f"zone-{zone}", "holdout": 1 - TRAINING}
        (series,) = EvcdpDataset("demand", options).load()
        stations.append(
            Station(name=f"zone-{zone}", city="shenzhen", series=series, place=None, unseen=zone in UNSEEN_ZONES)
        )
    return sorted(stations, key=lambda station: station.name)
