"""The event stream of a page: what the ledger appends, as server-sent events whose ids are ledger sequence numbers.

One look at the ledger's head, twice a second and for all pages of a replica together, finds whatever any
coordinator has appended; nothing is kept that a restart could lose.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool

from hanse.errors import HanseError
from hanse.ledger import Event, Ledger

__all__ = ["Feed", "Subscription"]

_LOOK_EVERY_S = 0.5
_IDLE_LOOK_EVERY_S = 2.0
_MOST_EVENTS = 200
MOST_STREAMS = 1000


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """What a page listens to: everything, a job or a node."""

    after: int
    job: str | None = None
    node: str | None = None


class Feed:
    """Follows the ledger's head and tells the pages."""

    def __init__(self, ledger: Ledger, *, heartbeat_s: float) -> None:
        self._ledger = ledger
        self._heartbeat_s = heartbeat_s
        self._moved = asyncio.Condition()
        self._follower: asyncio.Task[None] | None = None
        self.closing = False
        self.head = 0
        self.fault = ""
        self.streams = 0

    async def start(self) -> None:
        """Begin to follow."""
        self._follower = asyncio.create_task(self._follow(), name="ledger-head")

    async def stop(self) -> None:
        """End all streams and stop following."""
        self.close()
        if self._follower:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    def close(self) -> None:
        """Ask all streams to end; a browser then goes on with another replica."""
        self.closing = True

    async def _follow(self) -> None:
        while not self.closing:
            try:
                head = await run_in_threadpool(self._read_head)
                self.fault = ""
            except HanseError as error:
                head, self.fault = self.head, str(error)
            if head != self.head:
                self.head = head
                async with self._moved:
                    self._moved.notify_all()
            await asyncio.sleep(_LOOK_EVERY_S if self.streams else _IDLE_LOOK_EVERY_S)

    def _read_head(self) -> int:
        with self._ledger.read() as view:
            return view.head().sequence

    def _read_events(self, wanted: Subscription, after: int) -> tuple[int, list[Event]]:
        with self._ledger.read() as view:
            head = view.head().sequence
            if wanted.job is None and wanted.node is None:
                return head, []
            return head, view.events(after=after, limit=_MOST_EVENTS, job=wanted.job, node=wanted.node)

    async def stream(
        self, wanted: Subscription, *, status: Callable[[], dict[str, Any]], still_welcome: Callable[[], bool]
    ) -> AsyncIterator[str]:
        """Messages for one page until it goes, its session ends, or we stop.

        Args:
            wanted: what the page listens to, and the last sequence it has seen.
            status: what every message tells beside the sequence; may block.
            still_welcome: whether the page's session is still good; may block.
        """
        self.streams += 1
        try:
            after, beat = wanted.after, 0.0
            yield "retry: 2000\n\n"
            while not self.closing:
                head, events = await run_in_threadpool(self._read_events, wanted, after)
                changed = head > after and (bool(events) or (wanted.job is None and wanted.node is None))
                now = time.monotonic()
                if now - beat >= self._heartbeat_s and not await run_in_threadpool(still_welcome):
                    yield _message("expired", after, {})
                    return
                if changed or now - beat >= self._heartbeat_s:
                    facts = await run_in_threadpool(status)
                    kind = "change" if changed else "beat"
                    kinds = sorted({event.kind for event in events})
                    yield _message(kind, head, {"sequence": head, "kinds": kinds, **facts})
                    beat = now
                after = max(after, head)
                await self._wait(after)
        finally:
            self.streams -= 1

    async def _wait(self, after: int) -> None:
        """Until the head has moved, or for a second (so that a stop or a beat is not missed)."""
        if self.head > after:
            return
        try:
            async with asyncio.timeout(1.0), self._moved:
                await self._moved.wait()
        except TimeoutError:
            return


def _message(kind: str, sequence: int, data: dict[str, Any]) -> str:
    return f"id: {sequence}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
