"""The database under the ledger: how it is opened, how transactions begin, and what its errors mean.

SQLite runs in WAL mode, so that readers and the writer do not wait for each other, with `synchronous=NORMAL`,
which is safe against a killed process. Write transactions begin with BEGIN IMMEDIATE: a transaction that read
first and wrote later could otherwise fail at the write, without any wait. PostgreSQL is spoken to without
prepared statements or session settings, so that a transaction pooler may stand between.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.sql import func
from tenacity import retry, retry_if_exception_message, stop_after_delay, wait_random

from hanse.errors import Conflict, HanseError, NotFound, OperatorError, Owner, PlatformError
from hanse.ledger.chain import canonical_json

BUSY_SECONDS: Final = 10
_POSTGRESQL: Final = {
    "prepare_threshold": None,
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # milliseconds; keepalives do not watch a connection that has bytes on their way
    "application_name": "hanse",
}
# Of one transaction, because a session's settings do not pass a pooler. A leader that is stopped inside a
# transaction holds the lease row no longer than about a lease: the standby waits for it.
_PATIENCE: Final = "SET LOCAL lock_timeout = '{}s'; SET LOCAL idle_in_transaction_session_timeout = '5s'"
_END_SILENT: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND usename = current_user AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()"
    " AND state_change < clock_timestamp() - make_interval(secs => :seconds)"
)
_READING: Final = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def parse_url(url: str) -> URL:
    """A database URL that the ledger can use.

    Raises:
        OperatorError: not a URL, or one of another kind of database.
    """
    remedy = "Write sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE."
    try:
        parsed = make_url(url)
    except ArgumentError:
        # The text may hold a password: it is not repeated.
        raise OperatorError("The ledger's database URL cannot be read.", remedy=remedy) from None
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise OperatorError("A ledger needs a file, and the URL names none.", remedy=remedy)
            return parsed.set(drivername="sqlite+pysqlite")
        case "postgresql" | "postgres" | "postgresql+psycopg":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise OperatorError(f"The ledger does not run on {other}.", remedy=remedy)


def open_engine(url: URL, *, read_only: bool) -> Engine:
    """An engine with the ledger's settings and errors.

    Raises:
        NotFound: `read_only`, and there is no such file.
        OperatorError: the driver is not installed.
        PlatformError: the file cannot be made.
    """
    if url.get_backend_name() == "sqlite":
        _prepare_file(Path(str(url.database)), create=not read_only)
        arguments = _unless_in(url, {"timeout": BUSY_SECONDS, "check_same_thread": False})
        engine = create_engine(url, json_serializer=canonical_json, connect_args=arguments)
        event.listen(engine, "connect", _set_up_sqlite_read_only if read_only else _set_up_sqlite)
    else:
        arguments = _unless_in(url, _POSTGRESQL)
        try:
            engine = create_engine(url, json_serializer=canonical_json, pool_pre_ping=True, connect_args=arguments)
        except ModuleNotFoundError as error:
            raise OperatorError(
                f"A ledger on PostgreSQL needs the Python package {error.name}, which is not installed.",
                remedy="Install hanse[postgres].",
            ) from error
        # Many rows in one statement. The driver's own way is a pipeline, during which PostgreSQL does not notice that
        # a client fell silent: a leader that is stopped there would hold the lease row for ever.
        engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "handle_error", _translate)
    return engine


def _unless_in(url: URL, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that the URL does not make itself."""
    return {name: value for name, value in settings.items() if name not in url.query}


def _prepare_file(path: Path, *, create: bool) -> None:
    if path.exists():
        return
    if not create:
        raise NotFound(f"There is no ledger at {path}.", remedy="Give the path of a ledger's file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whoever reads the ledger knows who takes part in what: the file is for its owner.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise PlatformError(
            f"The ledger's file {path} cannot be made: {error.strerror}.",
            remedy="Free the disk or choose another folder.",
            code="LEDGER_UNAVAILABLE",
        ) from error


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin when we say so
    _enter_wal(connection)
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON", "recursive_triggers=ON"):
        connection.execute(f"PRAGMA {pragma}")


@retry(
    retry=retry_if_exception_message(match="database is locked"),
    stop=stop_after_delay(BUSY_SECONDS),
    wait=wait_random(0.005, 0.05),
    reraise=True,
)
def _enter_wal(connection: sqlite3.Connection) -> None:
    """Change the journal's mode; SQLite does not wait by itself when two programs do this to a new file at once."""
    connection.execute("PRAGMA journal_mode=WAL")


def _set_up_sqlite_read_only(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")


@contextmanager
def begin(engine: Engine, *, writing: bool, lock_seconds: int = BUSY_SECONDS) -> Iterator[Connection]:
    """A transaction: committed at the end of the block, undone if the block raises.

    A transaction that only reads sees one state of the database from its first statement on. One that writes waits on
    PostgreSQL at most `lock_seconds` for a row that another holds.
    """
    if engine.dialect.name == "sqlite":
        with engine.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
            yield connection
    else:
        with (engine if writing else engine.execution_options(**_READING)).begin() as connection:
            if writing:
                connection.exec_driver_sql(_PATIENCE.format(lock_seconds))
            yield connection


def end_silent_transactions(engine: Engine, seconds: float) -> int:
    """End transactions on this database whose client has said nothing for so long; returns how many.

    It is the limit of `_PATIENCE` once more, for clients that were stopped where the server does not apply it. Only
    this user's own transactions are seen.
    """
    if engine.dialect.name == "sqlite":
        return 0
    with engine.begin() as connection:
        return len(connection.execute(_END_SILENT, {"seconds": seconds}).all())


def clock(connection: Connection, own: Callable[[], float]) -> float:
    """The clock that leases are measured by: the database's own where several machines share it."""
    if connection.dialect.name == "sqlite":
        return own()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


# ---- Errors.
class InvariantBroken(HanseError):
    """A row or statement that the database refuses: a fault of the program, and trying again does not help."""

    owner = Owner.PLATFORM
    default_code = "LEDGER_INVARIANT"


# (part of the driver's message, sentence, remedy, code); the first that fits is told.
_UNAVAILABLE: Final = (
    (
        "fatal:",
        "The ledger's database lets nobody in.",
        "Look whether it runs, and at user and database.",
        "LEDGER_UNAVAILABLE",
    ),
    ("disk is full", "The disk under the ledger is full.", "Free space on it.", "DISK_FULL"),
    ("no space left", "The disk under the ledger is full.", "Free space on it.", "DISK_FULL"),
    ("lock timeout", "Another program holds the ledger locked.", "End it, or wait.", "LEDGER_BUSY"),
    ("locked", "Another program holds the ledger locked.", "End it, or wait.", "LEDGER_BUSY"),
    ("readonly", "The ledger may not be written.", "Give its file and folder to this user.", "LEDGER_READ_ONLY"),
    ("read-only", "The ledger may not be written.", "Write to the primary database.", "LEDGER_READ_ONLY"),
    ("no such table", "The ledger has no tables, or older ones.", "Migrate it first.", "LEDGER_SCHEMA"),
    ("no such column", "The ledger has older tables.", "Migrate it first.", "LEDGER_SCHEMA"),
    ("does not exist", "The ledger has no tables, or older ones.", "Migrate it first.", "LEDGER_SCHEMA"),
    ("malformed", "The ledger's file is damaged.", "Restore it from a backup.", "LEDGER_DAMAGED"),
    ("not a database", "The file is not a ledger.", "Give the path of a ledger's file.", "LEDGER_DAMAGED"),
    (
        "unable to open",
        "The ledger's file cannot be opened.",
        "Give its file and folder to this user.",
        "LEDGER_UNAVAILABLE",
    ),
    ("disk i/o error", "The disk under the ledger fails.", "Look at the machine's disk.", "LEDGER_UNAVAILABLE"),
)


def _translate(context: ExceptionContext) -> HanseError | None:
    """The one place where a driver's error becomes one of ours; its cause is kept."""
    original, wrapped = context.original_exception, context.sqlalchemy_exception
    message = str(original).strip()
    first_line = message.splitlines()[0] if message else type(original).__name__
    if "append-only" in message:
        return InvariantBroken("Events of the ledger are never changed or deleted.")
    if isinstance(wrapped, IntegrityError):
        if "unique" in message.lower():
            return Conflict(f"The ledger already holds such a row: {first_line}.", code="LEDGER_DUPLICATE")
        return InvariantBroken(f"The ledger refuses a row that breaks its rules: {first_line}.")
    if not isinstance(wrapped, DBAPIError):
        return None
    for part, sentence, remedy, code in _UNAVAILABLE:
        if part in message.lower():
            return PlatformError(f"{sentence} ({first_line})", remedy=remedy, code=code)
    if isinstance(wrapped, OperationalError) or context.is_disconnect:
        return PlatformError(
            f"The ledger's database does not answer: {first_line}",
            remedy="Look whether it runs; the work goes on when it is back.",
            code="LEDGER_UNAVAILABLE",
        )
    return InvariantBroken(f"The ledger's database refuses a statement: {first_line}.")
