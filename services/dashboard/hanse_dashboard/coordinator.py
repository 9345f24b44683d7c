"""The coordinator as the dashboard sees it: is it there, and actions in an operator's own name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hanse.cli.connection import SERVER_NAME, Connection, Control
from hanse.errors import HanseError, OperatorError
from hanse.security import Address, OperatorToken, check_server

__all__ = ["Coordinator", "Presence"]

_FRESH_S = 3.0
_PATIENCE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Presence:
    """Whether the coordinator answers, since when it is so, and why not."""

    answers: bool
    since: float
    sentence: str = ""
    remedy: str = ""


class Coordinator:
    """The coordinator's control port."""

    def __init__(self, address: str, authority: Path) -> None:
        """Nothing is called yet.

        Raises:
            OperatorError: the authority's certificate cannot be read, or the address is none.
        """
        self.address = Address.parse(address)
        try:
            self._authority = authority.read_bytes()
        except OSError as error:
            raise OperatorError(
                f"The authority's certificate cannot be read from {authority}: {error.strerror or error}.",
                remedy="Check the key `authority` of the dashboard's configuration.",
            ) from error
        self._lock = threading.Lock()
        self._presence: Presence | None = None
        self._looked_at = 0.0

    def presence(self) -> Presence:
        """What a look at the port found, at most three seconds ago. The look is a TLS handshake, and shows no token."""
        with self._lock:
            if self._presence is None or time.monotonic() - self._looked_at > _FRESH_S:
                self._presence = self._look(self._presence)
                self._looked_at = time.monotonic()
            return self._presence

    def _look(self, before: Presence | None) -> Presence:
        try:
            check_server(self.address, authority_pem=self._authority, server_name=SERVER_NAME, timeout_s=_PATIENCE_S)
        except HanseError as error:
            since = before.since if before and not before.answers else time.time()
            return Presence(answers=False, since=since, sentence=error.sentence, remedy=error.remedy)
        return Presence(answers=True, since=before.since if before and before.answers else time.time())

    @contextmanager
    def acting_as(self, token: OperatorToken) -> Iterator[Control]:
        """Calls in the name of whoever holds the token: the coordinator itself decides whether they may.

        Raises:
            HanseError: the coordinator's own reason, or Unreachable.
        """
        with Control(Connection(address=self.address, authority=self._authority, token=token)) as control:
            yield control
