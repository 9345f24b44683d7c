"""How fast a round of averaging is, through the real federation: coordinator, aggregator and agents as processes, TLS.

    python benchmarks/rounds.py --case a          4 nodes, 25 million float32 in 160 arrays, 3 rounds
    python benchmarks/rounds.py --case b          16 nodes, 100 thousand float32 in 10 arrays, 20 rounds

The differences cost the nodes nothing to make, so that the federation alone is measured. A round lasts from the opening
of its training phase, as the ledger has it, to the opening of the next (the last: to the end of the job, whose model
file is written in it). The floor is the same bytes through bare gRPC streams over TLS, in the same run, `floor_plain_s`
those streams without protobuf (`floor.py`).
Memory is the growth of anonymous memory over idle, at its peak, sampled every 20 ms; of nodes, the largest. The bytes
of a round are those of the payloads that nodes take and give.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

sys.path.insert(0, str(Path(__file__).parent))
import floor
from measuring import Watch, waited
from reference.install import install

from hanse.cli.connection import Control, find_connection
from hanse.cli.watch import follow
from hanse.demos.people import Person, onboard, run_agents, stop_agents
from hanse.embedded import EmbeddedFederation, EmbeddedOptions
from hanse.jobs import JobSpecification, Selection
from hanse.v1 import control_pb2

METHOD, MODEL, DATASET = "reference_averaging", "reference_bulk", "rows"


@dataclass(frozen=True)
class Case:
    """What is sent, by how many, how often."""

    nodes: int
    numbers: int
    arrays: int
    rounds: int


CASES = {"a": Case(4, 25_000_000, 160, 3), "b": Case(16, 100_000, 10, 20)}


@dataclass(frozen=True)
class Result:
    """The row that is printed with `--json`."""

    case: str
    median_round_s: float
    floor_s: float
    floor_plain_s: float
    wire_bytes_per_round: int
    rss_growth_mb: dict[str, float]
    cpu_s_per_round: float
    cpu_s_per_round_by_program: dict[str, float]
    rounds_s: list[float]


def run(name: str, case: Case, folder: Path) -> Result:
    """Run the federation, then the floor."""
    os.environ["PYTHONPATH"] = str(install(folder / "site"))
    with ExitStack() as stack:
        federation = EmbeddedFederation(folder / "state", EmbeddedOptions(node_port=0, control_port=0))
        stack.enter_context(federation.running())
        control = stack.enter_context(Control(find_connection(federation.state)))
        people = [
            Person(name=f"node-{number:02d}", folder=folder / f"node-{number:02d}") for number in range(case.nodes)
        ]
        for person in people:
            configure(person, federation.nodes_address)
        onboard(control, people, lambda _: None)
        agents = run_agents(people, folder / "logs", print)
        stack.callback(stop_agents, agents)
        waited(lambda: online(control) == case.nodes, timeout_s=120, what="all nodes to connect")
        watch = Watch(
            lambda: {
                **{service: [federation.children[service].pid or 0] for service in ("coordinator", "aggregator")},
                "node": [agent.pid or 0 for agent in agents],
            }
        )
        specification = JobSpecification(
            name="rounds",
            method=METHOD,
            dataset=DATASET,
            model=MODEL,
            rounds=case.rounds,
            selection=Selection(minimum_nodes=case.nodes, quorum=1.0),
            method_config={"model": {"numbers": case.numbers, "arrays": case.arrays}},
        )
        request = control_pb2.SubmitJobRequest(specification=specification.model_dump_json().encode())
        job = control.call("SubmitJob", request)
        detail = follow(control, job.id, lambda _: None, say=lambda _: None)
        growth, cpu = watch.stop()
        if detail.job.state != "succeeded":
            raise SystemExit(f"the job {detail.job.state}: {detail.job.reason.sentence}")
        times, wire = _from_ledger(federation.ledger_file, case)
    same = {"nodes": case.nodes, "size": 4 * case.numbers, "rounds": case.rounds}
    floor_s = floor.measure(folder / "floor", **same)
    floor_plain_s = floor.measure(folder / "floor-plain", **same, plain=True)
    return Result(
        case=name,
        median_round_s=round(statistics.median(times), 4),
        floor_s=round(floor_s, 4),
        floor_plain_s=round(floor_plain_s, 4),
        wire_bytes_per_round=wire,
        rss_growth_mb={group: round(megabytes, 1) for group, megabytes in growth.items()},
        cpu_s_per_round=round(sum(cpu.values()) / case.rounds, 3),
        cpu_s_per_round_by_program={group: round(seconds / case.rounds, 3) for group, seconds in cpu.items()},
        rounds_s=[round(seconds, 4) for seconds in times],
    )


def write_rows(path: Path) -> Path:
    """A table of ten rows, for a learner that looks at none."""
    table = pa.table({"x": np.arange(10, dtype=np.float32), "y": np.arange(10, dtype=np.float32)})
    pq.write_table(table, path)
    return path


def configure(person: Person, coordinator: str) -> None:
    """Write a node's table and `agent.yaml`."""
    person.folder.mkdir(parents=True)
    rows = write_rows(person.folder / "rows.parquet")
    document = {
        "coordinator": coordinator,
        "state": str(person.state),
        "datasets": {DATASET: {"kind": "table", "path": str(rows), "target": "y"}},
        "policy": {"methods": [METHOD]},
    }
    person.config.write_text(yaml.safe_dump(document))


def online(control: Control) -> int:
    """How many nodes have a session; of at most 500."""
    nodes = control.call("ListNodes", control_pb2.ListNodesRequest(limit=500)).nodes
    return sum(node.health == "online" for node in nodes)


def _from_ledger(path: Path, case: Case) -> tuple[list[float], int]:
    """Seconds of each round, and the bytes of the payloads of one."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        opened = [row[0] for row in ledger.execute("SELECT opened_at FROM phase ORDER BY ordinal, attempt")]
        (ended,) = ledger.execute("SELECT ended_at FROM job").fetchone()
        (given,) = ledger.execute("SELECT sum(size) FROM contribution").fetchone()
        (taken,) = ledger.execute(
            "SELECT sum(artifact.size) FROM phase JOIN artifact ON artifact.digest = phase.instruction_digest"
        ).fetchone()
    if len(opened) != case.rounds:
        raise SystemExit(f"{len(opened)} phases were opened for {case.rounds} rounds: the run was disturbed")
    times = [after - before for before, after in zip(opened, [*opened[1:], ended], strict=True)]
    return times, (given + case.nodes * taken) // case.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), required=True)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this folder")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hanse-rounds-")))
        result = run(options.case, CASES[options.case], folder)
    if options.json:
        print(json.dumps(asdict(result)))
        return
    for key, value in asdict(result).items():
        print(f"{key:22} {value}")
    print(f"{'times the floor':22} {result.median_round_s / result.floor_s:.2f}")


if __name__ == "__main__":
    main()
