"""Chunks between sockets and disks without blocking the event loop: at most two of them in memory at once.

Reading from the network waits for the disk (back-pressure): while one chunk is written and hashed in a thread, the
next is received, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from typing import TypeVar, cast

from hanse.payload.spool import Spool
from hanse.v1 import payload_pb2

T = TypeVar("T")


async def receive_into(
    spool: Spool, stream: AsyncIterable[payload_pb2.PayloadChunk], on_progress: Callable[[int], None] | None = None
) -> None:
    """Write a stream of chunks; `on_progress` is told how many bytes are committed.

    However this ends, no thread is still writing to the spool afterwards, and what was written counts.

    Raises:
        Conflict, InvalidPayload, PlatformError: as `Spool.append`.
    """
    pending: asyncio.Future[int] | None = None

    async def written() -> None:
        if pending is not None:
            await asyncio.wait({pending})  # unlike awaiting it, being cancelled here leaves the write alone
            committed = pending.result()
            if on_progress is not None:
                on_progress(committed)

    try:
        async for chunk in stream:
            await written()
            pending = asyncio.ensure_future(asyncio.to_thread(spool.append, chunk))
        await written()
    finally:
        if pending is not None and not pending.done():
            await asyncio.wait({pending})


async def in_thread(items: Iterator[T], *, few: bool = False) -> AsyncIterator[T]:
    """Draw the items of an iterator that may block, each in a thread; `few` are so little that none is worth it."""
    if few:
        for item in items:
            yield item
        return
    end = object()
    while (drawn := await asyncio.to_thread(next, items, end)) is not end:
        yield cast("T", drawn)
