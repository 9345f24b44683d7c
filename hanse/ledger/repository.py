"""The ledger: one writer, any number of readers, one transaction for each transition.

    ledger = Ledger.open("sqlite:////var/lib/hanse/ledger.db")
    ledger.migrate()
    epoch = ledger.take_lease("coordinator-1")
    with ledger.write(epoch) as tx:
        tx.update_job(job, state=JobState.RUNNING)
        tx.event("job_running", job=job)
    with ledger.read() as view:
        print(view.job(job).state)

Every write names the epoch of the leader who makes it and locks the lease row in its own transaction: a leader that
was deposed, paused or cut off is fenced out by the database, whatever it believes. Whatever goes wrong in the
database comes out as one of `hanse.errors`, with a sentence and a remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from sqlalchemy import Connection, Engine, insert, select, update

from hanse.errors import Conflict, FencedOut
from hanse.ledger import models, schema
from hanse.ledger.artifacts import ArtifactReads, ArtifactWrites
from hanse.ledger.database import begin, clock, end_silent_transactions, open_engine, parse_url
from hanse.ledger.events import EventReads, EventWrites
from hanse.ledger.jobs import JobReads, JobWrites
from hanse.ledger.nodes import NodeReads, NodeWrites
from hanse.ledger.phases import PhaseReads, PhaseWrites
from hanse.ledger.records import Leader, Lease
from hanse.ledger.tokens import TokenReads, TokenWrites

_LEADER = "leader"
_EPOCH = select(models.lease.c.epoch).where(models.lease.c.name == _LEADER).with_for_update()


class View(NodeReads, TokenReads, JobReads, PhaseReads, ArtifactReads, EventReads):
    """One state of the ledger, as it was when the view was opened."""

    def lease(self) -> Lease | None:
        """Who may write, or None when nobody took the lease yet."""
        table = models.lease
        return self._first(Lease, self._select(table, Lease).where(table.c.name == _LEADER))


class Transaction(NodeWrites, TokenWrites, JobWrites, PhaseWrites, ArtifactWrites, EventWrites, View):
    """What is written together or not at all. `now` is its instant; it sees what it wrote."""


class Ledger:
    """The database of everything that happened."""

    def __init__(self, engine: Engine, name: str, wall_clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = wall_clock
        self.name = name
        """The database's URL, without a password."""

    @classmethod
    def open(cls, url: str, *, read_only: bool = False, wall_clock: Callable[[], float] = time.time) -> Self:
        """Open a ledger; a file that is not there yet is made, unless `read_only`.

        Args:
            url: `sqlite:///PATH` or `postgresql+psycopg://…`.
            read_only: nothing can be written, and no file is made.
            wall_clock: what tells the instants of transactions.

        Raises:
            OperatorError: the URL names no database that the ledger runs on.
            NotFound: `read_only`, and there is no such file.
            PlatformError: the file cannot be made.
        """
        parsed = parse_url(url)
        return cls(open_engine(parsed, read_only=read_only), parsed.render_as_string(hide_password=True), wall_clock)

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Tables
    def migrate(self, revision: str = "head") -> None:
        """Bring the tables to a revision (`head`: the newest; `base`: none), in one transaction.

        Raises:
            PlatformError: the database does not answer, is full or locked.
        """
        with begin(self._engine, writing=True) as connection:
            schema.migrate(connection, revision)

    def require_schema(self) -> None:
        """Check that this version of Hanse works with the tables: those of its own, or of a release that added to them.

        Raises:
            PlatformError: it does not.
        """
        with begin(self._engine, writing=False) as connection:
            found = schema.current_revision(connection)
        schema.require(found)

    # ---- Leadership
    def leader(self) -> Leader | None:
        """Who holds the lease, and for how much longer; None when nobody took it yet. Locks nothing.

        Raises:
            PlatformError: the database does not answer, or has no tables.
        """
        table = models.lease
        with begin(self._engine, writing=False) as connection:
            now = clock(connection, self._clock)
            found = connection.execute(
                select(table.c.holder, table.c.epoch, table.c.expires_at).where(table.c.name == _LEADER)
            ).first()
        if found is None:
            return None
        holder, epoch, until = found
        return Leader(holder=holder, epoch=epoch, seconds_left=None if until is None else until - now)

    def take_lease(self, holder: str, seconds: float | None = None, *, over: int | None = None) -> int:
        """Become the leader and return the new epoch, one more than any before; the first is 1.

        Args:
            holder: who takes it, for people.
            seconds: how long it lasts unless renewed; None: until somebody else takes it (one process, embedded).
            over: the epoch of a leader that is known to be gone: its lease is taken although it has not run out.
                Should it live after all, the new epoch fences it out.

        Raises:
            Conflict: another holder's lease has not run out.
            PlatformError: code `LEDGER_BUSY`: somebody holds the lease row locked.
        """
        table = models.lease
        with begin(self._engine, writing=True, lock_seconds=2) as connection:
            now = clock(connection, self._clock)
            expires_at = None if seconds is None else now + seconds
            current = connection.execute(
                select(table.c.holder, table.c.epoch, table.c.expires_at)
                .where(table.c.name == _LEADER)
                .with_for_update()
            ).first()
            if current is None:
                # Two first leaders at once: the primary key lets one in.
                connection.execute(insert(table).values(name=_LEADER, holder=holder, epoch=1, expires_at=expires_at))
                return 1
            other, epoch, until = current
            if until is not None and until > now and other != holder and epoch != over:
                raise Conflict(
                    f"{other} leads for another {until - now:.0f} seconds.",
                    remedy="Wait until its lease runs out.",
                    code="LEASE_HELD",
                )
            connection.execute(
                update(table)
                .where(table.c.name == _LEADER)
                .values(holder=holder, epoch=epoch + 1, expires_at=expires_at)
            )
            return int(epoch) + 1

    def end_silent_leader(self, seconds: float) -> bool:
        """End transactions whose client has said nothing for `seconds`, so that they hold the lease row no longer.

        For a standby that finds the lease run out but its row locked; whether there were any.
        """
        return end_silent_transactions(self._engine, seconds) > 0

    def renew_lease(self, epoch: int, seconds: float) -> None:
        """Lead for another `seconds` from now.

        Raises:
            FencedOut: somebody else leads.
        """
        self._extend_lease(epoch, seconds)

    def release_lease(self, epoch: int) -> None:
        """Let the next leader in at once, if this epoch is still the leader's."""
        try:
            self._extend_lease(epoch, 0)
        except FencedOut:
            return

    def _extend_lease(self, epoch: int, seconds: float) -> None:
        table = models.lease
        with begin(self._engine, writing=True) as connection:
            _fence(connection, epoch)
            expires_at = clock(connection, self._clock) + seconds
            connection.execute(update(table).where(table.c.name == _LEADER).values(expires_at=expires_at))

    # ---- Transactions
    @contextmanager
    def write(self, epoch: int) -> Iterator[Transaction]:
        """One transaction of the leader: committed at the end of the block, undone if the block raises.

        Raises:
            FencedOut: `epoch` is not the leader's; nothing is written.
            PlatformError: the database does not answer, is full or locked; nothing is written.
        """
        with begin(self._engine, writing=True) as connection:
            _fence(connection, epoch)
            yield Transaction(connection, self._clock())

    @contextmanager
    def read(self) -> Iterator[View]:
        """One state of the ledger, which no writer changes while the block lasts.

        Raises:
            PlatformError: the database does not answer, or has no tables.
        """
        with begin(self._engine, writing=False) as connection:
            yield View(connection)


def _fence(connection: Connection, epoch: int) -> None:
    """Lock the lease row until the transaction ends, and see that it is still this epoch's."""
    leading = connection.execute(_EPOCH).scalar_one_or_none()
    if leading != epoch:
        raise FencedOut(
            f"Epoch {epoch} does not lead: the ledger is at epoch {leading or 0}.",
            remedy="Another coordinator leads; this one must start again as a standby.",
        )
