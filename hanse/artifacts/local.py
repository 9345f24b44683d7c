"""Artifacts in a local folder."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from hanse.artifacts.files import disk_failure, link_or_copy, sweep_folder
from hanse.artifacts.store import LEFTOVER_AGE, Artifact, Stored, digest_of, key_of, missing
from hanse.errors import PlatformError
from hanse.payload.payload import Payload
from hanse.payload.spool import sync_folder


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
        return self.root / key_of(digest)

    def put(self, payload: Payload) -> Artifact:
        """Store a payload. One whose digest is known and present costs nothing.

        Raises:
            PlatformError: the folder has no room or cannot be written.
        """
        if payload.digest_known and self._stored_again(payload.digest):
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
                link_or_copy(path, draft)
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
            raise missing(digest) from None
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
            link_or_copy(self.path(digest), draft)
            draft.replace(path)
        except FileNotFoundError:
            raise missing(digest) from None
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
            raise missing(digest) from None

    def exists(self, digest: bytes) -> bool:
        """Whether an artifact is there."""
        return self.path(digest).exists()

    def delete(self, digest: bytes) -> None:
        """Remove an artifact. Whoever has it mapped keeps reading it."""
        self.path(digest).unlink(missing_ok=True)

    def sweep(self, *, older_than: timedelta = LEFTOVER_AGE) -> int:
        """Remove what crashes left in `spool/` and nobody touched since; returns how many files."""
        return sweep_folder(self._spool, older_than)

    def stored(self) -> Iterator[Stored]:
        """Every artifact in the folder, in no order."""
        for path in self.root.glob("[0-9a-f][0-9a-f]/*"):
            if (digest := digest_of(path.name)) is not None:
                with suppress(FileNotFoundError):  # deleted in the meantime
                    found = path.stat()
                    yield Stored(digest=digest, size=found.st_size, at=found.st_mtime)

    def _stored_again(self, digest: bytes) -> bool:
        """Whether it is there; if so, it counts as stored now."""
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True

    def _settle(self, draft: Path, digest: bytes) -> Artifact:
        """Give a whole file its final name."""
        target = self.path(digest)
        size = draft.stat().st_size
        if self._durable:
            _sync_file(draft)
        os.utime(draft)  # a file that was adopted may be old
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
        return disk_failure(error, f"artifact folder {self.root}")


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
