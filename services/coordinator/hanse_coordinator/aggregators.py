"""The coordinator's half of an aggregation: which aggregators there are, and one call to one of them.

Pure transport: nothing is tried again here. A call that breaks is an `Unreachable` that names the address; the next
call goes to the next replica.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from hanse.artifacts import ArtifactStore
from hanse.errors import HanseError
from hanse.logs import logger
from hanse.observability import tracing
from hanse.payload import CHUNK
from hanse.rpc import check_version, error_from_call, version
from hanse.security import KeyPair, channel_credentials, channel_options, internal_name
from hanse.v1 import aggregator_pb2, aggregator_pb2_grpc, payload_pb2
from hanse.wire import config_to_proto
from hanse_coordinator.aggregator_call import AggregateCall
from hanse_coordinator.messages import source
from hanse_coordinator.traces import PHASES

__all__ = ["AggregateCall", "AggregatorPool"]

LARGEST_MESSAGE = 64 * 1024 * 1024
_CALL_TIMEOUT_S = 20.0
_DESCRIPTION_AGE_S = 5.0


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
        self._retired: list[grpc.aio.Channel] = []
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
        replica = await self._host(method)
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
        replica = await self._host(facts.job.method)
        opening = aggregator_pb2.OpenAggregation(
            facts=facts,
            phase=_bounded(phase) if phase is not None else None,
            state=await asyncio.to_thread(source, self._store, state) if state is not None else None,
            store=self._store.store_id,
        )
        call = AggregateCall(
            replica.stub.Aggregate(metadata=tracing.metadata(PHASES.parent(facts.job.id))), self._store, replica.peer
        )
        try:
            await call.begin(opening)
            yield call
        finally:
            await call.abandon()

    def show(self, pair: KeyPair) -> None:
        """Show another certificate from the next call on; calls that are under way end on their old connections."""
        self._pair = pair
        self._retired += [replica.channel for replica in self._replicas]
        self._replicas = []

    async def close(self) -> None:
        """Close all connections."""
        channels = [*self._retired, *(replica.channel for replica in self._replicas)]
        await asyncio.gather(*(channel.close() for channel in channels))
        self._replicas.clear()
        self._retired.clear()

    def _connected(self) -> list[_Replica]:
        if not self._replicas:
            credentials = channel_credentials(self._authority_pem, self._pair)
            options: dict[str, str | int] = dict(channel_options(server_name=self._server_name, proxy=False))
            # An aggregator that restarts is found again at once, and facts of many nodes fit into one message.
            options |= {"grpc.max_reconnect_backoff_ms": 1000, "grpc.max_send_message_length": LARGEST_MESSAGE}
            # A name may stand for many (a headless Service): each call goes to the next of its addresses.
            options["grpc.lb_policy_name"] = "round_robin"
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

    async def _host(self, method: str) -> _Replica:
        """The next replica for a method. After a start nobody is known to host it yet: the replicas are asked."""
        if not any(method in replica.plugins for replica in self._connected()):
            with suppress(HanseError):  # the call itself will tell who does not answer
                await self.describe(refresh=True)
        return self._next(method)

    def _next(self, method: str) -> _Replica:
        """Round robin over the replicas that host the method, or over all while none is known to."""
        replicas = self._connected()
        hosts = [replica for replica in replicas if method in replica.plugins] or replicas
        self._turn += 1
        return hosts[self._turn % len(hosts)]


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
