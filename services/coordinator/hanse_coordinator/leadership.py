"""Who leads. Of all coordinators of a federation one does; the others stand by until its lease is free.

    leadership = Leadership(settings.ledger_url, holder=…, lease=…)
    lead = await leadership.win()          # stands by for as long as it takes
    … serve under lead.epoch until await lead.until_lost() …
    await lead.release()

On PostgreSQL the lease is a row that runs out by the database's clock. On SQLite, whose file lies on one machine, it is
a lock on a file beside it, which the kernel takes away from a process that ends. Neither is what keeps the ledger safe:
every write checks the epoch. The lease only keeps coordinators from taking turns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hanse.errors import HanseError
from hanse.ledger import Ledger
from hanse.ledger.database import parse_url
from hanse_coordinator.file_lead import FileLead
from hanse_coordinator.lease_lead import LeaseLead

__all__ = ["Lead", "Leadership"]


class Lead(Protocol):
    """One time of leading, from winning the lease to its loss or release."""

    @property
    def epoch(self) -> int:
        """What every write carries."""

    @property
    def holder(self) -> str:
        """The name under which this coordinator leads."""

    def fenced(self) -> None:
        """The ledger refused a write: another coordinator leads. For any thread."""

    async def until_lost(self) -> HanseError:
        """Wait until this is no longer the leader; why."""

    async def release(self) -> None:
        """Lead no longer: the next may begin at once. Does not wait long for a database that is away."""


class Leadership:
    """Wins the lease of a ledger, again and again."""

    def __init__(self, url: str, *, holder: str, lease: float) -> None:
        """`holder` names this coordinator (see `standby.holder_name`); `lease` is in seconds."""
        self._url = url
        self._holder = holder
        self._lease = lease

    async def win(self) -> Lead:
        """Stand by until this coordinator leads. Cancel it to give up.

        A database that does not answer is waited for.

        Raises:
            PlatformError: the ledger's tables are not those of this version.
            OperatorError: the URL names no database that the ledger runs on.
        """
        parsed = parse_url(self._url)
        if parsed.get_backend_name() == "sqlite":
            return await FileLead.win(self._url, Path(str(parsed.database)), self._holder)
        return await LeaseLead.win(lambda: Ledger.open(self._url), self._holder, self._lease)
