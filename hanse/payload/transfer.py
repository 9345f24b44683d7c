"""The node's side of transfers: payloads go up and come down whole, whatever the connection does.

A connection that breaks is no event worth a word: the transfer asks where it was and goes on at that byte, for as long
as it takes, with growing and random pauses that begin anew as soon as bytes flow. It ends with the payload
delivered, or with an error that trying again cannot mend.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast

import grpc
import grpc.aio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from hanse.calls import WRITE_FAILED, CallEnd
from hanse.errors import HanseError, Unreachable
from hanse.payload.chunks import CHUNK, map_file
from hanse.payload.flow import in_thread, receive_into
from hanse.payload.raw_chunks import packed_uploads
from hanse.payload.spool import NO_LIMIT, Spool
from hanse.rpc import error_from_call
from hanse.v1 import node_pb2, node_pb2_grpc

OnProgress = Callable[[int, int], None]
"""Told bytes that are done, and bytes in all."""

_CALL_TIMEOUT_S = 60.0
_GO_ON = {"OFFSET", "INCOMPLETE", "SPOOL_CHANGED"}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Pauses between attempts: random, up to `first` at first and doubling to `longest`."""

    first: timedelta = timedelta(milliseconds=200)
    longest: timedelta = timedelta(seconds=30)


async def upload(
    stub: node_pb2_grpc.NodeServiceAsyncStub,
    *,
    assignment: str,
    fence: int,
    path: Path,
    digest: bytes,
    fresh: bool = False,
    on_progress: OnProgress | None = None,
    patience: Patience | None = None,
    peer: str = "the coordinator",
) -> node_pb2.Receipt:
    """Deliver the payload in `path`, whose SHA-256 is `digest`. Delivering it again gives the same receipt.

    `stub` is a `TransferStub`. `fresh`: nothing of it was ever sent, so that the first attempt need not ask from
    which byte to go on.

    Runs until it is delivered: cancel it when the assignment is withdrawn. `peer` names the server in errors.

    Raises:
        HanseError: one that trying again cannot mend: fenced out, forbidden, too large, not what was declared.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    request = node_pb2.OpenUploadRequest(assignment=assignment, fence=fence, digest=digest, size=size)
    journey = _Journey(size, on_progress, patience or Patience(), peer)

    begun = not fresh

    async def attempt() -> node_pb2.Receipt:
        nonlocal begun
        opened = await stub.OpenUpload(request, timeout=_CALL_TIMEOUT_S) if begun else node_pb2.OpenUploadResponse()
        begun = True
        journey.at(opened.committed)
        if opened.complete:
            return node_pb2.Receipt(assignment=assignment, fence=fence, digest=digest)
        call = stub.Upload()
        end = CallEnd(call, peer=peer)
        try:
            await call.write(node_pb2.UploadRequest(open=request))
            messages = packed_uploads(map_file(path), offset=opened.committed, digest=digest)
            async for message in in_thread(messages, few=size - opened.committed <= CHUNK):
                await call.write(cast("node_pb2.UploadRequest", message))
                journey.at(message.end)
            await call.done_writing()
            return await call
        except WRITE_FAILED as error:
            failure = await end.error()
            if failure is None:  # the server had all that it wanted
                return await call
            raise failure from error
        finally:
            call.cancel()

    return await journey.run(attempt)


async def download(
    stub: node_pb2_grpc.NodeServiceAsyncStub,
    *,
    assignment: str,
    digest: bytes,
    into: Path,
    size: int | None = None,
    limit: int = NO_LIMIT,
    on_progress: OnProgress | None = None,
    patience: Patience | None = None,
    peer: str = "the coordinator",
) -> None:
    """Fetch the artifact `digest`, to which `assignment` entitles, into the file `into`.

    The file appears only when it is whole and its SHA-256 is right; until then `into` with `.part` at its end holds
    what came, and a later call (in another process, too) goes on there. A file that exists is taken as fetched.

    Raises:
        HanseError: one that trying again cannot mend: not there, not allowed, larger than `limit`.
    """
    if into.exists():
        return
    part = into.with_name(into.name + ".part")
    journey = _Journey(size or 0, on_progress, patience or Patience(), peer)
    spool = await asyncio.to_thread(Spool, part, size=size, digest=digest, limit=limit, durable=False)

    async def attempt() -> None:
        if not spool.intact():
            await asyncio.to_thread(spool.discard)
        journey.at(spool.committed)
        if not spool.complete:
            call = stub.Download(node_pb2.DownloadRequest(assignment=assignment, digest=digest, offset=spool.committed))
            try:
                await receive_into(spool, call, journey.at)
            finally:
                call.cancel()
        await asyncio.to_thread(spool.publish, into)

    try:
        await journey.run(attempt)
    finally:
        spool.close()


class _Journey:
    """One transfer over many connections: how far it is, and how long to pause before the next attempt."""

    def __init__(self, size: int, on_progress: OnProgress | None, patience: Patience, peer: str) -> None:
        self._size = size
        self._on_progress = on_progress
        self._patience = patience
        self._peer = peer
        self._position = 0
        self._farthest = 0
        self._fruitless = 0
        self._spoiled = False

    def at(self, position: int) -> None:
        """So many bytes are done."""
        self._position = position
        if self._on_progress is not None:
            self._on_progress(position, max(self._size, position))

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until it succeeds, or fails for good."""

        async def translated() -> T:
            try:
                return await attempt()
            except grpc.RpcError as error:
                raise error_from_call(error, peer=self._peer) from error
            except grpc.aio.InternalError as error:
                raise Unreachable(f"the connection to {self._peer} broke ({error}).") from error

        retrying = AsyncRetrying(retry=retry_if_exception(self._goes_on), wait=self._pause, reraise=True)
        return await retrying(translated)

    def _goes_on(self, error: BaseException) -> bool:
        if not isinstance(error, HanseError):
            return False
        if error.code == "DIGEST_MISMATCH":
            # Bytes were spoiled on the way or on the other disk: begin anew, once. Twice is a spoiled source.
            first, self._spoiled = not self._spoiled, True
            return first
        return error.retryable or error.code in _GO_ON

    def _pause(self, _: RetryCallState) -> float:
        self._fruitless = 0 if self._position > self._farthest else self._fruitless + 1
        self._farthest = max(self._farthest, self._position)
        longest = self._patience.longest.total_seconds()
        return random.uniform(0, min(longest, self._patience.first.total_seconds() * 2 ** min(self._fruitless, 20)))  # noqa: S311
