"""`hanse-agent forecast`: the next hours of the node's own series, printed or written, with nobody asked."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")

from hanse.harness import Harness
from hanse.jobs import JobSpecification
from hanse_agent.files import write_json
from hanse_agent.main import run_command
from hanse_agent.registry import open_dataset


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A node that has trained a forecaster of its demand."""
    rng = np.random.default_rng(0)
    times = np.datetime64("2024-01-01T00:00") + np.arange(24 * 20) * np.timedelta64(60, "m")
    lines = [f"{time},{5 + 3 * np.sin(i / 4) + rng.random():.3f}" for i, time in enumerate(times)]
    (tmp_path / "demand.csv").write_text("\n".join(["time,kwh", *lines]) + "\n")
    block = {"path": str(tmp_path / "demand.csv"), "value": "kwh", "station": "Harbour"}
    specification = JobSpecification.model_validate(
        {
            "name": "charging",
            "method": "fedavg",
            "dataset": "demand",
            "model": "gru_forecaster",
            "rounds": 1,
            "evaluation": {"every": 1},
            "method_config": {
                "model": {"hidden": 4, "layers": 1, "head_width": 4, "horizon": 4},
                "training": {"local_steps": 2, "personal": {"served": "post"}},
            },
        }
    )
    work = tmp_path / "work"
    Harness("fedavg", {"n": open_dataset("demand", "series", block)}, specification, workdir=work).run()
    job = tmp_path / "state" / "jobs" / "job-1"
    (job / "versions").mkdir(parents=True)
    (work / "nodes" / "n" / "2").rename(job / "versions" / "00000002")
    write_json(job / "job.json", {"job": "job-1", "name": "charging", "method": "fedavg", "dataset": "demand"})
    document = {
        "coordinator": "nowhere.example.org:7443",
        "state": str(tmp_path / "state"),
        "datasets": {"demand": {"kind": "series", **block, "path": "demand.csv"}},  # relative to this file
        "policy": {"methods": ["fedavg"]},
    }
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(document))
    return tmp_path


def forecast(site: Path, capsys: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run_command(["forecast", *arguments, "--config", str(site / "agent.yaml"), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_next_hours_are_printed_or_written(site: Path, capsys: Any) -> None:
    code, said = forecast(site, capsys, "--job", "charging")
    assert code == 0
    data = said["data"]
    assert data["columns"] == ["station", "time", "step", "q05", "q50", "q95", "unit", "model"]
    assert data["rows"][0][:3] == ["Harbour", "2024-01-21T00:00", 1]
    assert len(data["rows"]) == 4
    assert data["rows"][0][-1] == "this node's own model"
    code, _ = forecast(site, capsys, "--job", "job-1", "--output", str(site / "next.csv"))
    with (site / "next.csv").open() as file:
        written = list(csv.DictReader(file))
    assert code == 0
    assert [float(row["q50"]) for row in written] == [row[4] for row in data["rows"]]


def test_what_is_unknown_or_not_to_be_written_is_named(site: Path, capsys: Any) -> None:
    code, said = forecast(site, capsys, "--job", "weather")
    assert (code, said["error"]["code"]) == (1, "UNKNOWN_JOB")
    code, said = forecast(site, capsys, "--job", "charging", "--output", str(site / "next.txt"))
    assert code == 1
    assert "suffix" in said["error"]["sentence"]
