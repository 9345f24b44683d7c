"""A live connection to the coordinator, as the rest of the agent sees it; and the one that is current.

Connections come and go: a cable is pulled, a coordinator restarts, a certificate is renewed. Work does not: whoever
needs the coordinator waits for a link, does one thing over it, and does it again over the next one if it broke.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import grpc.aio

from hanse.errors import Forbidden, HanseError, Unauthenticated
from hanse.security import Address
from hanse.v1 import node_pb2, node_pb2_grpc
from hanse_agent import metrics

T = TypeVar("T")


class LinkGone(Exception):
    """The connection ended in the middle; do it again over the next one."""


class Link:
    """One channel with an open session on it."""

    def __init__(
        self, channel: grpc.aio.Channel, stub: node_pb2_grpc.NodeServiceAsyncStub, address: Address, lease_s: float
    ) -> None:
        self.channel = channel
        self.stub = stub
        self.address = address
        self.lease_s = lease_s
        self.heard_at = time.time()
        """When the coordinator answered last (Unix time)."""
        self.outgoing: asyncio.Queue[node_pb2.NodeEvent] = asyncio.Queue()
        self.gone = asyncio.Event()
        """Set when nothing can be done over this link any more."""
        self.retired = asyncio.Event()
        """Set when another link has taken over: what is under way may end here, nothing new begins."""
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @property
    def peer(self) -> str:
        """What people know the server by."""
        return f"the coordinator at {self.address}"

    def send(self, **event: Any) -> None:
        """Queue an event for the session: `send(progress=…)`. It is lost when the link goes."""
        self.outgoing.put_nowait(node_pb2.NodeEvent(**event))

    async def during(self, work: Awaitable[T]) -> T:
        """Do something that needs this link.

        Raises:
            LinkGone: the link went first; the work was cancelled.
        """
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self.gone.wait())
        self._users += 1
        self._unused.clear()
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise LinkGone
            return task.result()
        finally:
            for future in (task, gone):
                future.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def drained(self) -> None:
        """Wait until nobody uses the link."""
        await self._unused.wait()


class Links:
    """The current link, and waiting for one."""

    def __init__(self) -> None:
        self.current: Link | None = None
        self._arrived = asyncio.Event()

    def set(self, link: Link) -> None:
        """A session is open: from now on everything new goes over its link."""
        self.current = link
        metrics.connected(self, link)
        self._arrived.set()

    def lost(self, link: Link) -> None:
        """A session has ended."""
        link.gone.set()
        if self.current is link:
            self.current = None
            metrics.disconnected(self)
            self._arrived.clear()

    async def get(self) -> Link:
        """The current link; waits until there is one."""
        while self.current is None:
            await self._arrived.wait()
        return self.current

    async def over(self, work: Callable[[Link], Awaitable[T]]) -> T:
        """Do something over the current link, and again over the next one, until it succeeds or fails for good.

        Raises:
            HanseError: what `work` raised over a link that was still good.
        """
        while True:
            link = await self.get()
            try:
                return await link.during(work(link))
            except LinkGone:
                continue
            except HanseError as error:
                # A certificate that is judged on every call fails the call before the session knows it.
                if not isinstance(error, Unauthenticated | Forbidden) and link is self.current:
                    raise
                if link is self.current and not link.gone.is_set():
                    await self._until_replaced(link)

    async def _until_replaced(self, link: Link) -> None:
        while self.current is link and not link.gone.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await link.gone.wait()
