"""How fast a boosting round is, through the real federation over TLS, beside central XGBoost `hist`.

    python benchmarks/fedscs_speed.py                   3 nodes x 20,000 rows x 28 columns, 20 rounds, both statistics
    python benchmarks/fedscs_speed.py --case large      8 nodes x 200,000 rows x 50 columns, by histograms

Depth 6, 256 bins, two classes, edges made once as `hist` does (`sketch_every: 0`), all nodes in every round, on one
machine. A round lasts from the opening of its first phase, as the ledger has it, to the opening of the next round's.
Bytes are those of the payloads that all nodes send a round; `received` those that they are sent. Peak memory is the
largest resident set of each process, its workers among them, sampled every 250 ms; processor time is that of the whole
job by its rounds, and does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import psutil
import xgboost
from federations import Running, federation
from measuring import cpu_seconds, family

from hanse.jobs import JobSpecification, Selection
from hanse.tables import Table

CONFIG: dict[str, Any] = {"objective": "binary:logistic", "max_depth": 6, "bins": 256, "eta": 0.3}


@dataclass(frozen=True)
class Case:
    nodes: int
    rows: int
    columns: int
    rounds: int


CASES = {"small": Case(3, 20_000, 28, 20), "large": Case(8, 200_000, 50, 5)}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is printed for one way of training."""

    case: str
    method: str
    statistics: str
    sketch_every: int
    median_round_s: float
    first_round_s: float
    exchanges_per_round: float
    sent_bytes_per_round: int
    received_bytes_per_round: int
    peak_rss_mb: dict[str, float] = field(default_factory=dict)
    cpu_s_per_round: dict[str, float] = field(default_factory=dict)
    model: str = ""


def tables(case: Case) -> dict[str, Table]:
    """Made rows: two classes that depend on a third of the columns."""
    found = {}
    for k in range(case.nodes):
        rng = np.random.default_rng(k)
        values = rng.normal(size=(case.rows, case.columns)).astype(np.float32)
        weights = np.random.default_rng(99).normal(size=case.columns // 3)
        score = values[:, : case.columns // 3] @ weights + values[:, 0] * values[:, 1] + rng.normal(size=case.rows)
        found[f"node-{k}"] = Table(
            features=values,
            feature_names=tuple(f"c{i:02d}" for i in range(case.columns)),
            target=(score > 0).astype(np.float64),
            weight=np.ones(case.rows, dtype=np.float32),
            held_out=np.zeros(case.rows, dtype=np.bool_),
        )
    return found


def central(name: str, case: Case, rows: dict[str, Table], threads: int) -> Row:
    """XGBoost on all rows in one place; bins are made before the clock starts."""
    values = np.concatenate([table.features for table in rows.values()])
    labels = np.concatenate([table.target for table in rows.values()])
    data = xgboost.QuantileDMatrix(values, label=labels, max_bin=CONFIG["bins"], nthread=threads)
    own = {key: value for key, value in CONFIG.items() if key != "bins"}
    booster = xgboost.Booster({**own, "max_bin": CONFIG["bins"], "tree_method": "hist", "nthread": threads}, [data])
    times = []
    for number in range(case.rounds):
        began = time.monotonic()
        booster.update(data, number)
        times.append(time.monotonic() - began)
    return Row(
        case=name,
        method=f"central hist, {threads} threads",
        statistics="",
        sketch_every=0,
        median_round_s=round(statistics.median(times), 4),
        first_round_s=round(times[0], 4),
        exchanges_per_round=0,
        sent_bytes_per_round=0,
        received_bytes_per_round=0,
    )


def federated(name: str, case: Case, running: Running, kind: str, sketch_every: int) -> Row:
    """One job of FedSCS-XGB."""
    job = JobSpecification(
        name="speed",
        method="fedscs_xgb",
        dataset="rows",
        rounds=case.rounds,
        selection=Selection(minimum_nodes=case.nodes, quorum=1.0),
        method_config={**CONFIG, "statistics": kind, "sketch_every": sketch_every},
    )
    with _Watch(running) as memory:
        detail = running.run(job)
    phases = running.ask(
        "SELECT round, name, opened_at, id, instruction_digest FROM phase WHERE job = ? AND round > 0 "
        "AND name != 'deliver' ORDER BY ordinal, attempt",
        detail.job.id,
    )
    ((ended,),) = running.ask("SELECT min(opened_at) FROM phase WHERE job = ? AND name = 'deliver'", detail.job.id)
    begins = {}
    for number, _, opened, *_ in phases:
        begins.setdefault(number, opened)
    moments = [*begins.values(), ended]
    times = [after - before for before, after in pairwise(moments)]
    ((sent,),) = running.ask(
        "SELECT sum(size) FROM contribution JOIN phase ON phase.id = contribution.phase "
        "WHERE contribution.job = ? AND phase.round > 0",
        detail.job.id,
    )
    sizes = dict(running.ask("SELECT digest, size FROM artifact"))
    received = case.nodes * sum(sizes[digest] for *_, digest in phases)
    return Row(
        case=name,
        method="fedscs",
        statistics=kind,
        sketch_every=sketch_every,
        median_round_s=round(statistics.median(times), 4),
        first_round_s=round(times[0], 4),
        exchanges_per_round=round(len(phases) / case.rounds, 2),
        sent_bytes_per_round=int(sent / case.rounds),
        received_bytes_per_round=int(received / case.rounds),
        peak_rss_mb=memory.peaks,
        cpu_s_per_round={name: round(spent / case.rounds, 4) for name, spent in memory.spent.items()},
        model=detail.model_digest[:16],
    )


class _Watch:
    """The largest resident set of each program and its workers while a job runs, and the processor time it takes."""

    def __init__(self, running: Running) -> None:
        self._roots = {name: running.federation.children[name].pid or 0 for name in ("coordinator", "aggregator")}
        self._roots |= {f"agent {agent.name}": agent.pid or 0 for agent in running.agents}
        self.peaks = dict.fromkeys(self._roots, 0.0)
        self.spent: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Watch:
        self._before = {name: cpu_seconds(family(root)) for name, root in self._roots.items()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.spent = {name: cpu_seconds(family(root)) - self._before[name] for name, root in self._roots.items()}
        self.peaks = {name: round(peak / 1e6, 1) for name, peak in self.peaks.items()}

    def _sample(self) -> None:
        while not self._ended.wait(0.25):
            for name, root in self._roots.items():
                total = 0
                for pid in family(root):
                    try:
                        total += psutil.Process(pid).memory_info().rss
                    except psutil.Error:
                        continue
                self.peaks[name] = max(self.peaks[name], float(total))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), default="small")
    parser.add_argument("--statistics", action="append", choices=["atoms", "histograms"])
    parser.add_argument("--sketch-every", action="append", type=int, metavar="N", help="default: 0")
    parser.add_argument("--rounds", type=int, help="other than the case's")
    parser.add_argument("--json", action="store_true", help="one JSON array on standard output")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this folder")
    options = parser.parse_args()
    case = CASES[options.case]
    if options.rounds:
        case = Case(case.nodes, case.rows, case.columns, options.rounds)
    kinds = options.statistics or (["histograms", "atoms"] if options.case == "small" else ["histograms"])
    rows = tables(case)
    found = [central(options.case, case, rows, threads) for threads in (1, 2)]
    with (
        tempfile.TemporaryDirectory(prefix="hanse-speed-") as folder,
        federation(options.keep or Path(folder), rows) as running,
    ):
        for every in options.sketch_every or [0]:
            found += [federated(options.case, case, running, kind, every) for kind in kinds]
    if options.json:
        print(json.dumps([asdict(row) for row in found]))
        return
    for row in found:
        print(
            f"{row.method:24} {row.statistics:11} sketch_every {row.sketch_every}",
            f"median {row.median_round_s * 1e3:8.1f} ms  first {row.first_round_s * 1e3:8.1f} ms",
            f"{row.exchanges_per_round:4.1f} exchanges  sent {row.sent_bytes_per_round / 1e6:8.3f} MB",
            f"received {row.received_bytes_per_round / 1e6:8.3f} MB  {row.model}",
            sep="  ",
        )
        for name, peak in row.peak_rss_mb.items():
            print(f"    {name:20} {peak:9.1f} MB  {row.cpu_s_per_round[name] * 1e3:8.1f} ms of processor time a round")


if __name__ == "__main__":
    main()
