"""Who is logged in: the only two tables that the dashboard writes.

The cookie holds a random secret. The table holds its SHA-256, and the operator's own token encrypted under a key
that is derived from the secret: whoever reads the database alone can neither log in nor act as anybody. Any
replica can serve any request, because everything is in the table and the cookie.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Engine, delete, func, insert, select, update

from hanse.errors import Conflict, PlatformError, Unauthenticated
from hanse.ledger.database import begin, open_engine, parse_url
from hanse.ledger.models import login_attempt, login_session
from hanse.security import OperatorToken

__all__ = ["Login", "LoginDesk"]

_NONCE = 12
_SEEN_EVERY_S = 60.0
_KEPT_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Login:
    """A session as the table has it, opened with the cookie's secret."""

    id: str
    token: OperatorToken
    csrf: str
    """What forms of this session carry."""
    expires_at: float


class LoginDesk:
    """Opens, finds and closes sessions, and counts bad attempts."""

    def __init__(
        self,
        url: str,
        *,
        lifetime: timedelta,
        idle: timedelta,
        attempts: int,
        window: timedelta,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine: Engine = open_engine(parse_url(url), read_only=False)
        self._lifetime = lifetime.total_seconds()
        self._idle = idle.total_seconds()
        self._attempts = attempts
        self._window = window.total_seconds()
        self._clock = wall_clock

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    # ---- Sessions
    def open(self, token: OperatorToken) -> tuple[str, float]:
        """Log somebody in; returns the cookie's secret and when it runs out."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        session = _session_id(secret)
        nonce = secrets.token_bytes(_NONCE)
        sealed = nonce + AESGCM(_key(secret)).encrypt(nonce, token.text().encode(), session.encode())
        expires = now + self._lifetime
        row = {
            "id": session,
            "token": token.token_id,
            "sealed": sealed,
            "created_at": now,
            "seen_at": now,
            "expires_at": expires,
        }
        with begin(self._engine, writing=True) as connection:
            connection.execute(delete(login_session).where(login_session.c.expires_at < now))
            connection.execute(insert(login_session).values(**row))
        return secret, expires

    def find(self, secret: str, *, touch: bool = True) -> Login | None:
        """The session of a cookie; None when there is none, or it has run out. `touch`: somebody is at work."""
        if not 20 <= len(secret) <= 100:
            return None
        session, now = _session_id(secret), self._clock()
        table = login_session
        with begin(self._engine, writing=False) as connection:
            row = connection.execute(
                select(table.c.sealed, table.c.seen_at, table.c.expires_at).where(table.c.id == session)
            ).first()
        if row is None or row.expires_at <= now or row.seen_at + self._idle <= now:
            return None
        try:
            text = AESGCM(_key(secret)).decrypt(row.sealed[:_NONCE], row.sealed[_NONCE:], session.encode())
            token = OperatorToken.parse(text.decode())
        except (InvalidTag, ValueError, Unauthenticated):
            return None
        if touch and now - row.seen_at > min(_SEEN_EVERY_S, self._idle / 4):
            self._touch(session, now)
        return Login(id=session, token=token, csrf=_csrf(secret), expires_at=row.expires_at)

    def _touch(self, session: str, now: float) -> None:
        try:
            with begin(self._engine, writing=True) as connection:
                connection.execute(update(login_session).where(login_session.c.id == session).values(seen_at=now))
        except PlatformError:
            return  # a busy database must not keep anybody from reading

    def end(self, session: str) -> None:
        """Log out."""
        with begin(self._engine, writing=True) as connection:
            connection.execute(delete(login_session).where(login_session.c.id == session))

    # ---- Attempts
    def require_patience(self, source: str) -> None:
        """Refuse a source that tried too often.

        Raises:
            Conflict: code `TOO_MANY_ATTEMPTS`; the remedy says how long to wait.
        """
        now, table = self._clock(), login_attempt
        recent = (table.c.source == source, table.c.at > now - self._window, table.c.good.is_(False))
        with begin(self._engine, writing=False) as connection:
            count, first = connection.execute(select(func.count(), func.min(table.c.at)).where(*recent)).one()
        if count >= self._attempts:
            wait = max(1, round(first + self._window - now))
            raise Conflict(
                "Too many attempts to log in came from this address.",
                remedy=f"Wait {wait} seconds and try again.",
                code="TOO_MANY_ATTEMPTS",
            )

    def note(self, source: str, *, good: bool) -> None:
        """Record an attempt; a good one forgives the bad ones before it."""
        now, table = self._clock(), login_attempt
        with begin(self._engine, writing=True) as connection:
            connection.execute(delete(table).where(table.c.at < now - _KEPT_S, ~table.c.source.startswith("link:")))
            if good:
                connection.execute(delete(table).where(table.c.source == source, table.c.good.is_(False)))
            connection.execute(insert(table).values(source=source, at=now, good=good))

    def use_once(self, code_sha256: str) -> bool:
        """Whether a one-time code is used for the first time."""
        source, table = f"link:{code_sha256}", login_attempt
        with begin(self._engine, writing=True) as connection:
            used = connection.execute(select(table.c.id).where(table.c.source == source)).first()
            if used is None:
                connection.execute(insert(table).values(source=source, at=self._clock(), good=True))
        return used is None


def _session_id(secret: str) -> str:
    return hashlib.sha256(b"hanse session " + secret.encode()).hexdigest()


def _key(secret: str) -> bytes:
    return hmac.digest(secret.encode(), b"hanse session key", "sha256")


def _csrf(secret: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(secret.encode(), b"hanse csrf", "sha256")[:24]).decode()
