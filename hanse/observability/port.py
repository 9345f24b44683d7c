"""The plaintext port of a program: nothing but health, readiness and metrics, and no certificate to keep.

A kubelet asks by gRPC (`grpc.health.v1`) or HTTP (`/livez`, `/readyz`), Prometheus by HTTP (`/metrics`). All come to
one port: gRPC's connections begin with HTTP/2's fixed preface, and are passed on to a gRPC server that listens on a
socket of this machine alone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import suppress
from http import HTTPStatus

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from hanse.errors import OperatorError
from hanse.security import server_options

__all__ = ["PlainPort"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
_PATIENCE_S = 10.0
_LONGEST_HEAD = 16 * 1024
_MOST_CONNECTIONS = 100
_TEXT = "text/plain; charset=utf-8"

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class PlainPort:
    """Health by gRPC, and `/livez`, `/readyz` and `/metrics` by HTTP, on one port. Belongs to one event loop.

    Alive is a program whose event loop answers. Ready is one whose health service says SERVING as a whole.
    """

    def __init__(self, registry: CollectorRegistry, servicer: health.aio.HealthServicer | None = None) -> None:
        """`servicer`: another port's health, to be told here as well; None: one of its own, not serving at first."""
        self._registry = registry
        self._own = servicer is None
        self.servicer = servicer or health.aio.HealthServicer()
        self._inner = grpc.aio.server(options=server_options())
        health_pb2_grpc.add_HealthServicer_to_server(self.servicer, self._inner)
        self._socket = f"hanse-{os.getpid()}-{secrets.token_hex(8)}"
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, address: str) -> int:
        """Listen on `host:port`; returns the port.

        Raises:
            OperatorError: that is no address, or it is taken.
        """
        listener = _listen(address)
        if self._own:  # the library's servicer begins as SERVING
            await self.servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        self._inner.add_insecure_port(f"unix-abstract:{self._socket}")
        await self._inner.start()
        self._server = await asyncio.start_server(self._connected, sock=listener, limit=_LONGEST_HEAD)
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Listen no more, and end what is connected."""
        if self._server is not None:
            self._server.close()
        connections = dict(self._connections)
        for writer in connections.values():
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        await self._inner.stop(None)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            if len(self._connections) <= _MOST_CONNECTIONS:
                await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a peer that went away, or that said nothing we understand
        finally:
            del self._connections[task]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        if head == _PREFACE:
            await self._pass_on(head, reader, writer)
            return
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        status, kind, body = await self._answer(path)
        if method not in (b"GET", b"HEAD"):
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"only GET and HEAD\n"
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
        )
        if method != b"HEAD":
            writer.write(body)
        async with asyncio.timeout(_PATIENCE_S):
            await writer.drain()

    async def _answer(self, path: str) -> Answer:
        match path:
            case "/livez":
                return HTTPStatus.OK, _TEXT, b"ok\n"
            case "/readyz":
                found = await self.servicer.Check(health_pb2.HealthCheckRequest(), None)
                if found.status == health_pb2.HealthCheckResponse.SERVING:
                    return HTTPStatus.OK, _TEXT, b"ok\n"
                return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"not serving\n"
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)
            case _:
                return HTTPStatus.NOT_FOUND, _TEXT, b"here are /livez, /readyz and /metrics\n"

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(f"\0{self._socket}")
        inner_writer.write(head)
        ways = [
            asyncio.ensure_future(_copy(reader, inner_writer)),
            asyncio.ensure_future(_copy(inner_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            inner_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_LONGEST_HEAD):
        writer.write(data)
        await writer.drain()


def _listen(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise OperatorError(
            f"'{address[:80]}' is not host:port, which a port for health and metrics needs.",
            remedy="Write it as 127.0.0.1:7446, for instance.",
            code="INVALID_ADDRESS",
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        raise OperatorError(
            f"cannot listen on {address}: {error.strerror or error}.",
            remedy="Is another program on that port? Choose another, or stop it.",
            code="PORT_TAKEN",
        ) from error
    return listener
