"""The benchmark of Fed-GAME on five small stations: every method's rows, their keys, and the ratios."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import fedgame
from fedgame_data import neighbours, read_stations, shortened
from fedgame_methods import ABLATION, METHODS, TOGETHER, Settings, specification
from fedgame_table import ratios, table

KEYS = {"dataset", "horizon", "history_weeks", "seen", "method", "seed", "qs", "icp", "mil"}
SMALL = Settings(hidden=4, head_width=4, window=4, rounds=1, local_steps=2, batch_size=16, finetune_epochs=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five stations, forty days, a day and a week of their own."""
    folder = tmp_path_factory.mktemp("data")
    hour = np.arange(24 * 40)
    rng = np.random.default_rng(0)
    energy = [
        np.maximum(0, (3 + k) * (1 + np.sin(2 * np.pi * (hour + 3 * k) / 24)) + rng.normal(0, 0.5, len(hour)))
        for k in range(5)
    ]
    time = (np.datetime64("2024-01-01T00:00") + hour * np.timedelta64(60, "m")).astype(str)
    places = {"lat": np.arange(5.0), "lon": np.zeros(5)}
    path = folder / "palo_alto.npz"
    np.savez(path, time=time, energy_kwh=np.stack(energy, axis=1).astype(np.float32), **places)
    return folder


def arguments(folder: Path, **changes: Any) -> argparse.Namespace:
    given = {"data": folder, "dataset": None, "horizon": None, "history": None, "methods": None, "seeds": [0, 1, 2]}
    return argparse.Namespace(**{**given, "quick": False, "ablation": False, **changes})


def test_the_whole_table_has_every_cell_once(tmp_path: Path) -> None:
    for name in ("charged_mel", "charged_spo", "charged_jhb", "perth_kinross", "palo_alto"):
        (tmp_path / f"{name}.npz").touch()
    cells = fedgame.planned(arguments(tmp_path))
    assert len(set(cells)) == len(cells)
    rows = {(c.dataset, c.horizon, c.history_weeks, method, c.seed) for c in cells for method in c.methods}
    learned = [name for name in METHODS if name not in ("persistence", "seasonal_naive")]
    for method in learned:
        for seed in (0, 1, 2):
            found = {weeks for d, h, weeks, m, s in rows if (d, h, m, s) == ("charged", 6, method, seed)}
            assert found == ({1, 4, None} if seed == 0 else {4, None})
    assert {h for d, h, *_ in rows if d == "perth_kinross"} == {3, 6, 12}
    assert len(fedgame.planned(arguments(tmp_path, ablation=True))) == len(ABLATION)


@pytest.mark.parametrize("method", [m for m in [*METHODS, *ABLATION] if m not in TOGETHER])
def test_every_method_makes_its_rows(data: Path, method: str) -> None:
    cell = fedgame.Cell(dataset="palo_alto", horizon=3, history_weeks=4, method=method, seed=0)
    rows = fedgame.run_cell(cell, data, SMALL)
    assert {row["method"] for row in rows} == set(cell.methods)
    assert {row["seen"] for row in rows} == {True, False}
    for row in rows:
        assert set(row) >= KEYS
        assert 0 < row["qs"] < 1
        assert 0 <= row["icp"] <= 100
        assert row["stations"] == (4 if row["seen"] else 1)
        json.dumps(row)


def test_short_histories_and_neighbours(data: Path) -> None:
    stations = read_stations(data, "palo_alto")
    short, refused = shortened(stations, 1, 60)
    assert {len(each.series.values) - each.series.training for each in short} == {8 * 24}
    assert {each.series.training for each in short} == {7 * 24}
    assert not refused
    graph = neighbours(stations)
    unseen = {station.name for station in stations if station.unseen}
    assert len(unseen) == 1
    assert all(not unseen & set(others) and name not in others for name, others in graph.items())


def test_methods_differ_in_what_they_say_alone() -> None:
    given: dict[str, Any] = {"horizon": 6, "seed": 0, "unseen": (), "graph": {"a": ["b"]}, "groups": {"a": "x"}}
    plain = specification("fedavg", Settings(), **given)
    prox = specification("fedprox", Settings(), **given)
    assert {**plain.method_config["training"], "proximal": 0.01, "personal": {"validation": 0.1}} == {
        **prox.method_config["training"]
    }
    game = specification("fedgame", Settings(), **given)
    for key in ("optimiser", "learning_rate", "local_steps", "batch_size", "clip_norm"):
        assert game.method_config["training"][key] == plain.method_config["training"][key]
    assert game.method_config["model"] == plain.method_config["model"]
    assert specification("gat", Settings(), **given).method_config["game"]["graph"] == {"a": ["b"]}
    longer = specification("fedavg", replace(Settings(), lags=(4,)), **given)
    assert longer.method_config["model"]["lags"] == [6]


def test_the_ratios_pair_seeds() -> None:
    def row(method: str, seed: int, qs: float) -> dict[str, Any]:
        figures = {"qs": qs, "icp": 90.0, "mil": 0.2, "icp_gap": 1.0, "qs_original": 1.0, "qs_median": qs}
        place = {"dataset": "charged", "horizon": 6, "history_weeks": None, "seen": True}
        return {**place, "method": method, "seed": seed, **figures}

    rows = [row("fedgame", 0, 0.9), row("fedavg", 0, 1.0), row("fedgame", 1, 1.8), row("fedavg", 1, 2.0)]
    assert "fedgame / fedavg              0.900  (0.900 to 0.900)   at most 0.95: yes" in ratios(rows)
    assert "all  seen     fedgame" in table(rows)
