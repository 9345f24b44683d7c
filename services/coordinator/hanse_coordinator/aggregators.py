"""The coordinator's half of an aggregation: which aggregators there are, and one call to one of them.

Pure transport: nothing is tried again here. A call that breaks is an `Unreachable` that names the address; the next
call goes to the next replica.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio

from hanse.artifacts import ArtifactStore
from hanse.errors import HanseError, MethodError, Reason, Unreachable
from hanse.logs import logger
from hanse.payload import CHUNK, Spool
from hanse.payload.desk import serve
from hanse.rpc import check_version, error_from_call, from_proto, to_proto, version
from hanse.security import KeyPair, channel_credentials, channel_options, internal_name
from hanse.v1 import aggregator_pb2, aggregator_pb2_grpc, payload_pb2
from hanse.wire import config_to_proto
from hanse_coordinator.messages import source

__all__ = ["AggregateCall", "AggregatorPool"]

LARGEST_MESSAGE = 64 * 1024 * 1024
_MOST_WAITING = 32
_CALL_TIMEOUT_S = 20.0
_DESCRIPTION_AGE_S = 5.0

_T = TypeVar("_T")
Request = aggregator_pb2.AggregateRequest
Stream = grpc.aio.StreamStreamCall[Request, aggregator_pb2.AggregateResponse]


@dataclass
class _Replica:
    """One address, and what it last said of itself."""

    address: str
    channel: grpc.aio.Channel
    plugins: dict[str, aggregator_pb2.PluginDescription] = field(default_factory=dict)

    @property
    def stub(self) -> aggregator_pb2_grpc.AggregatorServiceAsyncStub:
        return aggregator_pb2_grpc.AggregatorServiceStub(self.channel)

    @property
    def peer(self) -> str:
        return f"aggregator {self.address}"


class AggregatorPool:
    """All aggregators of a federation. Belongs to one event loop."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        store: ArtifactStore,
        authority_pem: bytes,
        pair: KeyPair,
        server_name: str = internal_name("aggregator"),
    ) -> None:
        """`pair` is a certificate of `hanse://service/coordinator`; `server_name` what theirs must carry."""
        self._addresses = tuple(addresses)
        self._store = store
        self._authority_pem = authority_pem
        self._pair = pair
        self._server_name = server_name
        self._replicas: list[_Replica] = []
        self._turn = 0
        self._described_at = float("-inf")

    async def describe(self, *, refresh: bool = False) -> dict[str, aggregator_pb2.PluginDescription]:
        """The plug-ins that can be used, by method. The answer is a few seconds old at most.

        Raises:
            Unreachable: no aggregator answers.
            Conflict: one speaks another protocol version, and no other answers.
        """
        if refresh or time.monotonic() - self._described_at > _DESCRIPTION_AGE_S:
            replicas = self._connected()
            answers = await asyncio.gather(*(self._ask(replica) for replica in replicas), return_exceptions=True)
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            for failure in failures:
                logger().warning("aggregator left out", reason=str(failure))
            if len(failures) == len(answers):
                raise failures[0]
            self._described_at = time.monotonic()
        return {name: plugin for replica in reversed(self._replicas) for name, plugin in replica.plugins.items()}

    async def check_configuration(self, method: str, config: Mapping[str, Any]) -> None:
        """Whether a configuration fits a method, by the plug-in's own judgement.

        Raises:
            NotFound: no aggregator has the method.
            OperatorError: a wrong or unknown key; the sentence names it.
            Unreachable: the aggregator does not answer.
        """
        replica = self._next(method)
        request = aggregator_pb2.CheckConfigurationRequest(method=method, config=config_to_proto(config))
        try:
            await replica.stub.CheckConfiguration(request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_from_call(error, peer=replica.peer) from error

    @asynccontextmanager
    async def open(
        self,
        facts: aggregator_pb2.JobFacts,
        phase: aggregator_pb2.PhaseDescription | None,
        state: bytes | None,
    ) -> AsyncIterator[AggregateCall]:
        """A call to the next replica that hosts the job's method; `phase` None begins the job.

        Payloads of `facts` and `phase` that are no artifacts of the store must be inline.

        Raises:
            NotFound: the state is not in the store.
            Unreachable: the aggregator does not answer, or the connection broke.
            MethodError: the plug-in failed.
            HanseError: whatever else the aggregator refuses, as it says it.
        """
        replica = self._next(facts.job.method)
        opening = aggregator_pb2.OpenAggregation(
            facts=facts,
            phase=_bounded(phase) if phase is not None else None,
            state=await asyncio.to_thread(source, self._store, state) if state is not None else None,
            store=self._store.store_id,
        )
        call = AggregateCall(replica.stub.Aggregate(), self._store, replica.peer)
        try:
            await call.begin(opening)
            yield call
        finally:
            await call.abandon()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(replica.channel.close() for replica in self._replicas))
        self._replicas.clear()

    def _connected(self) -> list[_Replica]:
        if not self._replicas:
            credentials = channel_credentials(self._authority_pem, self._pair)
            options: dict[str, str | int] = dict(channel_options(server_name=self._server_name, proxy=False))
            # An aggregator that restarts is found again at once, and facts of many nodes fit into one message.
            options |= {"grpc.max_reconnect_backoff_ms": 1000, "grpc.max_send_message_length": LARGEST_MESSAGE}
            self._replicas = [
                _Replica(address, grpc.aio.secure_channel(address, credentials, list(options.items())))
                for address in self._addresses
            ]
        return self._replicas

    async def _ask(self, replica: _Replica) -> None:
        request = aggregator_pb2.DescribeRequest(version=version("hanse-coordinator"))
        try:
            answer = await replica.stub.Describe(request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_from_call(error, peer=replica.peer) from error
        check_version(answer.version)
        replica.plugins = {plugin.method: plugin for plugin in answer.plugins}

    def _next(self, method: str) -> _Replica:
        """Round robin over the replicas that host the method, or over all while none is known to."""
        replicas = self._connected()
        hosts = [replica for replica in replicas if method in replica.plugins] or replicas
        self._turn += 1
        return hosts[self._turn % len(hosts)]


class AggregateCall:
    """One aggregation in progress."""

    def __init__(self, stream: Stream, store: ArtifactStore, peer: str) -> None:
        self._stream = stream
        self._store = store
        self._peer = peer
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
        return [future for future in (self._outcome, *self._answers.values()) if not future.done()]

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
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await asyncio.wait({self._outcome})  # the reader finds out why
            raise self._failure or Unreachable(f"the call to {self._peer} has ended.", code="CALL_ENDED") from None

    async def _read(self) -> None:
        """Take what the aggregator says until the outcome, or until the call breaks."""
        try:
            while True:
                response = await self._stream.read()
                if not isinstance(response, aggregator_pb2.AggregateResponse):
                    break
                await self._take(response)
            if self._outcome.done():
                return
            await self._raise_status()
        except asyncio.CancelledError:
            self._fail(Unreachable(f"the call to {self._peer} was given up.", code="CALL_ENDED"))
            raise
        except grpc.RpcError as error:
            self._fail(error_from_call(error, peer=self._peer))
        except HanseError as error:
            self._fail(error)
            self._stream.cancel()

    async def _raise_status(self) -> None:
        code, details = await self._stream.code(), await self._stream.details()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code,
                await self._stream.initial_metadata(),
                await self._stream.trailing_metadata(),
                details,
            )
        raise MethodError(f"{self._peer} ended the aggregation without an outcome.", code="NO_OUTCOME")

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


def _bounded(phase: aggregator_pb2.PhaseDescription) -> aggregator_pb2.PhaseDescription:
    """The phase with at most 1 MiB of payloads inside; the others by digest."""
    bounded, room = aggregator_pb2.PhaseDescription(), CHUNK
    bounded.CopyFrom(phase)
    for item in (bounded.instruction, *(bounded.personal[node] for node in sorted(bounded.personal))):
        if item.WhichOneof("source") != "inline":
            continue
        if len(item.inline) <= room:
            room -= len(item.inline)
        else:
            digest, size = hashlib.sha256(item.inline).digest(), len(item.inline)
            item.artifact.CopyFrom(payload_pb2.ArtifactRef(digest=digest, size=size))
    return bounded
