"""The server's side of transfers: uploads that resume at the byte, and downloads from any byte on."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.artifacts import Artifact, ArtifactStore
from hanse.errors import FencedOut, InvalidPayload
from hanse.payload.chunks import CHUNK, chunks
from hanse.payload.flow import in_thread, receive_into
from hanse.payload.header import DIGEST_BYTES
from hanse.payload.raw_chunks import Packed, packed_chunks
from hanse.payload.spool import NO_LIMIT, Spool
from hanse.v1 import node_pb2, payload_pb2

_ASSIGNMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REMEMBERED = 4096


@dataclass(frozen=True, kw_only=True)
class Received:
    """An upload that is whole, verified and in the artifact store."""

    assignment: str
    fence: int
    digest: bytes
    size: int


@dataclass
class _Upload:
    """One assignment's upload. The lock is held while bytes are taken or the file is looked at."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    writer: asyncio.Future[None] | None = None
    spool: Spool | None = None

    def take_over(self) -> asyncio.Future[None]:
        """Send away whoever writes now; the returned future resolves when the caller is sent away in turn."""
        self.leave()
        self.writer = asyncio.get_running_loop().create_future()
        return self.writer

    def leave(self) -> None:
        """Send away whoever writes now."""
        if self.writer is not None and not self.writer.done():
            self.writer.set_result(None)
        self.writer = None


class UploadDesk:
    """Takes uploads into the artifact store, one per assignment; uploads of different assignments are independent.

    The newest call wins: a node that comes back while its broken connection still lingers is not kept waiting, and the
    older call ends with `FencedOut` (code `SUPERSEDED`). What was committed survives a restart of the program. Who may
    upload for an assignment is for the caller to check.
    """

    def __init__(self, store: ArtifactStore, *, limit: int = NO_LIMIT) -> None:
        """`limit` bounds the bytes of one payload."""
        self._store = store
        self._limit = limit
        self._uploads: dict[str, _Upload] = {}

    async def open(self, request: node_pb2.OpenUploadRequest) -> int:
        """How many bytes of the payload are committed; equal to its size when nothing is left to send.

        Raises:
            InvalidPayload: the request contradicts itself or declares more than the limit.
            PlatformError: the spool folder has no room or cannot be written.
        """
        upload = self._upload(request.assignment)
        upload.leave()
        async with upload.lock:
            return (await asyncio.to_thread(self._spool, upload, request)).committed

    async def receive(self, requests: AsyncIterator[node_pb2.UploadRequest]) -> Received:
        """Take an upload: first what it is, then chunks from the committed byte on. At the end it is in the store.

        Raises:
            Conflict: a chunk does not begin where the committed bytes end (code `OFFSET`).
            InvalidPayload: the bytes are not what was declared, or end too early (code `INCOMPLETE`).
            FencedOut: a newer call for the same assignment took over (code `SUPERSEDED`).
            PlatformError: the disk is full or fails.
        """
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "open":
            raise InvalidPayload("an upload must begin by saying what it is.")
        upload = self._upload(first.open.assignment)
        superseded = upload.take_over()
        async with upload.lock:
            spool = await asyncio.to_thread(self._spool, upload, first.open)
            try:
                await _interruptible(receive_into(spool, _parts(requests)), superseded)
                artifact = await asyncio.to_thread(self._adopted, spool)
            finally:
                spool.close()
        return Received(
            assignment=first.open.assignment, fence=first.open.fence, digest=artifact.digest, size=artifact.size
        )

    def _adopted(self, spool: Spool) -> Artifact:
        return self._store.adopt(spool.path, spool.finish(), keep=True)

    async def settle(self, assignment: str) -> None:
        """The contribution is recorded, or no longer wanted: forget the upload and remove its spool file."""
        _check_assignment(assignment)
        upload = self._uploads.pop(assignment, None) or _Upload()
        upload.leave()
        async with upload.lock:
            await asyncio.to_thread(shutil.rmtree, self._folder(assignment), ignore_errors=True)

    def _upload(self, assignment: str) -> _Upload:
        _check_assignment(assignment)
        upload = self._uploads.pop(assignment, None) or _Upload()
        self._uploads[assignment] = upload  # the newest last
        if len(self._uploads) > _REMEMBERED:
            idle = [name for name, other in self._uploads.items() if not other.lock.locked() and other is not upload]
            for name in idle[: len(self._uploads) - _REMEMBERED]:
                del self._uploads[name]  # its file stays; coming back costs reading it once
        return upload

    def _spool(self, upload: _Upload, request: node_pb2.OpenUploadRequest) -> Spool:
        """The upload's spool; another payload for the same assignment replaces what was there."""
        spool = upload.spool
        if spool is not None and spool.digest == request.digest and spool.size == request.size and spool.intact():
            return spool
        if len(request.digest) != DIGEST_BYTES:
            raise InvalidPayload("an upload must say the SHA-256 of its payload.")
        folder = self._folder(request.assignment)
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{request.digest.hex()}.part"
        for other in folder.iterdir():
            if other != path:
                other.unlink()
        # The store flushes what it adopts; one flush is enough.
        upload.spool = Spool(
            path, size=request.size, digest=request.digest, limit=self._limit, durable=False, flush_soon=True
        )
        return upload.spool

    def _folder(self, assignment: str) -> Path:
        return self._store.spool / f"upload-{assignment}"


def _check_assignment(name: str) -> None:
    if not _ASSIGNMENT.fullmatch(name):
        raise InvalidPayload(f"{name[:100]!r} is no assignment.")


async def serve(store: ArtifactStore, digest: bytes, offset: int = 0) -> AsyncIterator[payload_pb2.PayloadChunk]:
    """Chunks of a stored payload from byte `offset` on. Nothing is hashed: the store knows the digest.

    Raises:
        NotFound: the store has none of this digest.
        InvalidPayload: the offset lies beyond the end.
    """
    payload = await asyncio.to_thread(store.open, digest)
    async for chunk in in_thread(chunks(payload, offset=offset, digest=digest)):
        yield chunk


async def serve_packed(store: ArtifactStore, digest: bytes, offset: int = 0) -> AsyncIterator[Packed]:
    """As `serve`, in messages that are ready to be sent: for servers with `RawChunkHandlers`."""
    image = (await asyncio.to_thread(store.open, digest)).mapped
    assert image is not None  # what comes from a store is mapped
    messages = packed_chunks(image, digest=digest, offset=offset)
    async for message in in_thread(messages, few=len(image) - offset <= CHUNK):
        yield message


async def _interruptible(receiving: Coroutine[Any, Any, None], superseded: asyncio.Future[None]) -> None:
    """Receive until the upload ends or a newer call takes over."""
    task = asyncio.ensure_future(receiving)
    try:
        await asyncio.wait({task, superseded}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        await asyncio.wait({task})  # no thread is writing any more
    if superseded.done():
        task.cancelled() or task.exception()  # whatever it was, it is not this that the caller is told
        raise FencedOut("a newer upload for the same assignment took over.", code="SUPERSEDED")
    task.result()


async def _parts(requests: AsyncIterator[node_pb2.UploadRequest]) -> AsyncIterator[payload_pb2.PayloadChunk]:
    """The chunks of an upload."""
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise InvalidPayload("an upload says only once what it is.")
        yield request.chunk
