"""Where one call finds the artifacts it needs, and where it leaves what it made.

A caller whose store is reached from here names digests and nothing else travels. From any other, missing artifacts are
asked for (`need`) and arrive as parts between the other requests; what was made is streamed back before the outcome.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError
from pathlib import Path

from hanse.artifacts import ArtifactStore
from hanse.errors import InvalidPayload, NotFound, PlatformError
from hanse.payload import Payload, Spool, chunks
from hanse.payload.flow import in_thread, receive_into
from hanse.rpc import from_proto
from hanse.v1 import aggregator_pb2, payload_pb2
from hanse_aggregator.cache import PayloadCache
from hanse_aggregator.metrics import AggregatorMetrics

Send = Callable[[aggregator_pb2.AggregateResponse], Awaitable[None]]
_WAITING_PARTS = 2


class CallArtifacts:
    """The artifacts of one call. `fetch` and `keep` are for the plug-in's thread, the rest for the event loop."""

    def __init__(
        self,
        *,
        store: ArtifactStore | None,
        cache: PayloadCache,
        scratch: Path,
        send: Send,
        metrics: AggregatorMetrics,
    ) -> None:
        """`store` is the caller's own, if it is reached from here."""
        self._store = store
        self._cache = cache
        self._scratch = scratch
        self._send = send
        self._metrics = metrics
        self._wanted: dict[bytes, asyncio.Task[Payload]] = {}
        self._parts: dict[bytes, asyncio.Queue[aggregator_pb2.ArtifactPart]] = {}
        self._caller_has: set[bytes] = set()
        self._made: dict[bytes, Payload] = {}
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def fetch(self, digest: bytes, *, again: bool = True) -> Payload:
        """An artifact, wherever it is. Blocks. `again` says that later calls may want it, too.

        Raises:
            NotFound: neither side has it.
            InvalidPayload: what came is not what the digest names.
            PlatformError: the call ended in the meantime.
        """
        payload = self._stored(digest)
        if payload is None:
            try:
                payload = asyncio.run_coroutine_threadsafe(self._obtain(digest, again), self._loop).result()
            except CancelledError:
                raise PlatformError("the call ended while an artifact was on its way.", code="CALL_ENDED") from None
        self._caller_has.add(digest)
        return payload

    def _stored(self, digest: bytes) -> Payload | None:
        """From the shared store, if there is one and it holds the artifact."""
        if self._store is None:
            return None
        try:
            return self._store.open(digest)
        except NotFound:
            return None

    async def _obtain(self, digest: bytes, again: bool) -> Payload:
        if self._closed:
            raise asyncio.CancelledError
        cached = self._cache.get(digest)
        self._metrics.looked_up(hit=cached is not None)
        if cached is not None:
            return cached
        if digest not in self._wanted:
            self._wanted[digest] = asyncio.create_task(self._ask(digest), name="need artifact")
        payload = await asyncio.shield(self._wanted[digest])
        if again:
            self._cache.put(payload)
        return payload

    async def take(self, part: aggregator_pb2.ArtifactPart) -> None:
        """A part of an artifact that was asked for. Waits while the disk is behind.

        Raises:
            InvalidPayload: nobody asked for it.
        """
        if part.digest not in self._parts:
            raise InvalidPayload(f"artifact {part.digest.hex()[:16]}… was sent, but not asked for.")
        self._metrics.streamed("received", len(part.chunk.data))
        await self._parts[part.digest].put(part)

    def keep(self, payload: Payload) -> payload_pb2.ArtifactRef:
        """Place what the plug-in made: in the shared store, or among what is streamed back."""
        if self._store is not None and not payload.digest_known:
            self._store.put(payload)  # writing it tells its digest: one pass instead of two
        reference = payload_pb2.ArtifactRef(digest=payload.digest, size=payload.size)
        if reference.digest not in self._caller_has:
            if self._store is not None:
                self._store.put(payload)
            else:
                self._made[reference.digest] = payload
        return reference

    async def deliver(self, again: set[bytes]) -> None:
        """Stream back what was kept; the digests in `again` are remembered for later calls."""
        for digest, payload in self._made.items():
            async for chunk in in_thread(chunks(payload, digest=digest)):
                part = aggregator_pb2.ArtifactPart(digest=digest, chunk=chunk)
                self._metrics.streamed("sent", len(chunk.data))
                await self._send(aggregator_pb2.AggregateResponse(artifact=part))
            if digest in again:
                self._cache.put(payload)

    async def close(self) -> None:
        """The call is over: whoever waits for an artifact waits no longer."""
        self._closed = True
        for task in self._wanted.values():
            task.cancel()
        await asyncio.gather(*self._wanted.values(), return_exceptions=True)

    async def _ask(self, digest: bytes) -> Payload:
        self._parts[digest] = asyncio.Queue(_WAITING_PARTS)
        path = self._scratch / f"need-{digest.hex()[:16]}-{secrets.token_hex(8)}"
        spool = await asyncio.to_thread(Spool, path, digest=digest, durable=False)
        try:
            await self._send(aggregator_pb2.AggregateResponse(need=aggregator_pb2.NeedArtifact(digest=digest)))
            await receive_into(spool, self._incoming(digest))
            await asyncio.to_thread(spool.finish)
            return await asyncio.to_thread(Payload.open, path, digest=digest)
        finally:
            del self._parts[digest]
            spool.discard()  # the mapping keeps the bytes as long as they are used

    async def _incoming(self, digest: bytes) -> AsyncIterator[payload_pb2.PayloadChunk]:
        while True:
            part = await self._parts[digest].get()
            if part.HasField("missing"):
                reason = from_proto(part.missing)
                raise NotFound(reason.sentence, remedy=reason.remedy, code=reason.code)
            yield part.chunk
            if part.chunk.digest:
                return
