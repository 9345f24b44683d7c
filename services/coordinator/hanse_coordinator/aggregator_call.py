"""One aggregation in progress at an aggregator: contributions go there, its outcome comes back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio

from hanse.artifacts import ArtifactStore
from hanse.calls import WRITE_FAILED, CallEnd
from hanse.errors import HanseError, MethodError, PlatformError, Reason, Unreachable
from hanse.logs import logger
from hanse.payload import Spool
from hanse.payload.desk import serve
from hanse.rpc import from_proto, to_proto
from hanse.v1 import aggregator_pb2
from hanse_coordinator.messages import source

__all__ = ["AggregateCall"]

_MOST_WAITING = 32
_T = TypeVar("_T")

Request = aggregator_pb2.AggregateRequest
Stream = grpc.aio.StreamStreamCall[Request, aggregator_pb2.AggregateResponse]


class AggregateCall:
    """One aggregation in progress."""

    def __init__(self, stream: Stream, store: ArtifactStore, peer: str) -> None:
        self._stream = stream
        self._store = store
        self._peer = peer
        self._end = CallEnd(stream, peer=peer)
        self._writing = asyncio.Lock()
        self._places = asyncio.Semaphore(_MOST_WAITING)
        self._answers: dict[str, asyncio.Future[Reason | None]] = {}
        self._outcome: asyncio.Future[aggregator_pb2.OutcomeMessage] = asyncio.get_running_loop().create_future()
        self._spools: dict[bytes, Spool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: HanseError | None = None

    async def begin(self, opening: aggregator_pb2.OpenAggregation) -> None:
        """Say what is to be aggregated. For `AggregatorPool.open`."""
        self._spawn(self._read())
        await self._write(Request(open=opening))

    async def add(self, assignment: str, node: str, digest: bytes, *, unseen: bool = False) -> Reason | None:
        """Hand over a contribution that is in the store; returns why it was rejected, or None.

        May be called again before the answer; then the order in which contributions are taken is not said.

        Raises:
            NotFound: the contribution is not in the store.
            Unreachable: the connection broke.
            MethodError: the plug-in failed.
        """
        async with self._places:
            payload = await asyncio.to_thread(source, self._store, digest)
            answer = self._answers[assignment] = asyncio.get_running_loop().create_future()
            contribution = aggregator_pb2.AddContribution(
                assignment=assignment, node=node, payload=payload, unseen=unseen
            )
            await self._write(Request(add=contribution))
            return await self._settled(answer)

    async def close(self) -> aggregator_pb2.OutcomeMessage:
        """No more contributions: the outcome. Its artifacts are in the store; small payloads are inside it.

        Raises:
            Unreachable: the connection broke.
            MethodError: the plug-in failed.
        """
        await self._write(Request(close=aggregator_pb2.CloseAggregation()))
        return await self._settled(self._outcome)

    async def abandon(self) -> None:
        """End the call, whatever its state; after an outcome this changes nothing."""
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for spool in self._spools.values():
            spool.discard()
        for future in self._open_questions():
            future.cancel()

    def _open_questions(self) -> list[asyncio.Future[Any]]:
        asked: list[asyncio.Future[Any]] = [self._outcome, *self._answers.values()]
        return [future for future in asked if not future.done()]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="aggregate")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settled(self, future: asyncio.Future[_T]) -> _T:
        if self._failure is not None and not future.done():
            raise self._failure
        return await future

    async def _write(self, request: Request) -> None:
        try:
            async with self._writing:
                await self._stream.write(request)
        except WRITE_FAILED:
            await asyncio.wait({self._outcome})  # the reader finds out why
            raise self._failure or Unreachable(f"the call to {self._peer} has ended.", code="CALL_ENDED") from None

    async def _read(self) -> None:
        """Take what the aggregator says until the outcome, or until the call breaks."""
        try:
            with suppress(grpc.RpcError):
                while isinstance(response := await self._stream.read(), aggregator_pb2.AggregateResponse):
                    await self._take(response)
            if not self._outcome.done():
                silent = MethodError(f"{self._peer} ended the aggregation without an outcome.", code="NO_OUTCOME")
                self._fail(await self._end.error() or silent)
        except asyncio.CancelledError:
            self._fail(Unreachable(f"the call to {self._peer} was given up.", code="CALL_ENDED"))
            raise
        except HanseError as error:
            self._fail(error)
            self._stream.cancel()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer would wait for ever
            logger().exception("aggregator call failed", peer=self._peer, error=repr(error))
            self._fail(PlatformError(f"the call to {self._peer} failed: {type(error).__name__}: {error}"))
            self._stream.cancel()

    def _fail(self, error: HanseError) -> None:
        self._failure = error
        for future in self._open_questions():
            future.set_exception(error)
            future.exception()  # it may be that nobody waits

    async def _take(self, response: aggregator_pb2.AggregateResponse) -> None:
        match response.WhichOneof("response"):
            case "need":
                self._spawn(self._deliver(response.need.digest))
            case "accepted":
                self._answer(response.accepted.assignment, None)
            case "rejected":
                self._answer(response.rejected.assignment, from_proto(response.rejected.reason))
            case "artifact":
                await self._receive(response.artifact)
            case "outcome":
                if not self._outcome.done():
                    self._outcome.set_result(response.outcome)

    def _answer(self, assignment: str, reason: Reason | None) -> None:
        answer = self._answers.pop(assignment, None)
        if answer is None:
            raise MethodError(f"{self._peer} answered for assignment '{assignment}', which it was not given.")
        if not answer.done():
            answer.set_result(reason)

    async def _deliver(self, digest: bytes) -> None:
        """Send an artifact that the aggregator lacks, or say that it cannot be had."""
        try:
            async for chunk in serve(self._store, digest):
                await self._write(Request(artifact=aggregator_pb2.ArtifactPart(digest=digest, chunk=chunk)))
        except HanseError as error:
            missing = aggregator_pb2.ArtifactPart(digest=digest, missing=to_proto(error.reason))
            with suppress(HanseError):  # the call itself may be what broke; whoever uses it is told
                await self._write(Request(artifact=missing))

    async def _receive(self, part: aggregator_pb2.ArtifactPart) -> None:
        """Take a part of what the plug-in made; the last one brings the artifact into the store."""
        spool = self._spools.get(part.digest)
        if spool is None:
            path = self._store.spool / f"outcome-{part.digest.hex()[:16]}-{secrets.token_hex(8)}"
            spool = await asyncio.to_thread(Spool, path, digest=part.digest, durable=False)
            self._spools[part.digest] = spool
        await asyncio.to_thread(spool.append, part.chunk)
        if part.chunk.digest:
            digest = await asyncio.to_thread(spool.finish)
            await asyncio.to_thread(self._store.adopt, spool.path, digest)
            del self._spools[part.digest]
