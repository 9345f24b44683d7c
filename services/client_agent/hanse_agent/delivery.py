"""The way out: the journal first, then the bytes, over whatever connection there is, until the receipt comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hanse.logs import logger
from hanse.payload.transfer import upload
from hanse.rpc import INLINE_LIMIT
from hanse.v1 import node_pb2
from hanse_agent.egress import EgressJournal, Shipment
from hanse_agent.jobs import Spooled
from hanse_agent.link import Link, LinkGone, Links

_PATIENCE_S = 5.0


class Delivery:
    """Sends contributions of one node."""

    def __init__(
        self, *, node: str, links: Links, journal: EgressJournal, on_progress: Callable[[Spooled, float], None]
    ) -> None:
        self._node = node
        self._links = links
        self._journal = journal
        self._on_progress = on_progress
        self._log = logger(node=node)

    async def deliver(
        self, spooled: Spooled, *, confirmed: asyncio.Event, spoken_of: asyncio.Event, earlier: bool
    ) -> None:
        """Send a contribution until `confirmed` is set, or an upload's receipt has come.

        `earlier`: it may have been sent before. Until the coordinator has `spoken_of` the assignment, its fencing
        number may be one of an earlier process: a moment is given to it to name the new one.

        Raises:
            FencedOut: the fencing number is an old one.
            HanseError: the coordinator will not take it, with its reason.
        """

        async def over(link: Link) -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(_either(spoken_of, confirmed), max(link.lease_s, _PATIENCE_S))
            if confirmed.is_set():
                return
            if spooled.size <= INLINE_LIMIT:
                await self._inline(link, spooled, confirmed, earlier)
            else:
                await self._upload(link, spooled, confirmed, earlier)

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
        self._log.info(
            "contribution leaves" if event == "left" else "contribution is sent again",
            job=task.job,
            round=task.round,
            phase=task.phase,
            assignment=task.assignment,
            bytes=spooled.size,
        )

    async def _inline(self, link: Link, spooled: Spooled, confirmed: asyncio.Event, earlier: bool) -> None:
        """Send it inside the session; again if no receipt comes within a lease."""
        image = spooled.image.read_bytes()
        while not confirmed.is_set():
            await self._record(spooled, earlier)
            link.send(
                contribution=node_pb2.InlineContribution(
                    assignment=spooled.task.assignment, fence=spooled.task.fence, image=image
                )
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(_either(confirmed, link.retired), max(link.lease_s, _PATIENCE_S))
            if link.retired.is_set() and not confirmed.is_set():
                raise LinkGone

    async def _upload(self, link: Link, spooled: Spooled, confirmed: asyncio.Event, earlier: bool) -> None:
        def progressed(done: int, of: int) -> None:
            self._on_progress(spooled, done / max(of, 1))

        await self._record(spooled, earlier)
        sending = asyncio.ensure_future(
            upload(
                link.stub,
                assignment=spooled.task.assignment,
                fence=spooled.task.fence,
                path=spooled.image,
                digest=bytes.fromhex(spooled.digest),
                on_progress=progressed,
                peer=link.peer,
            )
        )
        waiting = asyncio.ensure_future(confirmed.wait())
        try:
            await asyncio.wait({sending, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            waiting.cancel()
            await asyncio.gather(sending, waiting, return_exceptions=True)


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    tasks = {asyncio.ensure_future(first.wait()), asyncio.ensure_future(second.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
