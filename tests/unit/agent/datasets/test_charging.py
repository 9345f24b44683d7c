"""Charging sessions as a series: no energy lost, clock changes, repeats and overlaps counted, nonsense refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hanse.errors import SiteError
from hanse.settings import validate
from hanse_agent.datasets.charging import ChargingSessionsDataset

HEAD = "start,end,energy_kwh"


def dataset(path: Path, **options: Any) -> ChargingSessionsDataset:
    given = {"path": path, "station": "harbour", "minimum_days": 1, **options}
    checked = validate(ChargingSessionsDataset.Options, given, source="datasets.demand")
    return ChargingSessionsDataset("demand", checked)


def sessions(days: int = 20) -> list[str]:
    lines = []
    for day in range(days):
        date = f"2024-05-{day + 1:02d}"
        lines += [f"{date}T08:30,{date}T10:00,{9 + day}", f"{date}T18:00,{date}T18:45,6"]
    return lines


def write(tmp_path: Path, lines: list[str], head: str = HEAD) -> Path:
    path = tmp_path / "sessions.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def test_energy_is_spread_over_the_charging_time_and_none_is_lost(tmp_path: Path) -> None:
    found = dataset(write(tmp_path, sessions()))
    (series,) = found.load()
    assert str(series.start) == "2024-05-01T08:00"
    assert np.allclose(series.values[:3], [3, 6, 0])  # 9 kWh over 90 minutes from half past eight
    assert series.values[10] == 6
    assert np.isclose(series.values.sum(), sum(9 + day + 6 for day in range(20)))
    assert found.describe().facts["sessions"] == "40"


def test_the_time_plugged_in_is_not_the_time_charged(tmp_path: Path) -> None:
    lines = [f"{line},{30 if 'T08' in line else 45}" for line in sessions()]
    (series,) = dataset(write(tmp_path, lines, HEAD + ",minutes"), charging_minutes="minutes").load()
    assert np.allclose(series.values[:3], [9, 0, 0])
    assert np.isclose(series.values.sum(), sum(9 + day + 6 for day in range(20)))


def test_the_same_session_twice_counts_once_and_overlaps_add_up(tmp_path: Path) -> None:
    lines = [*sessions(), sessions()[0], "2024-05-02T08:00,2024-05-02T09:00,4"]
    found = dataset(write(tmp_path, lines))
    (series,) = found.load()
    assert np.allclose(series.values[24:26], [4 + 10 / 3, 20 / 3])
    facts = found.describe().facts
    assert (facts["repaired_sessions_twice"], facts["repaired_sessions_overlapping"]) == ("1", "1")


def test_a_session_over_the_autumn_change_lasts_as_long_as_it_did(tmp_path: Path) -> None:
    lines = [line.replace("2024-05", "2023-10") for line in sessions()]
    # Plugged in at 02:50 summer time, out at 02:10 winter time: twenty minutes later.
    lines += ["2023-10-29T02:50,2023-10-29T02:10,5", "2023-10-30T08:00,2023-10-30T09:00,1"]
    found = dataset(write(tmp_path, lines), timezone="Europe/Berlin")
    (series,) = found.load()
    assert found.describe().facts["repaired_ends_in_second_hour"] == "1"
    times = series.times().astype(str).tolist()
    assert np.isclose(series.values[times.index("2023-10-29T00:00")], 2.5)  # 00:50 to 01:10 UTC
    assert np.isclose(series.values[times.index("2023-10-29T01:00")], 2.5)


def test_a_long_silence_is_unknown_and_not_zero(tmp_path: Path) -> None:
    lines = [*sessions(), *(line.replace("2024-05", "2024-07") for line in sessions())]
    found = dataset(write(tmp_path, lines))
    (series,) = found.load()
    unknown = np.flatnonzero(np.isnan(series.values))
    assert len(unknown) == int(found.describe().facts["repaired_idle_steps"]) > 24 * 40
    (zero,) = dataset(write(tmp_path, lines), idle_is_gap="0s").load()
    assert not np.isnan(zero.values).any()


@pytest.mark.parametrize(
    ("line", "code", "words", "counted"),
    [
        ("2024-05-03T10:00,2024-05-03T09:00,4", "SESSION_TIME", "row 4 .*'harbour' ends before it starts", "backwards"),
        ("2024-05-03T10:00,2024-05-13T09:00,4", "SESSION_TIME", "row 4 .* lasts longer than", "too_long"),
        ("2024-05-03T10:00,2024-05-03T11:00,-4", "SESSION_ENERGY", "row 4 .* has energy below zero", "below_zero"),
        ("2024-05-03T10:00,2024-05-03T11:00,", "SESSION_ENERGY", "row 4 .* has no energy", "without_energy"),
        (",2024-05-03T11:00,4", "TIME_MISSING", "row 4 .* has no time in 'start'", "without_time"),
    ],
)
def test_a_session_that_cannot_be_is_refused_or_left_out(
    tmp_path: Path, line: str, code: str, words: str, counted: str
) -> None:
    lines = sessions()
    lines.insert(3, line)
    path = write(tmp_path, lines)
    with pytest.raises(SiteError, match=words) as caught:
        dataset(path).describe()
    assert caught.value.code == code
    left = dataset(path, invalid="drop")
    assert left.describe().facts[f"repaired_sessions_{counted}"] == "1"
    assert np.isclose(left.load()[0].values.sum(), sum(9 + day + 6 for day in range(20)))


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="no column 'energy_kwh'"):
        dataset(write(tmp_path, ["2024-05-03T10:00,2024-05-03T11:00,4"], "start,end,kwh")).describe()


def test_a_text_among_the_energies_is_refused_by_its_row(tmp_path: Path) -> None:
    lines = sessions()
    lines[2] = lines[2].rsplit(",", 1)[0] + ",twelve"
    with pytest.raises(SiteError, match=r"'energy_kwh' of .*sessions.csv is not numeric: row 3 holds 'twelve'"):
        dataset(write(tmp_path, lines)).load()
