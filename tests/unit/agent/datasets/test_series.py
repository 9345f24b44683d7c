"""Tables of demand: what becomes a regular series, what is repaired and told, what is refused by station and row."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from hanse.errors import OperatorError, SiteError
from hanse.settings import validate
from hanse_agent.datasets.series import SeriesDataset
from hanse_agent.datasets.series_evcdp import UNSEEN_ZONES, EvcdpDataset

HOURS = 24 * 30


def dataset(path: Path, **options: Any) -> SeriesDataset:
    given = {"path": path, "value": "kwh", "station": "north", **options}
    return SeriesDataset("demand", validate(SeriesDataset.Options, given, source="datasets.demand"))


def rows(hours: int = HOURS, *, begin: str = "2024-01-01T00:00", minutes: int = 60) -> list[list[str]]:
    first = datetime.fromisoformat(begin)
    return [[(first + timedelta(minutes=minutes * i)).isoformat(), f"{1 + i % 24}"] for i in range(hours)]


def write(path: Path, lines: list[list[str]], head: str = "time,kwh") -> Path:
    path.write_text("\n".join([head, *(",".join(line) for line in lines)]) + "\n")
    return path


def test_a_table_becomes_a_series(tmp_path: Path) -> None:
    found = dataset(write(tmp_path / "a.csv", rows()))
    (series,) = found.load()
    assert (series.name, series.step_minutes, len(series.values), series.training) == ("north", 60, HOURS, 576)
    assert str(series.start) == "2024-01-01T00:00"
    assert series.week_minute[:3].tolist() == [0, 60, 120]  # a Monday
    described = found.describe()
    assert (described.kind, described.rows, described.target) == ("series", HOURS, "value")
    assert described.facts == {"step_minutes": "60", "unit": "kWh"}


def test_covariates_and_five_minute_steps(tmp_path: Path) -> None:
    lines = [[*line, str(i % 7)] for i, line in enumerate(rows(12 * 24 * 10, minutes=5))]
    path = write(tmp_path / "a.csv", lines, "time,kwh,price")
    (series,) = dataset(path, covariates=["price"]).load()
    assert (series.step_minutes, series.covariate_names) == (5, ("price",))
    assert series.covariates[:3, 0].tolist() == [0, 1, 2]


def test_disorder_repeats_and_gaps_are_repaired_and_told(tmp_path: Path) -> None:
    lines = rows()
    lines[10], lines[11] = lines[11], lines[10]
    del lines[100:102]  # two hours: filled
    del lines[200:210]  # ten: unknown
    lines.insert(50, lines[49])
    found = dataset(write(tmp_path / "a.csv", lines))
    (series,) = found.load()
    assert len(series.values) == HOURS
    assert series.values[10:12].tolist() == [11, 12]
    assert np.allclose(series.values[99:103], [4, 5, 6, 7])
    assert int(np.isnan(series.values).sum()) == 10
    facts = found.describe().facts
    assert facts["repaired_rows_out_of_order"] == "1"
    assert facts["repaired_rows_twice"] == "1"
    assert facts["repaired_filled_steps"] == "2"
    assert facts["repaired_missing_steps"] == "10"


@pytest.mark.parametrize(
    ("begin", "day", "hours"), [("2023-10-15", "2023-10-29", 25), ("2024-03-15", "2024-03-31", 23)]
)
def test_daylight_saving_days_have_the_hours_that_they_have(tmp_path: Path, begin: str, day: str, hours: int) -> None:
    zone = ZoneInfo("Europe/Berlin")
    first = datetime.fromisoformat(begin).replace(tzinfo=zone).timestamp()
    moments = [datetime.fromtimestamp(first + 3600 * i, zone) for i in range(24 * 40)]
    lines = [[moment.replace(tzinfo=None).isoformat(), f"{i}"] for i, moment in enumerate(moments)]
    (series,) = dataset(write(tmp_path / "a.csv", lines), timezone="Europe/Berlin").load()
    assert series.values.tolist() == list(range(24 * 40))  # nothing lost, nothing doubled
    assert sum(moment.date().isoformat() == day for moment in moments) == hours
    expected = [moment.weekday() * 1440 + moment.hour * 60 for moment in moments]
    assert series.week_minute.tolist() == expected


def test_times_with_an_offset_are_what_they_say(tmp_path: Path) -> None:
    lines = [[f"{time}+02:00", value] for time, value in rows()]
    (series,) = dataset(write(tmp_path / "a.csv", lines), timezone="Europe/Berlin").load()
    assert str(series.start) == "2023-12-31T22:00"
    assert series.week_minute[0] == 6 * 1440 + 23 * 60  # Berlin is one hour ahead of UTC in winter


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda lines: lines[6].__setitem__(1, "-2"), "VALUE_NEGATIVE", "Row 7 of station 'north' holds -2"),
        (
            lambda lines: lines.insert(8, [lines[7][0], "99"]),
            "TIME_TWICE",
            "Row 9 of station 'north' has the time of row 8",
        ),
        (
            lambda lines: lines[5].__setitem__(0, "2024-01-01T05:07"),
            "SERIES_IRREGULAR",
            "Row 6 of station 'north' lies",
        ),
        (lambda lines: lines[5].__setitem__(0, ""), "TIME_MISSING", "Row 6 of station 'north' has no time"),
        (lambda lines: lines[5].__setitem__(0, "yesterday"), "TIME_UNREADABLE", "'yesterday' in row 6"),
        (lambda lines: lines[-1].__setitem__(0, "2924-01-01T05:00"), "SERIES_TOO_LONG", "Row 720 of station 'north'"),
        (lambda lines: [line.__setitem__(1, "4") for line in lines], "SERIES_CONSTANT", "'north' is constant"),
        (
            lambda lines: [line.__setitem__(1, "") for line in lines[:700]],
            "SERIES_EMPTY",
            "no value in its training part",
        ),
        (lambda lines: lines.__delitem__(slice(100, None)), "SERIES_TOO_SHORT", "80 known values"),
    ],
)
def test_what_cannot_be_repaired_is_refused_by_station_and_row(
    tmp_path: Path, change: Any, code: str, words: str
) -> None:
    lines = rows()
    change(lines)
    with pytest.raises(SiteError, match=words) as caught:
        dataset(write(tmp_path / "a.csv", lines)).describe()
    assert caught.value.code == code
    assert caught.value.remedy


def test_negative_and_double_values_by_option(tmp_path: Path) -> None:
    lines = rows()
    lines[6][1] = "-2"
    lines.insert(8, [lines[7][0], "100"])
    path = write(tmp_path / "a.csv", lines)
    (zero,) = dataset(path, negative="zero", twice="mean").load()
    assert (zero.values[6], zero.values[7]) == (0, 54)
    (missing,) = dataset(path, negative="missing", twice="sum", fill_gaps=0).load()
    assert np.isnan(missing.values[6])
    assert missing.values[7] == 108
    (kept,) = dataset(path, negative="keep", twice="first").load()
    assert (kept.values[6], kept.values[7]) == (-2, 8)


@pytest.mark.parametrize("options", [{"timezone": "Mars/North"}, {"step": 7}, {"covariates": ["kwh"]}, {"holdout": 0}])
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OperatorError, match=r"datasets\.demand"):
        dataset(tmp_path / "a.csv", **options)


def test_a_zone_of_the_st_evcdp_folder(tmp_path: Path) -> None:
    steps = 12 * 24 * 10
    rng = np.random.default_rng(0)
    busy = rng.integers(0, 30, (steps, 2))
    for name in ("occupancy", "volume", "price"):
        write(tmp_path / f"{name}.csv", [[str(i), str(a), str(b)] for i, (a, b) in enumerate(busy)], ",102,105")
    clock = [["6", str(19 + i // 288), "2022", str(i // 12 % 24), str(5 * (i % 12)), "0"] for i in range(steps)]
    write(tmp_path / "time.csv", clock, "month,day,year,hour,minute,second")
    write(tmp_path / "information.csv", [["102", "30"], ["105", "60"]], "grid,count")

    def zone(**options: Any) -> EvcdpDataset:
        given = {"path": tmp_path, "zone": 105, **options}
        return EvcdpDataset("demand", validate(EvcdpDataset.Options, given, source="datasets.demand"))

    (series,) = zone().load()
    assert (series.step_minutes, str(series.start)) == (5, "2022-06-19T00:00")
    assert np.allclose(series.values, busy[:, 1] / 60)
    (hourly,) = zone(step=60, value="volume", per_pile=False, price=True).load()
    assert np.allclose(hourly.values, busy[:, 1].reshape(-1, 12).sum(axis=1))
    assert np.allclose(hourly.covariates[:, 0], busy[:, 1].reshape(-1, 12).mean(axis=1))
    with pytest.raises(SiteError, match="no zone 7") as caught:
        zone(zone=7).describe()
    assert caught.value.code == "ZONE_UNKNOWN"


def test_the_unseen_zones_are_fixed() -> None:
    assert len(UNSEEN_ZONES) == 47
    assert min(UNSEEN_ZONES) >= 102
