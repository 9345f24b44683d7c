"""The coordinator's half of an aggregation: the right replica, and no question that stays without an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hanse.errors import PlatformError
from hanse.v1 import aggregator_pb2
from hanse_coordinator.aggregator_call import AggregateCall
from hanse_coordinator.aggregators import AggregatorPool, _Replica


def test_after_a_start_a_method_goes_to_the_replica_that_hosts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    hosts = {"a:1": "trees", "b:1": "networks"}

    async def ask(_: AggregatorPool, replica: _Replica) -> None:
        replica.plugins = {hosts[replica.address]: aggregator_pb2.PluginDescription(method=hosts[replica.address])}

    async def scenario() -> list[str]:
        pool = AggregatorPool(tuple(hosts), store=nothing, authority_pem=b"", pair=nothing)
        pool._replicas = [_Replica(address, nothing) for address in hosts]
        return [(await pool._host("networks")).address for _ in range(4)]

    monkeypatch.setattr(AggregatorPool, "_ask", ask)
    assert asyncio.run(scenario()) == ["b:1"] * 4


class _Stream:
    """A call whose only response is a part of an artifact."""

    def add_done_callback(self, _: Any) -> None:
        return None

    async def read(self) -> aggregator_pb2.AggregateResponse:
        return aggregator_pb2.AggregateResponse(artifact=aggregator_pb2.ArtifactPart(digest=bytes(32)))

    async def write(self, _: Any) -> None:
        return None

    def cancel(self) -> None:
        return None


def test_an_unexpected_error_while_listening_reaches_who_waits_for_the_outcome() -> None:
    async def scenario() -> None:
        stream, store = _Stream(), SimpleNamespace()  # a store that has nothing that a store needs
        call = AggregateCall(stream, store, "aggregator a:1")  # type: ignore[arg-type]
        await call.begin(aggregator_pb2.OpenAggregation())
        async with asyncio.timeout(5):
            with pytest.raises(PlatformError, match="aggregator a:1 failed: AttributeError"):
                await call.close()

    asyncio.run(scenario())
