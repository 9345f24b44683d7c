"""Real federations for benchmarks: coordinator, aggregator and an agent a node, as processes, over TLS on loopback."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import waited

from hanse.cli.connection import Control, find_connection
from hanse.cli.watch import follow
from hanse.demos.people import Person, onboard, run_agents, stop_agents, write_config
from hanse.embedded import Child, EmbeddedFederation, EmbeddedOptions
from hanse.jobs import JobSpecification
from hanse.tables import Table
from hanse.v1 import control_pb2

METHOD, DATASET = "fedscs_xgb", "rows"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A federation whose nodes are connected."""

    federation: EmbeddedFederation
    control: Control
    people: list[Person]
    agents: list[Child]

    def run(self, specification: JobSpecification, *, continue_from: str = "") -> control_pb2.JobDetail:
        """Run a job to its end.

        Raises:
            SystemExit: it did not succeed; the sentence says why.
        """
        request = control_pb2.SubmitJobRequest(
            specification=specification.model_dump_json().encode(), continue_from=continue_from
        )
        job = self.control.call("SubmitJob", request)
        detail = follow(self.control, job.id, lambda _: None, say=lambda _: None)
        if detail.job.state != "succeeded":
            raise SystemExit(f"the job {detail.job.state}: {detail.job.reason.sentence}")
        return detail

    def ask(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the ledger."""
        with sqlite3.connect(f"file:{self.federation.ledger_file}?mode=ro", uri=True) as ledger:
            return ledger.execute(question, values).fetchall()


def write_table(table: Table, path: Path) -> dict[str, Any]:
    """Write a node's table as npz; returns the dataset's block of `agent.yaml`."""
    np.savez(
        path,
        X=table.features,
        feature_names=np.array(table.feature_names),
        label=table.target,
        held_out=table.held_out.astype(np.int8),
    )
    return {"kind": "table", "path": str(path), "target": "label", "holdout_column": "held_out"}


@contextmanager
def federation(folder: Path, tables: Mapping[str, Table]) -> Iterator[Running]:
    """A federation with these nodes; everything is stopped at the end."""
    with ExitStack() as stack:
        embedded = EmbeddedFederation(folder / "state", EmbeddedOptions(node_port=0, control_port=0))
        stack.enter_context(embedded.running())
        control = stack.enter_context(Control(find_connection(embedded.state)))
        people = [Person(name=name, folder=folder / "nodes" / name) for name in sorted(tables)]
        for person in people:
            person.folder.mkdir(parents=True)
            block = write_table(tables[person.name], person.folder / "rows.npz")
            write_config(person, coordinator=embedded.nodes_address, dataset=DATASET, table=block, method=METHOD)
        onboard(control, people, lambda _: None)
        agents = run_agents(people, folder / "logs", print)
        stack.callback(stop_agents, agents)
        running = Running(federation=embedded, control=control, people=people, agents=agents)
        waited(lambda: _online(running) == len(people), timeout_s=120, what="all nodes to connect")
        yield running


def _online(running: Running) -> int:
    nodes = running.control.call("ListNodes", control_pb2.ListNodesRequest(limit=500)).nodes
    return sum(node.health == "online" for node in nodes)
