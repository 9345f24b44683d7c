"""A log-in by way of the organisation's provider while it is under way, as the browser remembers it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from hanse.security import Role

__all__ = ["FLOW_S", "Flow", "Person"]

FLOW_S = 600
"""How long a log-in may be under way."""


class Flow:
    """A log-in that is under way, as the browser's secret tells it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    @classmethod
    def begin(cls) -> tuple[Flow, str]:
        """A new one, with its secret."""
        secret = secrets.token_urlsafe(32)
        return cls(secret), secret

    def _derived(self, purpose: str) -> str:
        digest = hmac.digest(self._secret, f"hanse log-in {purpose}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    @property
    def state(self) -> str:
        """What the provider sends back."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """What the ID token must hold."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """PKCE's, shown when the code is redeemed."""
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        """PKCE's (S256), shown when the log-in begins."""
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who logged in, and what they may do."""

    name: str
    role: Role
