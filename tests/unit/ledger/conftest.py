"""Ledgers for the tests: on SQLite, and on PostgreSQL where a server can be started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hanse.ledger import Ledger, Trust
from hanse.method import Audience, Purpose
from tests.databases import DATABASES, make_url


@dataclass
class Clock:
    """A clock that moves when it is told to."""

    now: float = 1_700_000_000.25

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A ledger with six approved nodes and a job in its first phase."""

    ledger: Ledger
    epoch: int
    clock: Clock
    job: str = ""
    phase: str = ""
    assignments: dict[str, str] = field(default_factory=dict)


@pytest.fixture(params=DATABASES)
def bare_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of each kind."""
    return make_url(request, tmp_path, migrated=False)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database, of each kind, that takes little time to migrate."""
    return make_url(request, tmp_path, migrated=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(url: str, clock: Clock) -> Iterator[Ledger]:
    """A migrated ledger, of each kind of database."""
    with Ledger.open(url, wall_clock=clock) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def epoch(ledger: Ledger) -> int:
    return ledger.take_lease("coordinator")


@pytest.fixture
def world(ledger: Ledger, epoch: int, clock: Clock) -> World:
    made = World(ledger=ledger, epoch=epoch, clock=clock)
    with ledger.write(epoch) as tx:
        for number in range(1, 7):
            tx.add_node(name=f"node-{number}", trust=Trust.APPROVED, labels={"kind": "wearable"})
        made.job = tx.add_job(
            name="activity", method="fedscs_xgb", dataset="activity", specification="{}", submitted_by="ada", rounds=3
        )
        made.phase = tx.add_phase(
            job=made.job,
            round=1,
            ordinal=1,
            name="sketch",
            purpose=Purpose.TRAIN,
            audience=Audience.SELECTED,
            quorum=4,
        )
        names = [f"node-{number}" for number in range(1, 7)]
        rows = [{"phase": made.phase, "job": made.job, "node": name} for name in names]
        made.assignments = dict(zip(names, tx.add_assignments(rows), strict=True))
    return made
