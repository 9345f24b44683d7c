"""One plaintext port: health by gRPC and HTTP, metrics by HTTP, and nothing that a stranger sends keeps it busy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import grpc.aio
import httpx2 as httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Counter

from hanse.errors import OperatorError
from hanse.observability import KnownWords, PlainPort, new_registry
from hanse.rpc import set_serving


@asynccontextmanager
async def listening(registry: CollectorRegistry | None = None) -> AsyncIterator[tuple[PlainPort, int]]:
    port = PlainPort(registry or new_registry("test"))
    number = await port.start("127.0.0.1:0")
    try:
        yield port, number
    finally:
        await port.close()


async def get(number: int, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.request(method, f"http://127.0.0.1:{number}{path}")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_grpc_and_http_tell_the_same_readiness_on_one_port() -> None:
    async def test() -> None:
        async with listening() as (port, number), grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert (await get(number, "/readyz")).status_code == 503
            await set_serving(port.servicer, ["a"], True)
            for service in ("", "a"):
                found = await stub.Check(health_pb2.HealthCheckRequest(service=service))
                assert found.status == health_pb2.HealthCheckResponse.SERVING
            assert (await get(number, "/readyz")).text == "ok\n"
            await set_serving(port.servicer, ["a"], False)
            found = await stub.Check(health_pb2.HealthCheckRequest(service=""))
            assert found.status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert (await get(number, "/readyz")).status_code == 503
            assert (await get(number, "/livez")).status_code == 200  # alive, though not ready

    run(test)


def test_metrics_are_those_of_the_registry_and_of_the_process() -> None:
    async def test() -> None:
        registry = new_registry("hanse-test")
        Counter("hanse_things_total", "Things.", registry=registry).inc(3)
        async with listening(registry) as (_, number):
            found = await get(number, "/metrics?x=1")
            assert "hanse_things_total 3.0" in found.text
            assert 'hanse_build_info{program="hanse-test"' in found.text
            assert "process_resident_memory_bytes" in found.text
            assert found.headers["content-type"].startswith("text/plain; version=0.0.4")

    run(test)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("POST", "/metrics", 405)])
def test_there_is_nothing_else(method: str, path: str, status: int) -> None:
    async def test() -> None:
        async with listening() as (_, number):
            assert (await get(number, path, method)).status_code == status

    run(test)


def test_what_is_no_request_is_dropped_and_the_port_goes_on() -> None:
    async def test() -> None:
        async with listening() as (_, number):
            for sent in (b"", b"\x16\x03\x01\x02", b"GET " + b"a" * 100_000):
                reader, writer = await asyncio.open_connection("127.0.0.1", number)
                writer.write(sent)
                writer.write_eof()
                with suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            assert (await get(number, "/livez")).status_code == 200

    run(test)


def test_a_taken_port_and_a_wrong_address_are_named() -> None:
    async def test() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(OperatorError, match="cannot listen on 127"),
        ):
            await PlainPort(new_registry("test")).start(f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OperatorError, match="not host:port"):
            await PlainPort(new_registry("test")).start("7446")

    run(test)


def test_a_label_takes_a_bounded_number_of_values() -> None:
    words = KnownWords()
    kept = {words(f"CODE_{number}") for number in range(1000)}
    assert len(kept) == 101
    assert words("CODE_7") == "CODE_7"
    assert {words("<b>"), words("x" * 61), words("")} == {"other"}
    assert KnownWords(["a"], closed=True)("b") == "other"
