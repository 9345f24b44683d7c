"""`hanse demo charging`: each charging station gets the forecast that fits it, and its sessions stay where they are.

A real federation on this machine, one agent a station: raw sessions become hourly demand at each node, all stations but
one train by Fed-GAME, and the last one adapts the model to itself. The sessions are generated unless `--data` names a
folder of real ones. What came out is set beside two floors that need no training.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hanse.cli.output import Answer, fields, table
from hanse.cli.views import amount
from hanse.demos import charging_data
from hanse.demos.federation import FinishedJob, federation, keep_what_counts, metric, run_job
from hanse.demos.people import AGENT, Person
from hanse.embedded import child_environment
from hanse.errors import HanseError, PlatformError
from hanse.harness import Harness, HarnessResult, installed
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.learning.quantiles import score_quantiles
from hanse.learning.series import Series, fit_scale, origins
from hanse.learning.series_baselines import persistence, seasonal_naive

METHOD = "fedgame"
DATASET = "demand"
MODEL = "gru_forecaster"
KIND = "station"
HORIZON, WINDOW, LAGS = 6, 12, (24,)
QUANTILES = (0.05, 0.5, 0.95)
HOLDOUT = 0.2

Say = Callable[[str], None]
Blocks = Mapping[Person, Mapping[str, Any]]


def job_specification(unseen: str, rounds: int, *, nodes: int) -> JobSpecification:
    """The demo's job."""
    model = {
        "horizon": HORIZON,
        "window": WINDOW,
        "lags": list(LAGS),
        "quantiles": list(QUANTILES),
        "hidden": 16,
        "layers": 1,
        "head_width": 16,
    }
    training = {
        "optimiser": "sgd",
        "learning_rate": 0.5,
        "clip_norm": 1.0,
        "weight_decay": 0.0,
        "keep_optimiser": False,
        "local_epochs": 1000,
        "local_steps": 25,
        "batch_size": 64,
        "proximal": 0.01,
        "evaluation_batch_size": 1024,
    }
    return JobSpecification(
        name="charging",
        method=METHOD,
        dataset=DATASET,
        model=MODEL,
        rounds=rounds,
        selection=Selection(minimum_nodes=nodes - 1, quorum=1.0, labels={"kind": KIND}),
        evaluation=EvaluationSettings(every=rounds, unseen=(unseen,)),
        method_config={"model": model, "training": training, "weighting": "uniform"},
    )


def run_demo(*, data: Path | None, rounds: int, state: Path | None, keep: bool, say: Say) -> Answer:
    """Run it and say how it went.

    Raises:
        HanseError: whatever stood in the way; processes are stopped in any case.
    """
    files = charging_data.read_folder(data) if data is not None else None
    folder = state.absolute() if state else Path(tempfile.mkdtemp(prefix="hanse-demo-"))
    say("reading the sessions …" if files else "generating twelve weeks of sessions at eight stations …")
    blocks = _blocks(folder, files)
    series = {person.name: _series(block) for person, block in blocks.items()}
    unseen = "office-south" if files is None else sorted(series)[-1]
    specification = job_specification(unseen, rounds, nodes=len(blocks))
    with federation(blocks, folder=folder, dataset=DATASET, method=METHOD, say=say) as control:
        say(f"training on all stations but {unseen}, which adapts the model to itself …")
        done = run_job(control, list(blocks), specification, folder=folder, say=say)
    say("the same job in this process, to compare the bytes …")
    if _harness(specification, blocks).model_digest != done.digest:
        raise PlatformError("The federation's model is not that of the same job in one process.", code="DEMO_FAILED")
    first = next(person for person in blocks if person.name != unseen)
    forecast = _forecast(first, done.job)
    sent = {person.name: person.bytes_sent(done.job) for person in blocks}
    if not keep and state is None:
        keep_what_counts(folder, "*.csv")
    floors = {name: _floors(each) for name, each in series.items()}
    return _answer(done, floors, sent, forecast, unseen=unseen, rounds=rounds, folder=folder, generated=files is None)


def _blocks(folder: Path, files: Mapping[str, Path] | None) -> dict[Person, Mapping[str, Any]]:
    blocks: dict[Person, Mapping[str, Any]] = {}
    for name in files or charging_data.GENERATED:
        person = Person(name=name, folder=folder / "people" / name, kind=KIND)
        options: dict[str, Any] = {"kind": "charging_sessions", "station": name, "holdout": HOLDOUT}
        if files is None:
            path = person.folder / "sessions.csv"
            charging_data.write_sessions(charging_data.generate_sessions(name), path)
            options |= {"path": str(path), "timezone": charging_data.ZONE}
        else:
            person.folder.mkdir(parents=True, exist_ok=True)
            options |= {"path": str(files[name].absolute()), "invalid": "drop"}
        blocks[person] = options
    return blocks


def _dataset(block: Mapping[str, Any]) -> Any:
    kind = installed("hanse.datasets", "charging_sessions")
    return kind(DATASET, {key: value for key, value in block.items() if key != "kind"})


def _series(block: Mapping[str, Any]) -> Series:
    series: Series = _dataset(block).load()[0]
    return series


def _harness(specification: JobSpecification, blocks: Blocks) -> HarnessResult:
    import torch

    torch.set_num_threads(1)  # as the agents' workers do: the same bytes
    nodes = {person.name: _dataset(block) for person, block in blocks.items()}
    return Harness(specification.method, nodes, specification).run()


def _floors(series: Series) -> dict[str, float]:
    """QS of persistence and of the seasonal naive forecast, in units of the station's level."""
    _, rows = origins(series, window=WINDOW, lags=LAGS, horizon=HORIZON)
    level = fit_scale(series, HORIZON).level
    truth = series.values[rows[:, None] + np.arange(1, HORIZON + 1)] / level
    found = {}
    for name, forecaster in (("persistence", persistence), ("seasonal_naive", seasonal_naive)):
        forecast = forecaster(series, rows, horizon=HORIZON, quantiles=QUANTILES) / level
        found[name] = float(score_quantiles(truth, forecast, QUANTILES).qs.mean())
    return found


def _forecast(person: Person, job: str) -> list[dict[str, Any]]:
    """What the station's own agent says of the next hours: `hanse-agent forecast`."""
    command = [sys.executable, "-m", AGENT, "forecast", "--job", job, "--config", str(person.config), "--json"]
    result = subprocess.run(  # noqa: S603 - our own interpreter and module
        command, capture_output=True, text=True, env=child_environment(), timeout=300, check=False
    )
    try:
        answer = json.loads(result.stdout)
        columns, rows = answer["data"]["columns"], answer["data"]["rows"]
    except (ValueError, KeyError, TypeError) as error:
        said = " ".join((result.stderr or result.stdout).split())[-300:]
        raise PlatformError(f"{person.name} could not forecast: {said}", code="DEMO_FAILED") from error
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _answer(
    done: FinishedJob,
    floors: Mapping[str, Mapping[str, float]],
    sent: Mapping[str, int],
    forecast: list[dict[str, Any]],
    *,
    unseen: str,
    rounds: int,
    folder: Path,
    generated: bool,
) -> Answer:
    own = {name: {each: _figure(done, name, each, unseen) for each in ("qs", "icp", "mil")} for name in sorted(sent)}
    rows = [
        (
            f"{name} (unseen)" if name == unseen else name,
            _thousandths(own[name]["qs"]),
            _thousandths(_common(done, name, unseen)),
            _thousandths(floors[name]["persistence"]),
            _thousandths(floors[name]["seasonal_naive"]),
            f"{own[name]['icp']:.0f} %",
            f"{own[name]['mil']:.2f}",
            amount(sent[name]),
        )
        for name in sorted(sent)
    ]
    model = done.files["model.safetensors"]
    facts = fields(
        [
            ("sessions", "GENERATED, with weekly patterns of offices, shops, homes and motorways" if generated else
             "read from the folder given"),
            ("next hours", _said(forecast)),
            ("bytes", "the model is, byte for byte, that of the same job in one process"),
            ("time a round", f"{done.seconds / rounds:.2f} s"),
            ("ledger", f"{done.events} events, whole; checked against what the agents had been shown"),
            ("model", f"{model}  (card.md beside it says what it is)"),
            ("journals", str(folder / "people" / "*" / "state" / "egress.jsonl")),
        ]
    )  # fmt: skip
    note = (
        "note: QS (pinball loss, lower is better) in thousandths and MIL in units of each station's level; ICP should "
        f"be 90 %. {HORIZON} hours ahead on the last fifth of each station's hours. OWN is the station's own model; "
        "that of the unseen station is the common one adapted to it."
    )
    headings = ("STATION", "OWN QS", "COMMON", "PERSISTENCE", "SEASONAL", "ICP", "MIL", "SENT")
    title = f"{METHOD}: {len(sent) - 1} stations train, {unseen} adapts; {rounds} rounds"
    extra = {
        "method": METHOD,
        "rounds": rounds,
        "unseen": unseen,
        "generated": generated,
        "figures": own,
        "common_qs": {name: _common(done, name, unseen) for name in own},
        "floors": {name: dict(each) for name, each in floors.items()},
        "forecast": forecast,
        "bytes_sent_per_node": dict(sent),
        "seconds_per_round": round(done.seconds / rounds, 4),
        "same_bytes_in_one_process": True,
        "ledger": {"verified": True, "events": done.events, "path": str(folder / "ledger.sqlite")},
        "model_path": str(model),
    }
    text = f"{title}\n\n{table(headings, rows, empty='')}\n\n{facts}\n\n{note}"
    return Answer(data={"job": done.job, "state": str(folder)}, text=text, extra=extra)


def _figure(done: FinishedJob, node: str, name: str, unseen: str) -> float:
    """A figure of the model that the node uses."""
    if node != unseen:
        return metric(done.detail, name, "node", node)
    try:
        return metric(done.detail, f"adapted_{name}", "node", node)
    except HanseError:  # it could not adapt: as received
        return metric(done.detail, name, "node", node)


def _common(done: FinishedJob, node: str, unseen: str) -> float:
    return metric(done.detail, "qs" if node == unseen else "global_qs", "node", node)


def _said(forecast: list[dict[str, Any]]) -> str:
    first = forecast[0]
    hours = ", ".join(f"{row['q50']:.1f} ({row['q05']:.1f} to {row['q95']:.1f})" for row in forecast[:3])
    return f"{first['station']} from {first['time']}: {hours} {first['unit']} …"


def _thousandths(value: float) -> str:
    return f"{1000 * value:.1f}"
