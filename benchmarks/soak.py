"""Whether memory stays flat and every round is accounted for when a job runs for long with nodes that come and go.

    python benchmarks/soak.py [--rounds 2000] [--nodes 8] [--flaky 2] [--json]

A real embedded federation averages a small model over and over; the agents of the flaky nodes are killed (`kill -9`)
at random moments, over and over, and started again. Anonymous memory (RssAnon) of every process is read every ten
rounds; what counts is its growth from the hundredth round on. At the end the ledger must be whole, and account in each
round for each node: contributed, or missing with a reason, or absent.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measuring import anonymous_bytes, family, waited
from reference.install import install
from rounds import DATASET, METHOD, MODEL, configure, online

from hanse.cli.connection import Control, find_connection
from hanse.cli.watch import follow
from hanse.demos.people import Person, onboard, run_agents, stop_agents
from hanse.embedded import Child, EmbeddedFederation, EmbeddedOptions
from hanse.jobs import JobSpecification, Selection
from hanse.ledger import Ledger, verify
from hanse.v1 import control_pb2

SETTLED = 100


@dataclass(frozen=True)
class Soak:
    """The row that is printed with `--json`. Memory in MB of RssAnon; growth is over the settled part of the run."""

    rounds: int
    nodes: int
    flaky: int
    kills: int
    median_round_s: float
    memory_mb: dict[str, float]
    growth_mb: dict[str, float]
    course_mb: dict[str, list[float]]
    """Medians of ten equal parts of the run, so that a level that settles is told from a slope that does not."""
    rounds_accounted: int
    contributions: int
    missing: int
    absent: int
    ledger_whole: bool


class Killer(threading.Thread):
    """Kills the flaky agents at random moments; their supervisor starts them again."""

    def __init__(self, agents: list[Child], draw: random.Random, every_s: float) -> None:
        super().__init__(daemon=True)
        self._agents, self._draw, self._every_s = agents, draw, every_s
        self.ended = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while not self.ended.wait(self._draw.expovariate(1 / self._every_s)):
            pid = self._draw.choice(self._agents).pid
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    continue


def soak(rounds: int, nodes: int, flaky: int, folder: Path, *, every_s: float = 8.0) -> Soak:
    """Run the job and read the counters."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(install(folder / "site")), os.environ.get("PYTHONPATH", "")])
    with ExitStack() as stack:
        settings = {"lease": "3s", "heartbeat": "2s", "retention": "10s"}
        options = EmbeddedOptions(node_port=0, control_port=0, coordinator=settings)
        federation = stack.enter_context(EmbeddedFederation(folder / "state", options).running())
        control = stack.enter_context(Control(find_connection(federation.state)))
        people = [Person(name=f"node-{number:02d}", folder=folder / f"node-{number:02d}") for number in range(nodes)]
        for person in people:
            configure(person, federation.nodes_address)
        onboard(control, people, lambda _: None)
        agents = run_agents(people, folder / "logs", lambda _: None)
        stack.callback(stop_agents, agents)
        waited(lambda: online(control) == nodes, timeout_s=120, what="all nodes to connect")
        specification = JobSpecification(
            name="soak",
            method=METHOD,
            dataset=DATASET,
            model=MODEL,
            rounds=rounds,
            selection=Selection(minimum_nodes=nodes, quorum=(nodes - flaky) / nodes, tries=10),
            method_config={"model": {"numbers": 10_000, "arrays": 4}},
        )
        request = control_pb2.SubmitJobRequest(specification=specification.model_dump_json().encode())
        job = control.call("SubmitJob", request)
        killer = Killer(agents[-flaky:], random.Random(1), every_s) if flaky else None
        if killer:
            killer.start()
        samples: dict[str, list[tuple[int, float]]] = {}
        steady = {name: child for name, child in federation.children.items() if name != "dashboard"}
        steady |= {agent.name: agent for agent in (agents[:-flaky] if flaky else agents)}
        seen = [-1]

        def look(detail: control_pb2.JobDetail) -> None:
            if detail.job.round // 10 > seen[0]:
                seen[0] = detail.job.round // 10
                for name, child in steady.items():
                    memory = anonymous_bytes(family(child.pid or 0)) / 1e6
                    samples.setdefault(name, []).append((detail.job.round, memory))

        detail = follow(control, job.id, look, say=lambda _: None)
        if killer:
            killer.ended.set()
            killer.join()
        if detail.job.state != "succeeded":
            raise SystemExit(f"the job {detail.job.state}: {detail.job.reason.sentence}")
        accounted, contributions, missing, absent = _account(federation.ledger_file, nodes)
        with Ledger.open(f"sqlite:///{federation.ledger_file}", read_only=True) as ledger, ledger.read() as view:
            whole = verify(view).whole
        return Soak(
            rounds=rounds,
            nodes=nodes,
            flaky=flaky,
            kills=killer.kills if killer else 0,
            median_round_s=_median_round(federation.ledger_file),
            memory_mb={name: round(values[-1][1], 1) for name, values in samples.items()},
            growth_mb={name: round(_growth(values), 2) for name, values in samples.items()},
            course_mb={name: _course(values) for name, values in samples.items()},
            rounds_accounted=accounted,
            contributions=contributions,
            missing=missing,
            absent=absent,
            ledger_whole=whole,
        )


def _growth(samples: list[tuple[int, float]]) -> float:
    """Median of the last fifth less the median of the first fifth after the settling rounds."""
    settled = [memory for number, memory in samples if number >= SETTLED] or [memory for _, memory in samples]
    part = max(1, len(settled) // 5)
    return statistics.median(settled[-part:]) - statistics.median(settled[:part])


def _course(samples: list[tuple[int, float]], parts: int = 10) -> list[float]:
    size = max(1, len(samples) // parts)
    return [
        round(statistics.median(memory for _, memory in samples[start : start + size]), 1)
        for start in range(0, len(samples), size)
    ]


def _account(path: Path, nodes: int) -> tuple[int, int, int, int]:
    """Rounds in which every node is accounted for; contributions, missing with a reason, absent."""
    full = contributions = missing = absent = 0
    opened: dict[str, list[str]] = {}
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        rows = ledger.execute(
            "SELECT kind, body FROM event WHERE kind IN ('phase_opened', 'phase_closed') ORDER BY sequence"
        )
        for kind, body in rows:
            facts = json.loads(body)["body"]
            if kind == "phase_opened":
                opened[facts["phase"]] = facts["absent"]
                continue
            away = opened[facts["phase"]]
            assert all(reason["code"] for reason in facts["missing"].values()), facts["missing"]
            names = {*facts["contributors"], *facts["missing"], *away}
            full += len(names) == nodes
            contributions += len(facts["contributors"])
            missing += len(facts["missing"])
            absent += len(away)
    return full, contributions, missing, absent


def _median_round(path: Path) -> float:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        rows = ledger.execute("SELECT opened_at FROM phase WHERE attempt = 1 ORDER BY ordinal").fetchall()
    times = [row[0] for row in rows]
    return round(statistics.median(b - a for a, b in itertools.pairwise(times)), 4)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--flaky", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hanse-soak-") as folder:
        result = soak(options.rounds, options.nodes, options.flaky, Path(folder))
    if options.json:
        print(json.dumps(asdict(result)))
        return
    for key, value in asdict(result).items():
        print(f"{key:22} {value}")
    print(f"{'took':22} {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
