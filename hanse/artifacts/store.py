"""What every artifact store can do, and how artifacts are named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from hanse.errors import InvalidPayload, NotFound
from hanse.payload.header import DIGEST_BYTES
from hanse.payload.payload import Payload

LEFTOVER_AGE = timedelta(days=2)
"""Uploads that nobody touched for so long are given up."""

_NAME = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A stored payload: its name and its length in bytes."""

    digest: bytes
    size: int


@dataclass(frozen=True, kw_only=True)
class Stored(Artifact):
    """What a listing of a store says of an artifact."""

    at: float
    """When it was stored last, in seconds since 1970."""


class ArtifactStore(Protocol):
    """Payloads by digest. All calls may block on disk or network: call from a thread. All are idempotent."""

    @property
    def store_id(self) -> str:
        """Identity of the store: two programs that read the same one share it."""

    @property
    def spool(self) -> Path:
        """A local folder for payloads on their way in."""

    def put(self, payload: Payload) -> Artifact:
        """Store a payload; when this returns, it survives a crash.

        Raises:
            PlatformError: the store cannot be written.
        """

    def adopt(self, path: Path, digest: bytes, *, keep: bool = False) -> Artifact:
        """Store a local file whose digest was verified. The file is moved, or copied when `keep`.

        Raises:
            PlatformError: the store cannot be written.
        """

    def open(self, digest: bytes) -> Payload:
        """The payload, mapped, its digest known.

        Raises:
            NotFound: there is none of this digest.
            InvalidPayload: what lies there is damaged.
        """

    def fetch_to(self, digest: bytes, path: Path) -> None:
        """Place a copy at a local path.

        Raises:
            NotFound: there is none of this digest.
        """

    def size(self, digest: bytes) -> int:
        """Bytes of an artifact.

        Raises:
            NotFound: there is none of this digest.
        """

    def exists(self, digest: bytes) -> bool:
        """Whether an artifact is there."""

    def delete(self, digest: bytes) -> None:
        """Remove an artifact; none is no error."""

    def stored(self) -> Iterator[Stored]:
        """Every artifact in the store, in no order.

        Raises:
            PlatformError: the store cannot be read.
        """

    def sweep(self, *, older_than: timedelta = LEFTOVER_AGE) -> int:
        """Remove what crashes left in `spool` and nobody touched since; returns how many files."""


def key_of(digest: bytes) -> str:
    """Where an artifact lies below the root of a store: `ab/abcd…`.

    Raises:
        InvalidPayload: `digest` is no SHA-256.
    """
    if len(digest) != DIGEST_BYTES:
        raise InvalidPayload(f"a digest has {DIGEST_BYTES} bytes, not {len(digest)}.")
    name = digest.hex()
    return f"{name[:2]}/{name}"


def digest_of(name: str) -> bytes | None:
    """The digest that a file or an object is named by; None: it is no artifact."""
    return bytes.fromhex(name) if _NAME.fullmatch(name) else None


def missing(digest: bytes) -> NotFound:
    """The error that an artifact is not there."""
    return NotFound(
        f"artifact {digest.hex()[:16]}… is not in the store.",
        remedy="It was removed after its retention, or belongs to another federation.",
        code="ARTIFACT_NOT_FOUND",
    )
