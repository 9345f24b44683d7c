"""The benchmark of gPerXAN on three tiny domains: every method's rows, their keys, the table and the cost of XAN."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import gperxan
from gperxan import Cell, Settings, run_cell
from gperxan_table import ABLATION, METHODS, NOT_RUN, READOUTS, cost, table

KEYS = {
    "dataset",
    "unseen",
    "method",
    "unseen_bn",
    "seed",
    "accuracy",
    "bytes_per_round",
    "seconds_per_round",
    "processor_seconds_per_round",
}
SMALL = Settings(train=12, test=6, size=8, width=2, rounds=1, schedule="standard")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three domains of ten classes."""
    folder = tmp_path_factory.mktemp("digits")
    rng = np.random.default_rng(0)
    for place, name in enumerate(("a", "b", "c")):
        x = rng.integers(0, 120 + 60 * place, (30, 8, 8), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(30) % 10, test=np.arange(30) % 3 == 0)
    return folder


@pytest.mark.parametrize("method", [*METHODS, *ABLATION])
def test_every_method_runs_and_its_rows_have_the_keys(data: Path, method: str) -> None:
    rows = run_cell(Cell(dataset="tiny", unseen="c", method=method, seed=0), data, SMALL)
    read = ["average", "batch_stats", *(["in_only", "client_ensemble"] if method == READOUTS else [])]
    assert [row["unseen_bn"] for row in rows] == read
    for row in rows:
        assert set(row) == KEYS
        assert 0 <= row["accuracy"] <= 1
        assert row["processor_seconds_per_round"] > 0
        assert (row["bytes_per_round"] > 0) == (method not in ("local", "central"))


def test_an_ablation_of_one_seed_is_run_once_and_taken_up_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    arguments = f"gperxan.py --data {data} --dataset tiny --ablation --seeds 0 --rounds 1 --jobs 1 --json --out {out}"
    monkeypatch.setattr(sys, "argv", arguments.split())
    monkeypatch.setattr(gperxan, "ABLATION", [READOUTS])
    gperxan.main()
    first = capsys.readouterr()
    rows = json.loads(first.out)
    assert len(rows) == 3 * 4
    assert {row["seed"] for row in rows} == {0}
    assert "nan" not in first.err
    gperxan.main()
    again = capsys.readouterr()
    assert json.loads(again.out) == rows
    assert "0 cells in" in again.err


def row(method: str, seed: int, **values: float) -> dict[str, Any]:
    figures = {"accuracy": 0.5, "bytes_per_round": 100, "seconds_per_round": 1.0, **values}
    return {"dataset": "d", "unseen": "a", "method": method, "unseen_bn": "average", "seed": seed, **figures}


def test_cost_compares_medians_over_the_cells_that_both_have() -> None:
    rows = [row("fedavg", seed, seconds_per_round=seconds) for seed, seconds in enumerate((1.0, 1.0, 9.0, 500.0))]
    rows += [row("gperxan", seed, bytes_per_round=102, seconds_per_round=1.1) for seed in range(3)]
    assert cost(rows) == (
        "gperxan against fedavg: +2.0 % bytes a round, +10.0 % wall time a round (medians over 3 cells)"
    )
    assert cost([row("gperxan", 0)]) == cost([]) == cost([row("fedavg", 0), row("gperxan", 1)]) == ""
    rows = [row("fedavg", 0, processor_seconds_per_round=2.0), row("xan", 0, processor_seconds_per_round=2.5)]
    assert "+25.0 % processor time a round, +0.0 % wall time" in cost(rows)


def test_the_table_says_why_methods_are_not_run_and_a_single_seed_has_no_deviation() -> None:
    one = table([row("fedavg", 0)])
    assert "±" not in one
    for method in NOT_RUN:
        assert f"\n{method} " in one
    assert "copa" not in table([row("fedavg", 0)], absent=False)
    assert "0.550 ± 0.071" in table([row("fedavg", 0), row("fedavg", 1, accuracy=0.6)])
