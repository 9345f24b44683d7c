"""Everything that a request may need, put together once."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request

from hanse.artifacts import open_store
from hanse.ledger import Ledger, View
from hanse.security import Role
from hanse_dashboard.access import Caller, Gate
from hanse_dashboard.coordinator import Coordinator
from hanse_dashboard.feed import Feed
from hanse_dashboard.issuing import SingleSignOn
from hanse_dashboard.sessions import LoginDesk
from hanse_dashboard.settings import DashboardSettings

__all__ = ["Admin", "Dashboard", "Desk", "Operator", "Researcher", "Viewer", "dashboard_of"]


class Dashboard:
    """The parts of a running dashboard."""

    def __init__(self, settings: DashboardSettings) -> None:
        """Open the ledger.

        Raises:
            HanseError: the ledger, the authority or the artifact folder cannot be opened.
        """
        self.settings = settings
        self.ledger = Ledger.open(settings.ledger, read_only=True)
        self.desk = LoginDesk(
            settings.ledger,
            lifetime=settings.session_lifetime,
            idle=settings.session_idle,
            attempts=settings.login_attempts,
            window=settings.login_window,
        )
        self.gate = Gate(self.ledger, self.desk, public_url=settings.public_url)
        self.coordinator = Coordinator(settings.coordinator, settings.authority)
        self.sign_on = (
            SingleSignOn(settings, settings.oidc, self.coordinator, self.ledger) if settings.oidc is not None else None
        )
        self.feed = Feed(self.ledger, heartbeat_s=settings.heartbeat.total_seconds())
        self._copies = tempfile.TemporaryDirectory(prefix="hanse-dashboard-", ignore_cleanup_errors=True)
        self.store = open_store(settings, cache=Path(self._copies.name), read_only=True)
        self.started_at = time.time()
        self._verifying = threading.Lock()

    def close(self) -> None:
        """Let go of the database."""
        self.ledger.close()
        self.desk.close()
        self._copies.cleanup()

    @contextmanager
    def verifying(self) -> Iterator[bool]:
        """Whether the caller may read the whole trail now: one at a time, since that is much work."""
        free = self._verifying.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._verifying.release()

    @contextmanager
    def read(self) -> Iterator[View]:
        """One state of the ledger."""
        with self.ledger.read() as view:
            yield view


def dashboard_of(request: Request) -> Dashboard:
    """The dashboard that answers this request."""
    return cast(Dashboard, request.app.state.dashboard)


Desk = Annotated[Dashboard, Depends(dashboard_of)]


def _at_least(role: Role) -> object:
    def find(request: Request, desk: Desk) -> Caller:
        caller = desk.gate.caller(request)
        request.state.caller = caller
        caller.require(role)
        return caller

    return Depends(find)


Viewer = Annotated[Caller, _at_least(Role.VIEWER)]
Researcher = Annotated[Caller, _at_least(Role.RESEARCHER)]
Operator = Annotated[Caller, _at_least(Role.OPERATOR)]
Admin = Annotated[Caller, _at_least(Role.ADMIN)]
