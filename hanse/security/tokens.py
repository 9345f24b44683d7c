"""What operators, the command line and the dashboard show: `hanse_<id>_<secret>`.

The id is public and names the token in lists, events and revocations. The secret has 256 random bits, so that its
SHA-256 can be stored without salt or stretching; it is shown once and stored nowhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from hanse.errors import OperatorError, Unauthenticated

AUTHORIZATION = "authorization"

_TOKEN = re.compile(r"hanse_([a-z2-7]{8})_([a-z2-7]{52})")
_LONGEST_HEADER = 256
_SCHEME = "bearer "


class Role(StrEnum):
    """What an operator may do; each role may do all that the ones before it may."""

    VIEWER = "viewer"
    RESEARCHER = "researcher"
    OPERATOR = "operator"
    ADMIN = "admin"

    def allows(self, required: Role) -> bool:
        """Whether a holder of this role may do what needs `required`."""
        order = list(Role)
        return order.index(self) >= order.index(required)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The role of that name.

        Raises:
            OperatorError: there is none.
        """
        try:
            return cls(text)
        except ValueError as error:
            raise OperatorError(
                f"{text[:40]!r} is not a role.",
                remedy=f"Choose one of {', '.join(cls)}.",
                code="INVALID_ROLE",
            ) from error


@dataclass(frozen=True)
class OperatorToken:
    """A token in the hands of its owner; `repr` hides the secret, `text` does not."""

    token_id: str
    secret: str = field(repr=False)

    @classmethod
    def create(cls) -> Self:
        """A new random token."""
        return cls(_random_text(5), _random_text(32))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a token as `text` writes it.

        Raises:
            Unauthenticated: the text is not of that form; the sentence does not quote it.
        """
        match = _TOKEN.fullmatch(text.strip()) if len(text) <= _LONGEST_HEADER else None
        if match is None:
            raise Unauthenticated(
                "The token is not an operator token of Hanse.",
                remedy="It begins with hanse_; make one with `hanse token create`.",
                code="TOKEN_MALFORMED",
            )
        return cls(match[1], match[2])

    @classmethod
    def from_metadata(cls, metadata: Iterable[tuple[str, str | bytes]]) -> Self:
        """The token of a call, from its metadata `authorization: Bearer …`.

        Raises:
            Unauthenticated: there is none, more than one, or a malformed one.
        """
        values = [value for key, value in metadata if key.lower() == AUTHORIZATION]
        value = values[0] if len(values) == 1 else ""
        if not isinstance(value, str) or value[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated(
                "The call carries no operator token.",
                remedy="Log in, or set HANSE_TOKEN_FILE to the file that holds your token.",
                code="TOKEN_MISSING",
            )
        return cls.parse(value[len(_SCHEME) :])

    def text(self) -> str:
        """The whole token. It contains the secret."""
        return f"hanse_{self.token_id}_{self.secret}"

    def metadata(self) -> tuple[str, str]:
        """The metadata entry that shows this token in a call."""
        return (AUTHORIZATION, f"Bearer {self.text()}")

    @property
    def digest(self) -> bytes:
        """SHA-256 (32 bytes) of the whole token: what is stored."""
        return hashlib.sha256(self.text().encode()).digest()

    def matches(self, stored: bytes) -> bool:
        """Whether `stored` is this token's digest; takes the same time wherever they differ."""
        return hmac.compare_digest(self.digest, stored)


def _random_text(size: int) -> str:
    return base64.b32encode(secrets.token_bytes(size)).decode().rstrip("=").lower()
