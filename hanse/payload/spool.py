"""A payload on its way in: an append-only file that takes chunks in order and goes on where it broke.

What lies in the file is committed: a sender that comes back, even to a new process, goes on at the next byte. The
SHA-256 is computed as the bytes come; only a new process reads the existing bytes once more. Every call here
blocks on the disk: call from a thread.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hanse.errors import Conflict, InvalidPayload, PlatformError
from hanse.payload.header import DIGEST_BYTES, MAX_HEADER_BYTES, PREFIX, image_size, read_header
from hanse.v1 import payload_pb2

NO_LIMIT = 2**62
_BLOCK = 1024 * 1024
_WRITE_BACK = 8 * 1024 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Spool:
    """Receives one image into `path`. Not for two threads at once."""

    def __init__(
        self,
        path: Path,
        *,
        size: int | None = None,
        digest: bytes | None = None,
        limit: int = NO_LIMIT,
        durable: bool = True,
        flush_soon: bool = False,
    ) -> None:
        """Open a spool file, or go on with the one that lies at `path`.

        `size` and `digest` are what the sender declared, if it did; without `size` the header says it. `limit` bounds
        the size, whoever says it. `durable=False` leaves out the flush to the disk at the end, for copies that can
        be fetched again. `flush_soon` has the system begin to write every few megabytes, so that a flush at the end,
        whoever does it, is short.

        Raises:
            InvalidPayload: the declared size is zero or above `limit`, or the digest is no SHA-256.
            PlatformError: the folder cannot be written or has no room.
        """
        if digest is not None and len(digest) != DIGEST_BYTES:
            raise InvalidPayload(f"the declared digest has {len(digest)} bytes; a SHA-256 has {DIGEST_BYTES}.")
        self.path = path
        self.size = size
        self.digest = digest
        self.committed = 0
        self._declared_size = size
        self._limit = limit
        self._durable = durable
        self._write_back = begin_write_back if flush_soon else None
        self._flushing = 0
        self._file: int | None = None
        self._hasher = hashlib.sha256()
        self._stated: bytes | None = None
        if size is not None:
            self._check_size(size)
        self._resume()
        if size is not None:
            self._check_room(size - self.committed)

    @property
    def complete(self) -> bool:
        """Whether every byte is there (not yet whether they are the right ones)."""
        return self.size is not None and self.committed == self.size

    def intact(self) -> bool:
        """Whether the file still holds exactly the committed bytes."""
        try:
            return self.path.stat().st_size == self.committed
        except FileNotFoundError:
            return self.committed == 0

    def append(self, chunk: payload_pb2.PayloadChunk) -> int:
        """Take the next chunk; returns how many bytes are committed now.

        Raises:
            Conflict: the chunk does not begin where the committed bytes end (code `OFFSET`): ask where to go on.
            InvalidPayload: the bytes are not what was declared; nothing of this chunk is kept.
            PlatformError: the disk is full or fails; nothing of this chunk is kept, and the same chunk may come again.
        """
        data = chunk.data
        if chunk.offset != self.committed:
            raise Conflict(
                f"a chunk begins at byte {chunk.offset}, but {self.committed} bytes are committed.",
                remedy="Ask for the committed offset and go on there.",
                code="OFFSET",
            )
        if self.committed == 0:
            self._judge(data)
        assert self.size is not None
        end = self.committed + len(data)
        if end > self.size:
            raise InvalidPayload(f"{self.size} bytes were declared, but the chunks go on to byte {end}.")
        if not data and end != self.size:
            raise InvalidPayload(f"an empty chunk at byte {end} of {self.size}.")
        if chunk.digest:
            self._take_digest(bytes(chunk.digest), end)
        self._write(data)
        self._hasher.update(data)
        self.committed = end
        if self._write_back is not None and self._file is not None and end - self._flushing >= _WRITE_BACK:
            self._write_back(self._file, self._flushing, end - self._flushing)
            self._flushing = end
        return end

    def finish(self) -> bytes:
        """Verify the whole and flush it to the disk; returns the digest. The file stays at `path`.

        Raises:
            InvalidPayload: bytes are missing (code `INCOMPLETE`; they may still come), or the digest is another
                (code `DIGEST_MISMATCH`; the file is gone, and the transfer begins anew).
            PlatformError: the disk fails.
        """
        if not self.complete:
            of = "of unknown size" if self.size is None else f"of {self.size}"
            raise InvalidPayload(
                f"the transfer ended after {self.committed} bytes {of}.",
                remedy="Ask for the committed offset and go on there.",
                code="INCOMPLETE",
            )
        expected = self.digest or self._stated
        if expected is None:
            raise InvalidPayload("the last chunk carries no digest.")
        found = self._hasher.digest()
        if found != expected:
            self.discard()
            raise InvalidPayload(
                f"the payload's SHA-256 is {found.hex()[:16]}…, but {expected.hex()[:16]}… was declared.",
                remedy="It was altered on the way or on a disk; send it again from the start.",
                code="DIGEST_MISMATCH",
            )
        if self._durable:
            try:
                os.fsync(self._descriptor())
            except OSError as error:
                raise self._failure(error) from error
        self.close()
        return found

    def publish(self, target: Path) -> bytes:
        """Verify the whole, and only then give it its name; returns the digest.

        Raises:
            InvalidPayload, PlatformError: as `finish`.
        """
        digest = self.finish()
        try:
            self.path.replace(target)
            if self._durable:
                sync_folder(target.parent)
        except OSError as error:
            raise self._failure(error) from error
        return digest

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def discard(self) -> None:
        """Forget all that came."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._reset()

    def _reset(self) -> None:
        self.size = self._declared_size
        self.committed = self._flushing = 0
        self._hasher = hashlib.sha256()
        self._stated = None

    def _resume(self) -> None:
        """Take over what lies at `path`, if it can be the beginning of this payload; else begin anew."""
        if not self.path.exists():
            return
        try:
            with self.path.open("rb", buffering=0) as file:
                self._judge(file.read(PREFIX.size + MAX_HEADER_BYTES))
                file.seek(0)
                while block := file.read(_BLOCK):
                    self._hasher.update(block)
                    self.committed += len(block)
            assert self.size is not None
            if self.committed > self.size:
                raise InvalidPayload("more bytes than declared.")
        except InvalidPayload:
            self.discard()
        except OSError as error:
            raise self._failure(error) from error

    def _judge(self, beginning: bytes) -> None:
        header, body = read_header(beginning)
        described = image_size(header, body)
        self._check_size(described)
        if self.size is not None and described != self.size:
            raise InvalidPayload(f"{self.size} bytes were declared, but the header describes {described}.")
        self.size = described

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise InvalidPayload(
                f"the payload has {size} bytes; at most {self._limit} are accepted here.",
                remedy="Send a smaller one, or have the limit raised.",
                code="TOO_LARGE",
            )
        if size < PREFIX.size:
            raise InvalidPayload(f"{size} bytes are too short for a payload.")

    def _check_room(self, needed: int) -> None:
        try:
            place = os.statvfs(self.path.parent)
        except OSError as error:
            raise self._failure(error) from error
        if needed > place.f_bavail * place.f_frsize:
            raise self._full()

    def _take_digest(self, digest: bytes, end: int) -> None:
        if end != self.size:
            raise InvalidPayload(f"the digest came at byte {end} of {self.size}; it belongs to the last chunk.")
        if self.digest is not None and digest != self.digest:
            raise InvalidPayload("the last chunk carries another digest than was declared.")
        self._stated = digest

    def _descriptor(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(self._file).st_size != self.committed:
                self.close()
                self.discard()
                raise PlatformError(
                    f"{self.path.name} was changed by somebody else while it was being received.",
                    remedy="The transfer begins anew.",
                    code="SPOOL_CHANGED",
                )
            os.lseek(self._file, self.committed, os.SEEK_SET)
        return self._file

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            file, view = self._descriptor(), memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        except OSError as error:
            with suppress(OSError):
                if self._file is not None:
                    os.ftruncate(self._file, self.committed)
            self.close()
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> PlatformError:
        if error.errno in _FULL:
            return self._full()
        return PlatformError(
            f"{self.path} cannot be written: {error.strerror or error}.",
            remedy="Check the disk and the permissions of the folder.",
            code="SPOOL_FAILED",
        )

    def _full(self) -> PlatformError:
        return PlatformError(
            f"the disk of {self.path.parent} is full.",
            remedy="Free some space there; the transfer goes on by itself.",
            code="DISK_FULL",
        )


def begin_write_back(descriptor: int, start: int, length: int) -> None:
    """Have the system begin to write a part of a file to the disk, without waiting for it; nothing where it cannot."""
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(descriptor, start, length, _SYNC_FILE_RANGE_WRITE)


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's call of that name, which Python lacks."""
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


_SYNC_FILE_RANGE_WRITE = 2
_SYNC_FILE_RANGE = _sync_file_range()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename outlives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
