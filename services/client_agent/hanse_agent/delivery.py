"""The way out: the journal first, then the bytes, over whatever connection there is, until the receipt comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from hanse.logs import logger
from hanse.payload.transfer import upload
from hanse.v1 import node_pb2
from hanse_agent import metrics
from hanse_agent.egress import EgressJournal, Shipment
from hanse_agent.link import Link, LinkGone, Links
from hanse_agent.spooled import Spooled, Task

_SHORTEST_PATIENCE_S = 5.0


class Outgoing(Protocol):
    """A contribution on its way out, as the workbench keeps it."""

    fence: int
    """The fencing number, as last heard; it may change while the contribution waits for a connection."""
    tried_fence: int
    """The number under which it was sent last."""
    confirmed: asyncio.Event
    """Set when the receipt has come."""
    spoken_of: asyncio.Event
    """Set when the coordinator has mentioned the assignment to this process: until then the number may be one of
    an earlier process, and a moment is given to the coordinator to name the new one."""
    renumbered: asyncio.Event
    """Set when the fencing number has changed: what was sent under the old one does not count."""
    inline_limit: int
    """Bytes that it may have at most to go inside the session."""
    earlier: bool
    """It may have been sent before, by this process or another."""


class Delivery:
    """Sends contributions of one node."""

    def __init__(
        self, *, node: str, links: Links, journal: EgressJournal, on_progress: Callable[[Task, int, float], None]
    ) -> None:
        self._node = node
        self._links = links
        self._journal = journal
        self._on_progress = on_progress
        self._log = logger(node=node)

    async def deliver(self, spooled: Spooled, out: Outgoing) -> None:
        """Send a contribution until it is confirmed by a receipt in the session, or by that of an upload.

        Raises:
            FencedOut: the fencing number is an old one.
            HanseError: the coordinator will not take it, with its reason.
        """

        async def over(link: Link) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_patience(link)):
                    await _any(out.spoken_of, out.confirmed)
            if out.confirmed.is_set():
                return
            if spooled.size <= out.inline_limit:
                await self._inline(link, spooled, out)
            else:
                await self._upload(link, spooled, out)

        try:
            await self._links.over(over)
        finally:
            self._journal.settled(spooled.task.assignment, spooled.digest)

    async def _record(self, spooled: Spooled, earlier: bool) -> None:
        task = spooled.task
        shipment = Shipment(
            node=self._node,
            job=task.job,
            job_name=task.job_name,
            phase=task.phase,
            round=task.round,
            purpose=task.purpose,
            assignment=task.assignment,
            kind=spooled.kind,
            arrays=spooled.arrays,
            size=spooled.size,
            digest=spooled.digest,
        )
        event = await asyncio.to_thread(self._journal.record, shipment, earlier=earlier)
        metrics.left(event, spooled.size)
        self._log.info(
            "contribution leaves" if event == "left" else "contribution is sent again",
            job=task.job,
            round=task.round,
            phase=task.phase,
            assignment=task.assignment,
            bytes=spooled.size,
        )

    async def _inline(self, link: Link, spooled: Spooled, out: Outgoing) -> None:
        """Send it inside the session; again if no receipt comes within a lease."""
        image = spooled.image.read_bytes()
        while not out.confirmed.is_set():
            await self._record(spooled, out.earlier)
            out.renumbered.clear()
            out.tried_fence = out.fence
            link.send(
                contribution=node_pb2.InlineContribution(
                    assignment=spooled.task.assignment, fence=out.fence, image=image
                )
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(_patience(link)):
                    await _any(out.confirmed, out.renumbered, link.retired)
            if link.retired.is_set() and not out.confirmed.is_set():
                raise LinkGone

    async def _upload(self, link: Link, spooled: Spooled, out: Outgoing) -> None:
        fresh = not out.earlier and out.tried_fence == 0
        await self._record(spooled, out.earlier)
        fence = out.tried_fence = out.fence
        sending = asyncio.ensure_future(
            upload(
                link.stub,
                assignment=spooled.task.assignment,
                fence=fence,
                path=spooled.image,
                digest=bytes.fromhex(spooled.digest),
                fresh=fresh,
                on_progress=lambda done, of: self._on_progress(spooled.task, fence, done / max(of, 1)),
                peer=link.peer,
            )
        )
        waiting = asyncio.ensure_future(out.confirmed.wait())
        try:
            await asyncio.wait({sending, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            waiting.cancel()
            await asyncio.gather(sending, waiting, return_exceptions=True)


def _patience(link: Link) -> float:
    return max(link.lease_s, _SHORTEST_PATIENCE_S)


async def _any(*events: asyncio.Event) -> None:
    """Wait for the first of these."""
    tasks = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
