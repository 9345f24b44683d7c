"""Where payloads rest, each under its SHA-256.

`ArtifactStore` is what programs rely on; `LocalStore` keeps artifacts in a folder. What is stored never changes, so
that storing it again is no work, and whoever reaches the same store needs only the digest.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from hanse.errors import InvalidPayload, NotFound, PlatformError
from hanse.payload.header import DIGEST_BYTES
from hanse.payload.payload import Payload
from hanse.payload.spool import sync_folder

LEFTOVER_AGE = timedelta(days=2)
"""Uploads that nobody touched for so long are given up."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A stored payload: its name and its length in bytes."""

    digest: bytes
    size: int


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


class LocalStore:
    """Artifacts in a folder: `ab/abcd…`, sharded by the first two hex digits; `spool/` holds what is on its way.

    A file gets its name only when it is whole and on the disk, so that a reader never sees half an artifact.
    Several programs may use the same folder at once.
    """

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        """Open a store, or make one. `durable=False` leaves flushing to the system: a power cut may lose the newest.

        Raises:
            PlatformError: the folder cannot be made or written.
        """
        self.root = root
        self._durable = durable
        self._spool = root / "spool"
        try:
            self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._store_id = self._identity()
        except OSError as error:
            raise self._failure(error) from error

    @property
    def store_id(self) -> str:
        """Identity of the folder, drawn when it was made."""
        return self._store_id

    @property
    def spool(self) -> Path:
        """The folder for payloads on their way in; on the same disk, so that adopting is a rename."""
        return self._spool

    def path(self, digest: bytes) -> Path:
        """Where an artifact lies, or would lie.

        Raises:
            InvalidPayload: `digest` is no SHA-256.
        """
        if len(digest) != DIGEST_BYTES:
            raise InvalidPayload(f"a digest has {DIGEST_BYTES} bytes, not {len(digest)}.")
        name = digest.hex()
        return self.root / name[:2] / name

    def put(self, payload: Payload) -> Artifact:
        """Store a payload. One whose digest is known and present costs nothing.

        Raises:
            PlatformError: the folder has no room or cannot be written.
        """
        if payload.digest_known and self.exists(payload.digest):
            return Artifact(digest=payload.digest, size=payload.size)
        draft = self._spool / f"put-{secrets.token_hex(8)}"
        try:
            digest = payload.write(draft)
            return self._settle(draft, digest)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            draft.unlink(missing_ok=True)

    def adopt(self, path: Path, digest: bytes, *, keep: bool = False) -> Artifact:
        """Store a verified file by a rename; with `keep`, by a second name for the same bytes.

        A file on another disk is copied first.

        Raises:
            PlatformError: the folder has no room or cannot be written, or the file is gone.
        """
        draft = self._spool / f"adopt-{secrets.token_hex(8)}"
        try:
            if keep:
                _link_or_copy(path, draft)
            else:
                shutil.move(path, draft)
            return self._settle(draft, digest)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            draft.unlink(missing_ok=True)

    def open(self, digest: bytes) -> Payload:
        """Map an artifact.

        Raises:
            NotFound: there is none of this digest.
            InvalidPayload: its length is not what its header says.
        """
        try:
            return Payload.open(self.path(digest), digest=digest)
        except FileNotFoundError:
            raise _missing(digest) from None
        except OSError as error:
            raise self._failure(error) from error

    def fetch_to(self, digest: bytes, path: Path) -> None:
        """Place an artifact at a local path, by a second name where the disk allows it.

        Raises:
            NotFound: there is none of this digest.
            PlatformError: `path` cannot be written.
        """
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            _link_or_copy(self.path(digest), draft)
            draft.replace(path)
        except FileNotFoundError:
            raise _missing(digest) from None
        except OSError as error:
            raise self._failure(error) from error
        finally:
            draft.unlink(missing_ok=True)

    def size(self, digest: bytes) -> int:
        """Bytes of an artifact.

        Raises:
            NotFound: there is none of this digest.
        """
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise _missing(digest) from None

    def exists(self, digest: bytes) -> bool:
        """Whether an artifact is there."""
        return self.path(digest).exists()

    def delete(self, digest: bytes) -> None:
        """Remove an artifact. Whoever has it mapped keeps reading it."""
        self.path(digest).unlink(missing_ok=True)

    def sweep(self, *, older_than: timedelta = LEFTOVER_AGE) -> int:
        """Remove what crashes left in `spool/` and nobody touched since; returns how many files."""
        oldest, removed = time.time() - older_than.total_seconds(), 0
        for entry in sorted(self._spool.rglob("*"), reverse=True):  # what a folder holds comes before the folder
            with suppress(FileNotFoundError):
                if entry.is_dir():
                    with suppress(OSError):  # not empty
                        entry.rmdir()
                elif entry.stat().st_mtime < oldest:
                    entry.unlink()
                    removed += 1
        return removed

    def _settle(self, draft: Path, digest: bytes) -> Artifact:
        """Give a whole file its final name."""
        target = self.path(digest)
        size = draft.stat().st_size
        if self._durable:
            _sync_file(draft)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        draft.replace(target)
        if self._durable:
            sync_folder(target.parent)
        return Artifact(digest=digest, size=size)

    def _identity(self) -> str:
        file = self.root / "store.id"
        if not file.exists():
            draft = self._spool / f"id-{secrets.token_hex(8)}"
            draft.write_text(secrets.token_hex(16) + "\n", encoding="ascii")
            with suppress(FileExistsError):  # another program made it in the meantime: theirs counts
                os.link(draft, file)
            draft.unlink()
        return file.read_text(encoding="ascii").strip()

    def _failure(self, error: OSError) -> PlatformError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return PlatformError(
                f"the disk of the artifact folder {self.root} is full.",
                remedy="Free some space there.",
                code="DISK_FULL",
            )
        return PlatformError(
            f"the artifact folder {self.root} cannot be used: {error.strerror or error}.",
            remedy="Check the disk and the permissions of the folder.",
            code="ARTIFACT_STORE",
        )


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _missing(digest: bytes) -> NotFound:
    return NotFound(
        f"artifact {digest.hex()[:16]}… is not in the store.",
        remedy="It was removed after its retention, or belongs to another federation.",
        code="ARTIFACT_NOT_FOUND",
    )
