"""Local copies of artifacts that rest elsewhere, so that they can be mapped.

A copy is verified before it gets its name. The folder is kept below a number of bytes: what was not used for longest
goes first, and whoever has it mapped reads on. Copies are not flushed to the disk, since they can be had again; after
the machine itself was restarted they are no longer believed, and removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from hanse.artifacts.files import disk_failure
from hanse.artifacts.store import digest_of, key_of
from hanse.errors import PlatformError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ArtifactCache:
    """A folder of copies; it belongs to one program. For any thread."""

    def __init__(self, root: Path, limit: int) -> None:
        """Open the folder, or make it; copies together have at most `limit` bytes, but the newest is always kept.

        Raises:
            PlatformError: the folder cannot be made or written.
        """
        self.root = root
        self.limit = limit
        self.spool = root / "spool"
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}  # by key, the least recently used first
        try:
            self.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._believe()
        except OSError as error:
            raise self.failure(error) from error

    @property
    def used(self) -> int:
        """Bytes of all copies."""
        with self._lock:
            return sum(self._sizes.values())

    def draft(self, purpose: str) -> Path:
        """A name for a file in the making, on the same disk."""
        return self.spool / f"{purpose}-{secrets.token_hex(8)}"

    def get(self, digest: bytes) -> Path | None:
        """The copy of an artifact, if it is here and has its full length."""
        key = key_of(digest)
        path = self.root / key
        with self._lock:
            size = self._sizes.pop(key, None)
            if size is None:
                return None
            with suppress(FileNotFoundError):
                if path.stat().st_size == size:
                    self._sizes[key] = size
                    os.utime(path)
                    return path
            path.unlink(missing_ok=True)
        return None

    def keep(self, draft: Path, digest: bytes) -> Path:
        """Give a verified file its name; the longest unused make room.

        Raises:
            OSError: the disk fails.
        """
        key = key_of(digest)
        path = self.root / key
        with self._lock:
            size = draft.stat().st_size
            path.parent.mkdir(mode=0o700, exist_ok=True)
            draft.replace(path)
            self._sizes.pop(key, None)
            self._sizes[key] = size
            self._make_room()
        return path

    def drop(self, digest: bytes) -> None:
        """Remove a copy; none is no error."""
        key = key_of(digest)
        with self._lock:
            self._sizes.pop(key, None)
            (self.root / key).unlink(missing_ok=True)

    def failure(self, error: OSError) -> PlatformError:
        """What a person is told of a fault of the folder's disk."""
        return disk_failure(error, f"artifact cache {self.root}")

    def _make_room(self) -> None:
        used = sum(self._sizes.values())
        while used > self.limit and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            used -= self._sizes.pop(oldest)
            (self.root / oldest).unlink(missing_ok=True)

    def _believe(self) -> None:
        """Take over the copies of an earlier process, unless the machine was restarted since."""
        boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else secrets.token_hex(8)
        mark = self.root / "boot.id"
        same = mark.exists() and mark.read_text() == boot
        found = []
        for folder in self.root.glob("[0-9a-f][0-9a-f]"):
            if not same:
                shutil.rmtree(folder)
                continue
            found += [path for path in folder.iterdir() if digest_of(path.name) is not None]
        if not same:
            mark.write_text(boot)
        for path in sorted(found, key=lambda path: path.stat().st_mtime):
            self._sizes[f"{path.parent.name}/{path.name}"] = path.stat().st_size
        self._make_room()
