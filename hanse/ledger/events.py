"""The audit trail in the ledger: events are appended, and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, insert, select

from hanse.ledger import models
from hanse.ledger.chain import GENESIS, Head, canonical_bytes, link
from hanse.ledger.records import Event
from hanse.ledger.rows import Reads, Writes

_HEAD: Select[Any] = (
    select(models.event.c.sequence, models.event.c.hash).order_by(models.event.c.sequence.desc()).limit(1)
)
_APPEND = insert(models.event)


class Appended(NamedTuple):
    """An event of a transaction that is under way, for whoever counts what happens."""

    kind: str
    at: float
    job: str | None
    node: str | None
    body: Mapping[str, Any]


class EventReads(Reads):
    """What can be asked about events."""

    def head(self) -> Head:
        """The newest event's sequence and hash."""
        row = self._connection.execute(_HEAD).first()
        return Head(0, GENESIS) if row is None else Head(row[0], row[1])

    def events(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        job: str | None = None,
        node: str | None = None,
        newest_first: bool = False,
    ) -> list[Event]:
        """Events in order, from the one after `after` on; of a job or a node, if given."""
        table = models.event
        statement = self._select(table, Event).where(table.c.sequence > after).limit(limit)
        if job is not None:
            statement = statement.where(table.c.job == job)
        if node is not None:
            statement = statement.where(table.c.node == node)
        order = table.c.sequence.desc() if newest_first else table.c.sequence
        return self._all(Event, statement.order_by(order))

    def every_event(self) -> Iterator[Event]:
        """All events in order, read a few at a time."""
        return self._stream(Event, self._select(models.event, Event).order_by(models.event.c.sequence))


class EventWrites(EventReads, Writes):
    """Appending to the audit trail."""

    def __init__(self, connection: Connection, now: float) -> None:
        super().__init__(connection, now)
        self._head: Head | None = None
        self.appended: list[Appended] = []
        """The events of this transaction so far."""

    def head(self) -> Head:
        """The newest event's sequence and hash, those of this transaction included."""
        if self._head is None:
            self._head = super().head()
        return self._head

    def event(
        self,
        kind: str,
        *,
        job: str | None = None,
        node: str | None = None,
        actor: str = "coordinator",
        body: Mapping[str, Any] | None = None,
    ) -> int:
        """Append an event and return its sequence.

        Raises:
            ValueError: the body holds NaN or an infinity.
            TypeError: the body holds something that JSON cannot say.
        """
        previous = self.head()
        columns = {
            "sequence": previous.sequence + 1,
            "at": float(self.now),
            "kind": str(kind),
            "job": job,
            "node": node,
            "actor": actor,
        }
        image = canonical_bytes(**columns, body=body or {})  # type: ignore[arg-type]
        head = Head(previous.sequence + 1, link(previous.hash, image))
        stored = columns | {"body": image, "previous_hash": previous.hash, "hash": head.hash}
        self._connection.execute(_APPEND, stored)
        self._head = head
        self.appended.append(Appended(str(kind), columns["at"], job, node, body or {}))  # type: ignore[arg-type]
        return head.sequence
