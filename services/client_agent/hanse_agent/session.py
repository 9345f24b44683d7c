"""One session with the coordinator: hello, heartbeats, directives in, events out, until it ends.

A session knows nothing of work: directives go to a handler, and events come from the link's queue. It ends when the
stream does, when the coordinator stops answering heartbeats, or when it is told to leave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc.aio

from hanse.calls import WRITE_FAILED, CallEnd
from hanse.errors import HanseError, PlatformError, Unreachable
from hanse.logs import logger
from hanse.rpc import check_version
from hanse.security import Address
from hanse.v1 import node_pb2, payload_pb2
from hanse_agent.identity import NodeIdentity, open_channel
from hanse_agent.link import Link

WELCOME_S = 20.0
GOODBYE_S = 5.0
MISSED_HEARTBEATS = 2
CLOCK_TOLERANCE_S = 5.0

Handler = Callable[[node_pb2.Directive], None]
OnHead = Callable[[payload_pb2.LedgerHead], None]


class Session:
    """One attempt to be connected. `run` once; `on_open` is called before the first directive is handled."""

    def __init__(
        self,
        identity: NodeIdentity,
        address: Address,
        *,
        on_open: Callable[[Session], None],
        handler: Handler,
        on_head: OnHead,
    ) -> None:
        self.identity = identity
        self.address = address
        self.clock_skew_s = 0.0
        """How far the coordinator's clock is ahead of ours."""
        self.welcomed = asyncio.Event()
        self._on_open = on_open
        self._handler = handler
        self._on_head = on_head
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()
        self._acknowledged = 0
        channel, stub = open_channel(
            address, authority_pem=identity.authority_pem, pair=identity.pair, server_name=identity.server_name
        )
        self.link = Link(channel, stub, address, lease_s=0.0)
        self._log = logger(node=identity.node, coordinator=str(address))

    async def run(self, hello: node_pb2.Hello) -> None:
        """Be connected; returns after `leave`, or when the coordinator asked us to come back later.

        Raises:
            HanseError: the connection did not come about or broke, or the coordinator sent us away, with its reason.
        """
        call: Any = self.link.stub.Session()
        end = CallEnd(call, peer=self.link.peer)
        try:
            welcome = await self._introduce(call, end, hello)
            self._take_welcome(welcome)
            self.welcomed.set()
            self._on_open(self)
            await self._converse(call, end, welcome.heartbeat_s)
        except WRITE_FAILED as error:
            raise await self._ending(end) from error
        finally:
            self._ended.set()
            call.cancel()
            if self.link.retired.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.link.lease_s):
                        await self.link.drained()
            self.link.gone.set()
            await self.link.channel.close()

    def leave(self) -> None:
        """End the session in good order once what is queued has been written."""
        self._leaving.set()

    async def _introduce(self, call: Any, end: CallEnd, hello: node_pb2.Hello) -> node_pb2.Welcome:
        async def introduced() -> node_pb2.Directive | Any:
            await call.write(node_pb2.NodeEvent(hello=hello))
            return await call.read()

        try:
            async with asyncio.timeout(WELCOME_S):
                first = await introduced()
        except TimeoutError:
            raise Unreachable(
                f"{self.link.peer} did not answer the greeting within {WELCOME_S:g} s.",
                remedy="If something between ends long streams, let it pass gRPC through.",
            ) from None
        if first is grpc.aio.EOF:
            raise await self._ending(end)
        if not first.HasField("welcome"):
            raise PlatformError(f"{self.link.peer} did not begin with a welcome.", code="PROTOCOL")
        check_version(first.welcome.version)
        welcome: node_pb2.Welcome = first.welcome
        return welcome

    def _take_welcome(self, welcome: node_pb2.Welcome) -> None:
        self.link.lease_s = welcome.lease_s
        self._on_head(welcome.head)
        self.clock_skew_s = welcome.unix_time - time.time()
        if abs(self.clock_skew_s) > CLOCK_TOLERANCE_S:
            self._log.warning(
                "clocks differ",
                sentence=f"this machine's clock is {abs(self.clock_skew_s):.0f} s "
                f"{'behind' if self.clock_skew_s > 0 else 'ahead of'} the coordinator's.",
                remedy="Set it by NTP: certificates depend on it.",
            )

    async def _converse(self, call: Any, end: CallEnd, heartbeat_s: float) -> None:
        tasks = {
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._read(call, end)),
            asyncio.create_task(self._beat(heartbeat_s)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, call: Any) -> None:
        """Write what is queued; after `leave`, what is left, and then the end of the stream."""
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            while True:
                taking = asyncio.create_task(self.link.outgoing.get())
                try:
                    await asyncio.wait({taking, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not taking.done():
                        break
                    await call.write(taking.result())
                finally:
                    taking.cancel()
        finally:
            leaving.cancel()
        await call.done_writing()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._ended.wait()

    async def _read(self, call: Any, end: CallEnd) -> None:
        while (directive := await call.read()) is not grpc.aio.EOF:
            which = directive.WhichOneof("directive")
            if which == "heartbeat":
                self._acknowledged = max(self._acknowledged, directive.heartbeat.sequence)
                self.link.heard_at = time.time()
                self._on_head(directive.heartbeat.head)
            elif which is not None:
                self._handler(directive)
        self._ended.set()
        if not self._leaving.is_set():
            raise await self._ending(end)

    async def _beat(self, every: float) -> None:
        sequence = 0
        while True:
            if sequence - self._acknowledged >= MISSED_HEARTBEATS:
                raise Unreachable(
                    f"{self.link.peer} has not answered {MISSED_HEARTBEATS} heartbeats in {sequence * every:g} s.",
                    remedy="The connection is built anew.",
                    code="HEARTBEATS_MISSED",
                )
            sequence += 1
            self.link.send(heartbeat=node_pb2.Heartbeat(sequence=sequence))
            await asyncio.sleep(every)

    async def _ending(self, end: CallEnd) -> HanseError:
        """Why the coordinator ended the stream."""
        return await end.error() or Unreachable(
            f"{self.link.peer} ended the session.", remedy="The agent connects again by itself."
        )
