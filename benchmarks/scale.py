"""How one coordinator bears many nodes: sessions with heartbeats, and rounds of averaging.

    python benchmarks/scale.py [--nodes 100 1000 5000] [--rounds-at 100 1000] [--json]

Every node is an identity of its own, with its own certificate, session, state and policy; few agent processes carry
them all. At each size: how long all take to connect, then a quiet time with heartbeats every ten seconds, in which
anonymous memory (RssAnon, growth over a coordinator without nodes) and processor time are measured; and, where asked
for, a job of averaging with 0.4 MB up and down a node and round. The learner costs nothing: the federation is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from measuring import Watch, anonymous_bytes, cpu_seconds, family, waited
from reference.install import install
from rounds import DATASET, METHOD, MODEL, write_rows

from hanse.cli.connection import Control, find_connection
from hanse.cli.watch import follow
from hanse.embedded import Child, EmbeddedFederation, EmbeddedOptions
from hanse.jobs import JobSpecification, Selection
from hanse.security import Invitation
from hanse.v1 import control_pb2
from hanse_agent.enrolment import join
from hanse_agent.settings import AgentConfig

SIZES, ROUNDS_AT = (100, 1000, 5000), (100, 1000)
NUMBERS, ARRAYS, ROUNDS = 100_000, 10, 3
A_PROCESS = 500
"""Identities that one agent process carries."""
AT_ONCE = 8
HEARTBEAT_S = 10.0
QUIET_S = 30.0


@dataclass(frozen=True)
class Scale:
    """The row that is printed with `--json`. Processor shares are of one core, memory is RssAnon."""

    nodes: int
    agent_processes: int
    connect_s: float
    coordinator_mb: float
    coordinator_kb_per_node: float
    coordinator_cpu_share: float
    coordinator_cpu_share_per_node: float
    agent_kb_per_node: float
    agent_cpu_share_per_node: float
    round_s: float | None = None
    round_ms_per_node: float | None = None
    cpu_s_per_round: float | None = None
    coordinator_growth_mb: float | None = None
    aggregator_growth_mb: float | None = None


class Crowd:
    """The nodes of the benchmark and the processes that carry them."""

    def __init__(self, federation: EmbeddedFederation, control: Control, folder: Path) -> None:
        self._federation, self._control, self._folder = federation, control, folder
        self._rows = write_rows(folder / "rows.parquet")
        self.agents: list[Child] = []
        self.count = 0

    def grow(self, nodes: int) -> float:
        """Enrol as many as are missing and start agents; seconds until all are connected, without enrolment."""
        configs = [self._configure(number) for number in range(self.count, nodes)]
        asyncio.run(self._enrol(configs))
        began = time.monotonic()
        for start in range(0, len(configs), A_PROCESS):
            files = [str(config.parent / "agent.yaml") for config in configs[start : start + A_PROCESS]]
            name = f"agents-{len(self.agents):02d}"
            agent = Child(
                name, ["hanse_agent.main", "run", *files], log=self._folder / f"{name}.log", say=lambda _: None
            )
            agent.start()
            agent.assume_ready()
            self.agents.append(agent)
            self.count += len(files)
            # One process after another: all at once, on one machine, measures how two cores shake hands.
            waited(lambda: self.online() == self.count, timeout_s=300, what=f"{self.count} nodes to connect")
        return time.monotonic() - began

    def online(self) -> int:
        """How many nodes have a session, as the ledger has it."""
        with sqlite3.connect(f"file:{self._federation.ledger_file}?mode=ro", uri=True) as ledger:
            return int(ledger.execute("SELECT count(*) FROM node WHERE online").fetchone()[0])

    def stop(self) -> None:
        """End all agents."""
        for agent in self.agents:
            agent.stop(grace_s=10.0)

    def _configure(self, number: int) -> Path:
        folder = self._folder / f"node-{number:04d}"
        folder.mkdir()
        document = {
            "coordinator": self._federation.nodes_address,
            "state": str(folder / "state"),
            "datasets": {DATASET: {"kind": "table", "path": str(self._rows), "target": "y"}},
            "policy": {"methods": [METHOD]},
            "worker": {"threads": 1, "learners": 2 * A_PROCESS},
        }
        (folder / "agent.yaml").write_text(yaml.safe_dump(document))
        return folder / "state"

    async def _enrol(self, states: list[Path]) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def enrol(state: Path) -> None:
            name = state.parent.name
            async with places:
                request = control_pb2.InviteNodeRequest(name=name, valid_s=3600, pre_approved=True)
                invited = await asyncio.to_thread(self._control.call, "InviteNode", request)
                config = AgentConfig.load(state.parent / "agent.yaml")
                await join(config, Invitation.parse(invited.text), lambda _: None)

        for done, work in enumerate(asyncio.as_completed([enrol(state) for state in states]), start=1):
            await work
            if done % 250 == 0 or done == len(states):
                print(f"  {self.count + done} nodes enrolled", file=sys.stderr)


class Bench:
    """One federation that grows from size to size."""

    def __init__(self, folder: Path, federation: EmbeddedFederation, control: Control) -> None:
        self._federation, self._control = federation, control
        self.crowd = Crowd(federation, control, folder)
        self._empty = anonymous_bytes(self._coordinator())

    def measure(self, nodes: int, *, rounds: bool) -> Scale:
        """Grow to a number of nodes and measure there."""
        connect_s = self.crowd.grow(nodes)
        time.sleep(HEARTBEAT_S)  # every node has had its first heartbeat
        before, agents_before = cpu_seconds(self._coordinator()), cpu_seconds(self._carriers())
        time.sleep(QUIET_S)
        share = (cpu_seconds(self._coordinator()) - before) / QUIET_S
        agents_share = (cpu_seconds(self._carriers()) - agents_before) / QUIET_S
        memory, agents_memory = anonymous_bytes(self._coordinator()), anonymous_bytes(self._carriers())
        row = Scale(
            nodes=nodes,
            agent_processes=len(self.crowd.agents),
            connect_s=round(connect_s, 1),
            coordinator_mb=round(memory / 1e6, 1),
            coordinator_kb_per_node=round((memory - self._empty) / nodes / 1e3, 1),
            coordinator_cpu_share=round(share, 4),
            coordinator_cpu_share_per_node=round(share / nodes, 6),
            agent_kb_per_node=round(agents_memory / nodes / 1e3, 1),
            agent_cpu_share_per_node=round(agents_share / nodes, 6),
        )
        return replace(row, **self._rounds(nodes)) if rounds else row

    def _coordinator(self) -> list[int]:
        return family(self._federation.children["coordinator"].pid or 0)

    def _carriers(self) -> list[int]:
        return [pid for agent in self.crowd.agents for pid in family(agent.pid or 0)]

    def _rounds(self, nodes: int) -> dict[str, float]:
        services = self._federation.children
        watch = Watch(
            lambda: {
                **{name: [services[name].pid or 0] for name in ("coordinator", "aggregator")},
                "agents": [agent.pid or 0 for agent in self.crowd.agents],
            }
        )
        specification = JobSpecification(
            name=f"scale-{nodes}",
            method=METHOD,
            dataset=DATASET,
            model=MODEL,
            rounds=ROUNDS,
            selection=Selection(minimum_nodes=nodes, quorum=1.0, deadline=timedelta(minutes=30)),
            method_config={"model": {"numbers": NUMBERS, "arrays": ARRAYS}},
        )
        request = control_pb2.SubmitJobRequest(specification=specification.model_dump_json().encode())
        job = self._control.call("SubmitJob", request)
        detail = follow(self._control, job.id, lambda _: None, say=lambda _: None)
        growth, cpu = watch.stop()
        if detail.job.state != "succeeded":
            raise SystemExit(f"the job {detail.job.state}: {detail.job.reason.sentence}")
        times = self._times(job.id)
        return {
            "round_s": round(statistics.median(times), 2),
            "round_ms_per_node": round(statistics.median(times) / nodes * 1e3, 2),
            "cpu_s_per_round": round(sum(cpu.values()) / ROUNDS, 2),
            "coordinator_growth_mb": round(growth["coordinator"], 1),
            "aggregator_growth_mb": round(growth["aggregator"], 1),
        }

    def _times(self, job: str) -> list[float]:
        with sqlite3.connect(f"file:{self._federation.ledger_file}?mode=ro", uri=True) as ledger:
            rows = ledger.execute("SELECT opened_at FROM phase WHERE job = ? ORDER BY ordinal, attempt", (job,))
            opened = [opened_at for (opened_at,) in rows]
            (ended,) = ledger.execute("SELECT ended_at FROM job WHERE id = ?", (job,)).fetchone()
        if len(opened) != ROUNDS:
            raise SystemExit(f"{len(opened)} phases were opened for {ROUNDS} rounds: the run was disturbed")
        return [after - before for before, after in itertools.pairwise([*opened, ended])]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds-at", type=int, nargs="*", default=list(ROUNDS_AT))
    parser.add_argument("--json", action="store_true", help="one JSON array on standard output")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this folder")
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hanse-scale-")))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(install(folder / "site")), os.environ.get("PYTHONPATH", "")])
        embedded = EmbeddedOptions(node_port=0, control_port=0, coordinator={"heartbeat": f"{HEARTBEAT_S:g}s"})
        federation = EmbeddedFederation(folder / "state", embedded)
        stack.enter_context(federation.running())
        control = stack.enter_context(Control(find_connection(federation.state)))
        bench = Bench(folder, federation, control)
        stack.callback(bench.crowd.stop)
        for nodes in sorted(options.nodes):
            rows.append(bench.measure(nodes, rounds=nodes in options.rounds_at))
            print(f"{asdict(rows[-1])}", file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
