"""The coordinator's half of an aggregation: the right replica, and no question that stays without an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from hanse.errors import PlatformError
from hanse.rpc import version
from hanse.security import Authority, Identity, ServerCertificate, peer_identity
from hanse.v1 import aggregator_pb2, aggregator_pb2_grpc
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


class _Counting(aggregator_pb2_grpc.AggregatorServiceServicer):
    """Remembers whose certificate each call came with."""

    def __init__(self) -> None:
        self.serials: list[int] = []

    async def Describe(  # type: ignore[override]
        self, request: aggregator_pb2.DescribeRequest, context: Any
    ) -> aggregator_pb2.DescribeResponse:
        self.serials.append(int(peer_identity(context.auth_context()).serial, 16))
        plugin = aggregator_pb2.PluginDescription(method="trees")
        return aggregator_pb2.DescribeResponse(version=version("aggregator"), plugins=[plugin])


def test_one_name_of_many_replicas_is_asked_in_turn_and_a_renewed_certificate_is_shown(tmp_path: Path) -> None:
    """As a headless Service: one name, two addresses."""
    authority = Authority.create(tmp_path)
    first, second = (authority.issue(Identity.service("coordinator")) for _ in range(2))
    served = ServerCertificate(authority.issue(Identity.service("aggregator")))
    nothing: Any = None

    async def scenario() -> list[_Counting]:
        services, ports, servers = [_Counting(), _Counting()], [], []
        for service in services:
            server = grpc.aio.server()
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(service, server)
            ports.append(server.add_secure_port("127.0.0.1:0", served.mutual_credentials(authority.certificate_pem)))
            await server.start()
            servers.append(server)
        name = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        pool = AggregatorPool((name,), store=nothing, authority_pem=authority.certificate_pem, pair=first)
        async with asyncio.timeout(60):
            while not all(service.serials for service in services):
                await pool.describe(refresh=True)
            pool.show(second)
            while not all(second.certificate.serial_number in service.serials for service in services):
                await pool.describe(refresh=True)
        await pool.close()
        await asyncio.gather(*(server.stop(None) for server in servers))
        return services

    for service in asyncio.run(scenario()):
        assert set(service.serials) == {first.certificate.serial_number, second.certificate.serial_number}
