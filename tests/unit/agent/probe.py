"""A learner and a dataset that do as the instruction says, and what tests say to them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from hanse.payload import Payload
from hanse.v1 import node_pb2, payload_pb2

PROBE = '''
"""Does what the instruction's document says."""

import json, os, signal, sys, time
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from hanse.errors import PolicyRefusal, SiteError
from hanse.method import Column, DatasetDescription
from hanse.payload import Payload
from hanse.v1 import payload_pb2


class ProbeDataset:
    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")
        rows: int = 100
        missing: Path | None = None

    def __init__(self, name, options):
        self.name, self.options = name, options

    def describe(self):
        if self.options.missing is not None and not self.options.missing.exists():
            raise SiteError(f"the file {self.options.missing} does not exist.", code="DATA_MISSING", remedy="Bring it.")
        columns = (Column(name="x", dtype="float32"),)
        return DatasetDescription(name=self.name, kind="probe", rows=self.options.rows, columns=columns, target="y")

    def load(self):
        return self.options.rows


class ProbeLearner:
    version = "1"
    dataset_kinds = ("probe",)

    def __init__(self, dataset):
        self.dataset = dataset
        self.performed = 0

    def perform(self, assignment):
        asked = json.loads(assignment.instruction.header.opaque.document)
        done = int((assignment.state / "count").read_text()) if assignment.state else 0
        self.performed += 1
        if "tally" in asked:
            with open(asked["tally"], "a") as file:
                file.write(f"{assignment.phase} {assignment.round}\\n")
        getattr(self, "do_" + asked.get("do", "count"))(asked, assignment)
        (assignment.next_state / "count").write_text(str(done + 1))
        document = json.dumps({"count": done + 1, "performed": self.performed, "node": assignment.node})
        arrays = {"filler": np.zeros(asked.get("bytes", 8), dtype=np.uint8)}
        return Payload.build(payload_pb2.Opaque(type="probe", document=document.encode()), arrays)

    def do_count(self, asked, assignment):
        pass

    def do_print(self, asked, assignment):
        print("a learner may print")
        sys.stdout.flush()
        assert sys.stdin.read() == ""

    def do_die(self, asked, assignment):
        once = Path(asked["once"]) if "once" in asked else None
        if once is None or not once.exists():
            if once is not None:
                once.touch()
            (assignment.next_state / "half").write_text("half done")
            os.kill(os.getpid(), signal.SIGKILL)

    def do_exit(self, asked, assignment):
        os._exit(7)

    def do_hog(self, asked, assignment):
        hogs = [np.ones(1_000_000) for _ in range(10_000)]

    def do_raise(self, asked, assignment):
        raise ZeroDivisionError("nought")

    def do_site(self, asked, assignment):
        raise SiteError("a class is missing here.", code="CLASS_MISSING", remedy="Add rows.")

    def do_policy(self, asked, assignment):
        least = assignment.limits.minimum_rows_per_atom
        raise PolicyRefusal(f"atoms of fewer than {least} rows.", rule="minimum_rows_per_atom")

    def do_nothing_useful(self, asked, assignment):
        self.perform = lambda assignment: 3

    def do_fetch(self, asked, assignment):
        wanted = bytes.fromhex(asked["digest"])
        assert assignment.fetch(wanted).header.opaque.type == "extra"

    def do_wait(self, asked, assignment):
        Path(asked["began"]).touch()
        while not Path(asked["until"]).exists():
            time.sleep(0.01)

    def do_spin(self, asked, assignment):
        Path(asked["began"]).touch()
        while not Path(asked["until"]).exists():
            pass

    def do_progress(self, asked, assignment):
        assignment.progress(0.25, "a quarter")
'''

ENTRY_POINTS = """
[hanse.learners]
probe = probe_learner:ProbeLearner

[hanse.datasets]
probe = probe_learner:ProbeDataset
"""


def instruction(**document: Any) -> bytes:
    """An instruction's image for the probe."""
    kind = payload_pb2.Opaque(type="ask", document=json.dumps(document).encode())
    return Payload.build(kind).image()


def document_of(image: bytes) -> dict[str, Any]:
    """What the probe answered."""
    answer: dict[str, Any] = json.loads(Payload.from_image(image).header.opaque.document)
    return answer


def job(identifier: str = "job-1", **changes: Any) -> node_pb2.JobDescription:
    """A job for the probe."""
    facts: dict[str, Any] = {
        "id": identifier,
        "name": identifier,
        "method": "probe",
        "dataset": "records",
        "rounds": 3,
        "config": b"{}",
    }
    return node_pb2.JobDescription(**{**facts, **changes})


def assign(assignment: str, *, fence: int = 1, round_: int = 1, attempt: int = 1, **more: Any) -> node_pb2.Assign:
    """An assignment for the probe; `ask` is the instruction's document."""
    ask = more.pop("ask", {})
    facts: dict[str, Any] = {
        "assignment": assignment,
        "fence": fence,
        "job": job(),
        "phase": "work",
        "round": round_,
        "purpose": "train",
        "attempt": attempt,
        "lease_s": 20.0,
        "deadline_s": 600.0,
        "instruction": payload_pb2.PayloadSource(inline=instruction(round=round_, **ask)),
    }
    return node_pb2.Assign(**{**facts, **more})


def receipt(contribution: node_pb2.InlineContribution) -> node_pb2.Receipt:
    """The word that a contribution has arrived."""
    return node_pb2.Receipt(
        assignment=contribution.assignment,
        fence=contribution.fence,
        digest=hashlib.sha256(contribution.image).digest(),
    )


def write_config(folder: Path, *, coordinator: str = "127.0.0.1:1", **changes: Any) -> Path:
    """An agent.yaml that offers the probe."""
    document: dict[str, Any] = {
        "coordinator": coordinator,
        "state": "state",
        "datasets": {"records": {"kind": "probe", "rows": 100}},
        "policy": {"methods": ["probe"]},
        "worker": {"memory": "2GB"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump({**document, **changes}))
    return path


async def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until a condition holds; the limit only turns a hang into a failure."""
    end = time.monotonic() + 60
    while not (result := condition()):
        assert time.monotonic() < end, f"never happened: {what}"
        await asyncio.sleep(0.01)
    return result
