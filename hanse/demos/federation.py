"""What every demo does with a federation: start it, let nodes join, run one job, prove the ledger, pull the model."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.cli.connection import Control, find_connection
from hanse.cli.ledger import read_heads
from hanse.cli.pull import fetch_model, write_files
from hanse.cli.views import because
from hanse.cli.watch import Screen, follow
from hanse.demos.people import Person, onboard, run_agents, stop_agents, write_config
from hanse.embedded import EmbeddedFederation, EmbeddedOptions
from hanse.errors import PlatformError
from hanse.jobs import JobSpecification
from hanse.v1 import control_pb2, payload_pb2

__all__ = [
    "FinishedJob",
    "federation",
    "keep_what_counts",
    "metric",
    "run_job",
    "terminated_like_interrupted",
]

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class FinishedJob:
    """A job that succeeded: its figures, the time from its first round to its end, the ledger's events, the files."""

    job: str
    detail: control_pb2.JobDetail
    seconds: float
    events: int
    digest: bytes
    files: Mapping[str, Path]


@contextmanager
def federation(
    people: Mapping[Person, Mapping[str, Any]], *, folder: Path, dataset: str, method: str, say: Say
) -> Iterator[Control]:
    """A running federation in which each person has joined and offers its own block of `agent.yaml` as `dataset`.

    Processes are stopped in any case; SIGTERM counts as Ctrl-C.
    """
    with terminated_like_interrupted(), ExitStack() as stack:
        say(f"starting a federation in {folder} …")
        embedded = EmbeddedFederation(folder, EmbeddedOptions(node_port=0, control_port=0), say=say)
        stack.enter_context(embedded.running())
        control = stack.enter_context(Control(find_connection(folder)))
        for person, block in people.items():
            write_config(person, coordinator=embedded.nodes_address, dataset=dataset, table=block, method=method)
        say(f"{len(people)} nodes join, each by an invitation of its own …")
        onboard(control, list(people), say)
        agents = run_agents(list(people), folder / "logs", say)
        stack.callback(stop_agents, agents)
        yield control
        say("stopping …")


def run_job(
    control: Control, people: Sequence[Person], specification: JobSpecification, *, folder: Path, say: Say
) -> FinishedJob:
    """Submit a job, follow it to its end, pull its model into `folder/model` and verify the ledger.

    Raises:
        PlatformError: the job did not succeed (nobody is there to resume it), or the ledger is not whole.
    """
    request = control_pb2.SubmitJobRequest(specification=specification.model_dump_json().encode())
    job = control.call("SubmitJob", request)
    clock = _RoundClock(Screen(live=sys.stderr.isatty()))

    def show(detail: control_pb2.JobDetail) -> None:
        clock.show(detail)
        if detail.job.state in {"paused", "failed", "cancelled"}:
            raise PlatformError(
                f"The demo's job {detail.job.state}: {because(detail.job.reason)}",
                remedy=f"See the logs in {folder / 'logs'}.",
                code="DEMO_FAILED",
            )

    detail = follow(control, job.id, show, say=say)
    model = fetch_model(control, job.id)
    written = write_files(model.files, folder / "model", overwrite=True)
    return FinishedJob(
        job=job.id,
        detail=detail,
        seconds=clock.seconds,
        events=_verify(control, people),
        digest=model.digest,
        files={path.name: path for path in written},
    )


def metric(detail: control_pb2.JobDetail, name: str, scope: str, node: str = "") -> float:
    """The newest value of a metric of the job.

    Raises:
        PlatformError: the job reported none.
    """
    for row in detail.metrics:
        if (row.name, row.scope, row.node) == (name, scope, node):
            return float(row.value)
    raise PlatformError(f"The job reported no {name} ({scope}{' ' + node if node else ''}).", code="DEMO_FAILED")


def keep_what_counts(folder: Path, *data: str) -> None:
    """Remove what only a running federation needs: payloads, states, and records by name. Journals and ledger stay."""
    shutil.rmtree(folder / "artifacts", ignore_errors=True)
    for person in (folder / "people").iterdir():
        shutil.rmtree(person / "state" / "jobs", ignore_errors=True)
        for pattern in data:
            for path in person.glob(pattern):
                path.unlink()


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that every process is stopped."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _RoundClock:
    """Passes a job's progress on and measures the time in which it ran, from its first round to its end."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._began: float | None = None
        self.seconds = 0.0

    def show(self, detail: control_pb2.JobDetail) -> None:
        """Take the job as it is now."""
        if self._began is None and detail.job.round >= 1:
            self._began = time.monotonic()
        if self._began is not None:
            self.seconds = time.monotonic() - self._began
        self._screen.show(detail)


def _verify(control: Control, people: Sequence[Person]) -> int:
    """Prove the ledger whole, also against the heads that the agents kept; the number of its events."""
    heads = [head for person in people if person.heads.exists() for head in read_heads(person.heads)]
    against = [payload_pb2.LedgerHead(sequence=number, hash=digest) for number, digest in heads]
    found = control.call("VerifyLedger", control_pb2.VerifyLedgerRequest(against=against))
    if not found.whole:
        raise PlatformError(f"The ledger is not whole: {found.sentence}", code="LEDGER_NOT_WHOLE")
    return int(found.events)
