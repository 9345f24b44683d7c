"""The nodes of a demo: one agent a person, each with its own recordings, joined by its own invitation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hanse.cli.connection import Control
from hanse.embedded import Child, child_environment
from hanse.errors import PlatformError
from hanse.security import write_atomically
from hanse.v1 import control_pb2

AGENT = "hanse_agent.main"
JOIN_TIMEOUT_S = 120
AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Person:
    """A node of the demo: its name, and the folder that would be another machine in earnest."""

    name: str
    folder: Path
    kind: str = "wearable"
    """The label `kind`, by which jobs select."""

    @property
    def config(self) -> Path:
        """`agent.yaml`."""
        return self.folder / "agent.yaml"

    @property
    def state(self) -> Path:
        """The agent's state folder."""
        return self.folder / "state"

    @property
    def heads(self) -> Path:
        """Heads of the ledger that the agent was shown."""
        return self.state / "ledger-heads.jsonl"

    def bytes_sent(self, job: str) -> int:
        """What left this node for a job, by its own egress journal; repetitions count."""
        journal = self.state / "egress.jsonl"
        lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
        entries = [json.loads(line) for line in lines]
        return sum(int(entry["bytes"]) for entry in entries if entry["job"] == job)


def write_config(person: Person, *, coordinator: str, dataset: str, table: Mapping[str, Any], method: str) -> None:
    """The site's own file: what it offers and what it allows."""
    document = {
        "coordinator": coordinator,
        "state": str(person.state),
        "labels": {"kind": person.kind},
        "datasets": {dataset: dict(table)},
        "policy": {"methods": [method], "minimum_rows_per_atom": 1},
        "worker": {"threads": 1, "memory": "4GB"},
    }
    write_atomically(person.config, yaml.safe_dump(document, sort_keys=False).encode(), mode=0o644)


def onboard(control: Control, people: Sequence[Person], say: Callable[[str], None]) -> None:
    """Invite each person (pre-approved) and join by `hanse-agent join`; who has joined before is left alone.

    Raises:
        PlatformError: a join failed; the sentence quotes the agent.
    """
    known = {node.name for node in control.pages("ListNodes", control_pb2.ListNodesRequest(), _nodes, most=10_000)}
    invitations: dict[str, Path] = {}
    for person in people:
        if (person.state / "identity" / "node.crt").exists():
            continue
        request = control_pb2.InviteNodeRequest(
            name=person.name,
            labels={"kind": person.kind},
            valid_s=3600,
            pre_approved=True,
            again=person.name in known,
        )
        invitation = control.call("InviteNode", request)
        path = person.folder / "invitation"
        write_atomically(path, invitation.text.encode() + b"\n")
        invitations[person.name] = path
    newcomers = [person for person in people if person.name in invitations]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for person in pool.map(lambda each: _join(each, invitations[each.name]), newcomers):
            say(f"  {person.name} joined")


def run_agents(people: Sequence[Person], logs: Path, say: Callable[[str], None]) -> list[Child]:
    """Start one agent process a person."""
    agents = []
    for person in people:
        arguments = [AGENT, "run", str(person.config)]
        agent = Child(f"agent-{person.name}", arguments, log=logs / f"agent-{person.name}.log", say=say)
        agent.start()
        agent.assume_ready()
        agents.append(agent)
    return agents


def stop_agents(agents: Sequence[Child]) -> None:
    """Drain all at once; each has the same grace."""
    with ThreadPoolExecutor(max(1, len(agents))) as pool:
        list(pool.map(lambda agent: agent.stop(grace_s=15.0), agents))


def _nodes(page: control_pb2.ListNodesResponse) -> Sequence[control_pb2.Node]:
    return page.nodes


def _join(person: Person, invitation: Path) -> Person:
    command = [sys.executable, "-m", AGENT, "join", str(person.config), "--token", f"file:{invitation}"]
    result = subprocess.run(  # noqa: S603 - our own interpreter and module
        command, capture_output=True, text=True, env=child_environment(), timeout=JOIN_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        said = " ".join((result.stderr.strip() or result.stdout.strip()).splitlines()[-1:])
        raise PlatformError(f"{person.name} could not join: {said or f'code {result.returncode}'}", code="JOIN_FAILED")
    invitation.unlink(missing_ok=True)
    return person
