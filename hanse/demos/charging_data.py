"""The stations of `hanse demo charging`: generated sessions with weekly patterns of four kinds of places, or files.

Generated, not recorded: arrivals are drawn hour by hour of the week, by a profile of the place (office, shops, homes,
motorway) and of the weekday; energies and durations by the power of the place's connectors. A station has so many
connectors that a car which finds none drives on. The same seed gives the same sessions.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from hanse.errors import OperatorError

__all__ = ["GENERATED", "ZONE", "Place", "generate_sessions", "read_folder", "write_sessions"]

WEEKS = 12
FIRST = datetime(2024, 1, 1)  # a Monday
ZONE = "Europe/Berlin"
COLUMNS = ("start", "end", "energy_kwh")

Session = tuple[datetime, datetime, float]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A kind of place: `day` and `weekend`, arrivals an hour at its busiest by hour; `power_kw` of a connector;
    `stay_h`, the mean time plugged in."""

    day: tuple[float, ...]
    weekend: tuple[float, ...]
    power_kw: float
    stay_h: float
    connectors: int


def _hours(*peaks: tuple[float, float, float], base: float = 0.02) -> tuple[float, ...]:
    """A day of 24 arrivals an hour: bells of (hour, width, height)."""
    hours = np.arange(24)
    day = np.full(24, base)
    for at, width, height in peaks:
        apart = np.minimum(np.abs(hours - at), 24 - np.abs(hours - at))
        day += height * np.exp(-0.5 * (apart / width) ** 2)
    return tuple(float(rate) for rate in day)


PLACES: Mapping[str, Place] = {
    "office": Place(
        day=_hours((8, 1.0, 4.0), (13, 1.0, 1.0)), weekend=_hours(base=0.05), power_kw=7, stay_h=5, connectors=10
    ),
    "shops": Place(
        day=_hours((12, 2.0, 1.5), (17, 2.0, 2.5)), weekend=_hours((14, 3.0, 4.0)), power_kw=22, stay_h=1, connectors=6
    ),
    "homes": Place(
        day=_hours((18, 1.5, 2.0)), weekend=_hours((16, 4.0, 1.0)), power_kw=11, stay_h=8, connectors=8
    ),
    "motorway": Place(
        day=_hours((11, 4.0, 3.0), (17, 2.5, 3.0), base=0.3),
        weekend=_hours((12, 4.0, 5.0), base=0.3),
        power_kw=90,
        stay_h=0.5,
        connectors=6,
    ),
}  # fmt: skip

GENERATED: Mapping[str, tuple[str, float]] = {
    "office-north": ("office", 1.0),
    "office-south": ("office", 0.5),
    "shops-east": ("shops", 1.0),
    "shops-west": ("shops", 0.6),
    "homes-hill": ("homes", 1.0),
    "homes-lake": ("homes", 0.7),
    "motorway-a7": ("motorway", 1.0),
    "motorway-a9": ("motorway", 0.6),
}
"""Station to place and size."""


def generate_sessions(station: str) -> list[Session]:
    """Twelve weeks of sessions of a station that `GENERATED` names, in order of start."""
    kind, size = GENERATED[station]
    place = PLACES[kind]
    rng = np.random.default_rng([7, *station.encode()])
    sessions: list[Session] = []
    busy_until: list[datetime] = []
    for day in range(7 * WEEKS):
        rates = np.array(place.weekend if day % 7 >= 5 else place.day) * size * rng.gamma(20, 1 / 20)
        for hour, count in enumerate(rng.poisson(rates)):
            for minute in sorted(rng.uniform(0, 60, count)):
                start = FIRST + timedelta(days=day, hours=hour, minutes=int(minute))
                busy_until = [end for end in busy_until if end > start]
                if len(busy_until) >= place.connectors:
                    continue
                energy = min(75.0, float(rng.lognormal(np.log(18), 0.5)))
                stay = max(energy / place.power_kw, float(rng.gamma(4, place.stay_h / 4)))
                end = start + timedelta(minutes=max(1, round(60 * min(stay, energy / place.power_kw))))
                busy_until.append(end)
                sessions.append((start, end, round(energy, 2)))
    return sorted(sessions)


def write_sessions(sessions: Sequence[Session], path: Path) -> None:
    """A CSV file with the columns `start`, `end` and `energy_kwh`, as a station's back office exports it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        lines.writerows((start.isoformat(), end.isoformat(), energy) for start, end, energy in sessions)


def read_folder(folder: Path) -> dict[str, Path]:
    """Station to file: the CSV and Parquet files of a folder, whose names become the nodes' names.

    Raises:
        OperatorError: no folder, or fewer than three files.
    """
    if not folder.is_dir():
        raise OperatorError(f"{folder} is no folder.", remedy="Give a folder with one file of sessions a station.")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".parquet"))
    names = {_node_name(path.stem): path for path in files}
    if len(names) < 3:
        raise OperatorError(
            f"{folder} has {len(names)} stations; a demo needs three, one of which stays out of the training.",
            remedy=f"Put one .csv or .parquet file a station there, with the columns {', '.join(COLUMNS)}.",
        )
    return names


def _node_name(text: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in text.lower()).strip("-")
    return kept[:60] or "station"
