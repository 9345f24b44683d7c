"""How rows are read and written: the common ground of everything that a view or a transaction offers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, Select, Table, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from hanse.errors import Conflict, NotFound
from hanse.ledger.columns import field_names, from_row, to_columns

R = TypeVar("R")


def new_id() -> str:
    """A name for a row: 12 hex digits of milliseconds and 10 of chance, so that newer sorts after older."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(5)}"


class Reads:
    """Statements that read, on one connection with an open transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, statement: Executable) -> Sequence[Any]:
        """The rows of a question that this package does not ask itself, over the tables of `hanse.ledger.models`."""
        return self._connection.execute(statement).all()

    @staticmethod
    def _select(table: Table, record: type[Any]) -> Select[Any]:
        return _columns_of(table, field_names(record))

    def _all(self, record: type[R], statement: Select[Any], values: Mapping[str, Any] | None = None) -> list[R]:
        return [from_row(record, row) for row in self._connection.execute(statement, values or {})]

    def _first(self, record: type[R], statement: Select[Any]) -> R | None:
        row = self._connection.execute(statement).first()
        return None if row is None else from_row(record, row)

    def _one(self, record: type[R], table: Table, **key: Any) -> R:
        statement = _select_by(table, field_names(record), tuple(key))
        row = self._connection.execute(statement, {f"key_{name}": value for name, value in key.items()}).first()
        if row is None:
            raise _not_found(table, key)
        return from_row(record, row)

    def _stream(self, record: type[R], statement: Select[Any], batch: int = 500) -> Iterator[R]:
        with self._connection.execute(statement.execution_options(yield_per=batch)) as rows:
            for row in rows:
                yield from_row(record, row)


class Writes(Reads):
    """Statements that write. `now` is the instant of the transaction."""

    def __init__(self, connection: Connection, now: float) -> None:
        super().__init__(connection)
        self.now = now

    def _insert(self, table: Table, values: Mapping[str, Any], *, taken: str = "") -> bool:
        """Insert a row; whether it was new. With `taken`, one that is there already is a Conflict with that sentence.

        A conflict is found without an error of the database, so that the transaction stays usable.
        """
        statement = _insert_new(table, self._connection.dialect.name)
        new = self._connection.execute(statement, to_columns(values)).rowcount == 1
        if taken and not new:
            raise Conflict(taken)
        return new

    def _insert_many(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._connection.execute(table.insert(), [to_columns(row) for row in rows])

    def _update(self, table: Table, key: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        if not changes:
            return
        statement = _update_by(table, tuple(key), tuple(changes))
        values = to_columns(changes) | {f"key_{name}": value for name, value in key.items()}
        if self._connection.execute(statement, values).rowcount == 0:
            raise _not_found(table, key)


# The hot statements are built once: what remains for each execution is SQLAlchemy's look-up of the compiled text.
@cache
def _columns_of(table: Table, columns: tuple[str, ...]) -> Select[Any]:
    return select(*(table.c[name] for name in columns))


@cache
def _insert_new(table: Table, dialect: str) -> Any:
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


@cache
def _update_by(table: Table, key: tuple[str, ...], changed: tuple[str, ...]) -> Any:
    return _keyed(update(table), table, key).values({name: bindparam(name) for name in changed})


@cache
def _select_by(table: Table, columns: tuple[str, ...], key: tuple[str, ...]) -> Any:
    return _keyed(_columns_of(table, columns), table, key)


def _keyed(statement: Any, table: Table, key: tuple[str, ...]) -> Any:
    return statement.where(*(table.c[name] == bindparam(f"key_{name}") for name in key))


def _not_found(table: Table, key: Mapping[str, Any]) -> NotFound:
    named = ", ".join(str(value) for value in key.values())
    return NotFound(f"The ledger knows no {table.name.replace('_', ' ')} {named}.")
