"""Fed-GAME with many stations in one federation: what a round costs, and where.

    python benchmarks/fedgame_stations.py [--stations 250] [--rounds 20] [--processes 2] [--json]

Every station is a node of its own, with its own certificate, session, state and policy; few agent processes carry them
all, each with one worker. Series are generated (weekly patterns with noise, hourly, four weeks). The forecaster is the
method's own (GRU, 2 layers of 128, horizon 6) unless `--hidden` says otherwise; a node takes `--steps` optimiser steps
a round. Coordinator, aggregator and agents are processes, over TLS on loopback.

A round lasts from the opening of its training phase, as the ledger has it, to the opening of the next. `closing_s` is
what the aggregator needs at its end: from the last contribution of a round to the opening of the next. Peaks are those
of resident memory (VmHWM) of each process. The aggregator's first round has the import of torch in it.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scale
import yaml
from measuring import Watch, cpu_seconds, family, waited

from hanse.cli.connection import Control, find_connection
from hanse.embedded import EmbeddedFederation, EmbeddedOptions
from hanse.jobs import JobSpecification, Selection
from hanse.v1 import control_pb2

HOURS = 4 * 7 * 24
JOB_TIMEOUT_S = 4 * 3600
DATASET, METHOD, MODEL = "demand", "fedgame", "gru_forecaster"


@dataclass(frozen=True)
class Settings:
    """What is run; printed with the result."""

    stations: int
    rounds: int
    agent_processes: int
    hidden: int
    layers: int
    local_steps: int
    horizon: int = 6


@dataclass(frozen=True)
class Result:
    """The row that is printed with `--json`. Figures of a round are medians over the rounds."""

    settings: Settings
    round_s: float
    first_round_s: float
    closing_s: float
    aggregator_cpu_s_first_round: float
    aggregator_cpu_s_per_later_round: float
    coordinator_cpu_s_per_round: float
    agents_cpu_s_per_round: float
    overhead_formula: float
    overhead_measured: float
    peak_rss_mb: dict[str, float]
    rounds_s: list[float]


class Stations(scale.Crowd):
    """Nodes with a series each."""

    def _configure(self, number: int) -> Path:
        folder = self._folder / f"station-{number:04d}"
        folder.mkdir()
        write_series(folder / "demand.parquet", number)
        document = {
            "coordinator": self._federation.nodes_address,
            "state": str(folder / "state"),
            "datasets": {
                DATASET: {"kind": "series", "path": str(folder / "demand.parquet"), "time": "time", "value": "kwh"}
            },
            "policy": {"methods": [METHOD]},
            "worker": {"threads": 1, "learners": 2 * scale.A_PROCESS},
        }
        (folder / "agent.yaml").write_text(yaml.safe_dump(document))
        return folder / "state"


def write_series(path: Path, number: int) -> None:
    """A station's weekly pattern: one of five kinds, with a level and noise of its own."""
    rng = np.random.default_rng(number)
    hours = np.arange(HOURS)
    peak, weekend = (8, 12, 18, 20, 2)[number % 5], (0.3, 1.5, 0.8, 1.2, 1.0)[number % 5]
    day = np.exp(-(((hours - peak + 12) % 24 - 12) ** 2) / 18)
    demand = rng.uniform(5, 50) * day * np.where(hours // 24 % 7 >= 5, weekend, 1.0)
    demand = np.maximum(demand * (1 + 0.2 * rng.standard_normal(HOURS)), 0)
    times = np.datetime64("2024-01-01T00:00", "m") + hours * np.timedelta64(60, "m")
    pq.write_table(pa.table({"time": times.astype(str), "kwh": demand}), path)


def specification(settings: Settings) -> JobSpecification:
    """The job."""
    model = {"hidden": settings.hidden, "layers": settings.layers, "horizon": settings.horizon}
    training = {"learning_rate": 0.05, "momentum": 0.0, "batch_size": 64, "local_steps": settings.local_steps}
    return JobSpecification(
        name="stations",
        method=METHOD,
        dataset=DATASET,
        model=MODEL,
        rounds=settings.rounds,
        selection=Selection(minimum_nodes=settings.stations, quorum=1.0, deadline=timedelta(minutes=30)),
        method_config={"model": model, "training": {**training, "keep_optimiser": False}},
    )


def run(settings: Settings, folder: Path) -> Result:
    """One federation, one job."""
    scale.A_PROCESS = -(-settings.stations // settings.agent_processes)
    with ExitStack() as stack:
        federation = EmbeddedFederation(folder / "state", EmbeddedOptions(node_port=0, control_port=0))
        stack.enter_context(federation.running())
        control = stack.enter_context(Control(find_connection(federation.state)))
        stations = Stations(federation, control, folder)
        stack.callback(stations.stop)
        stations.grow(settings.stations)
        services = federation.children
        roots = {
            **{name: services[name].pid or 0 for name in ("coordinator", "aggregator")},
            **{f"agent-{number}": agent.pid or 0 for number, agent in enumerate(stations.agents)},
        }
        watch = Watch(lambda: {name: [pid] for name, pid in roots.items()})
        request = control_pb2.SubmitJobRequest(specification=specification(settings).model_dump_json().encode())
        job = control.call("SubmitJob", request)
        # By the ledger's file: whoever watches a job of so many nodes costs the coordinator something.
        aggregator = roots["aggregator"]
        waited(lambda: _round(federation.ledger_file) > 1, timeout_s=JOB_TIMEOUT_S, what="the second round")
        warm = cpu_seconds(family(aggregator))
        waited(lambda: _ended(federation.ledger_file), timeout_s=JOB_TIMEOUT_S, what="the job to end")
        later = (cpu_seconds(family(aggregator)) - warm) / (settings.rounds - 1)
        _, cpu = watch.stop()
        detail = control.call("GetJob", control_pb2.GetJobRequest(job=job.id))
        if detail.job.state != "succeeded":
            raise SystemExit(f"the job {detail.job.state}: {detail.job.reason.sentence}")
        peaks = {name: peak for root, pid in roots.items() for name, peak in _peaks(root, pid).items()}
        times, closing = _from_ledger(federation.ledger_file, settings.rounds)
    metrics = {row.name: row.value for row in detail.metrics if row.scope == "aggregation"}
    agents = sum(seconds for name, seconds in cpu.items() if name.startswith("agent-"))
    return Result(
        settings=settings,
        round_s=round(statistics.median(times), 3),
        first_round_s=round(times[0], 3),
        closing_s=round(statistics.median(closing), 3),
        aggregator_cpu_s_first_round=round(cpu["aggregator"] - later * (settings.rounds - 1), 3),
        aggregator_cpu_s_per_later_round=round(later, 3),
        coordinator_cpu_s_per_round=round(cpu["coordinator"] / settings.rounds, 3),
        agents_cpu_s_per_round=round(agents / settings.rounds, 3),
        overhead_formula=round(metrics["overhead_formula"], 6),
        overhead_measured=round(metrics.get("overhead_measured", 0.0), 6),
        peak_rss_mb=peaks,
        rounds_s=[round(seconds, 3) for seconds in times],
    )


def _ended(path: Path) -> bool:
    return _job(path)[0] in ("succeeded", "failed", "cancelled", "paused")


def _round(path: Path) -> int:
    """The round that is at work; a job that has ended is past all of them."""
    return sys.maxsize if _ended(path) else _job(path)[1]


def _job(path: Path) -> tuple[str, int]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        state, number = ledger.execute("SELECT state, round FROM job").fetchone()
    return state, number


def _peaks(name: str, pid: int) -> dict[str, float]:
    """Peak resident memory of a process and of each that descends from it."""
    found = {}
    for place, each in enumerate(family(pid)):
        text = Path(f"/proc/{each}/status").read_text()
        kilobytes = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM:"))
        found[name if place == 0 else f"{name} worker {place}"] = round(kilobytes / 1e3, 1)
    return found


def _from_ledger(path: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each round, and from its last contribution to its end."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        phases = ledger.execute("SELECT id, opened_at FROM phase ORDER BY ordinal, attempt").fetchall()
        last = dict(ledger.execute("SELECT phase, max(received_at) FROM contribution GROUP BY phase"))
        (ended,) = ledger.execute("SELECT ended_at FROM job").fetchone()
    if len(phases) != rounds:
        raise SystemExit(f"{len(phases)} phases were opened for {rounds} rounds: the run was disturbed")
    ends = [*(opened for _, opened in phases[1:]), ended]
    times = [end - opened for (_, opened), end in zip(phases, ends, strict=True)]
    return times, [end - last[phase] for (phase, _), end in zip(phases, ends, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stations", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2, help="agent processes that carry the stations")
    parser.add_argument("--hidden", type=int, default=128, help="width of the GRU")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="optimiser steps of a node in a round")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this folder")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, since the first has imports in it")
    settings = Settings(
        stations=options.stations,
        rounds=options.rounds,
        agent_processes=options.processes,
        hidden=options.hidden,
        layers=options.layers,
        local_steps=options.steps,
    )
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hanse-stations-")))
        folder.mkdir(parents=True, exist_ok=True)
        result = run(settings, folder)
    if options.json:
        print(json.dumps(asdict(result)))
        return
    for key, value in asdict(result).items():
        print(f"{key:28} {value}")


if __name__ == "__main__":
    sys.exit(main())
