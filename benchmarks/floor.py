"""The floor of a round: the same bytes through bare gRPC streams over mutual TLS, with nothing else.

A server and one process a node. In each round every node reads the model from a stream and writes its difference to
another, in messages of 1 MiB; nothing is hashed, stored or decoded. The server waits for all nodes, then begins the
next round. The messages are the contract's own (`PayloadChunk`), as any gRPC service of such payloads would send them;
with `plain` they are bytes that no protobuf has touched: what sockets and TLS alone cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hanse.security import Authority, Identity, KeyPair, ServerCertificate, channel_credentials, internal_name
from hanse.security.tls import channel_options, server_options
from hanse.v1.payload_pb2 import PayloadChunk

CHUNK = 1024 * 1024


def measure(folder: Path, *, nodes: int, size: int, rounds: int, plain: bool = False) -> float:
    """Median seconds of a round."""
    folder.mkdir(parents=True)
    authority = Authority.create(folder / "authority")
    hosts = ("localhost", "127.0.0.1")
    authority.issue(Identity.service("coordinator"), hosts=hosts).save(folder / "server.pem")
    authority.issue(Identity.node("node")).save(folder / "node.pem")
    (folder / "authority.pem").write_bytes(authority.certificate_pem)
    command = [sys.executable, __file__, "--folder", str(folder), "--nodes", str(nodes)]
    command += ["--size", str(size), "--rounds", str(rounds), *(["--plain"] if plain else [])]
    server = subprocess.Popen([*command, "serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    clients = [subprocess.Popen([*command, "--port", port, "take-part"]) for _ in range(nodes)]
    times = json.loads(server.stdout.readline())
    for process in (server, *clients):
        process.wait()
    return statistics.median(times)


class _Rounds(grpc.GenericRpcHandler):
    """Rounds begin when all nodes have asked, and end when all have delivered."""

    def __init__(self, nodes: int, size: int, rounds: int, plain: bool) -> None:
        self._size, self._rounds, self._plain = size, rounds, plain
        self._barrier = asyncio.Barrier(nodes)
        self._began = 0.0
        self.times: list[float] = []
        self.done = asyncio.Event()

    def service(self, call: Any) -> Any:
        if call.method == "/floor/down":
            return grpc.unary_stream_rpc_method_handler(self._down, response_serializer=_written(self._plain))
        return grpc.stream_unary_rpc_method_handler(self._up, request_deserializer=_read(self._plain))

    async def _down(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        await self._barrier.wait()
        self._began = time.perf_counter()
        for message in _messages(self._size, self._plain):
            yield message

    async def _up(self, requests: AsyncIterator[Any], context: Any) -> bytes:
        received = 0
        async for message in requests:
            received += len(message if self._plain else message.data)
        assert received == self._size
        if await self._barrier.wait() == 0:
            self.times.append(time.perf_counter() - self._began)
            if len(self.times) == self._rounds:
                self.done.set()
        return b""


async def _serve(options: argparse.Namespace) -> None:
    pair = KeyPair.load(options.folder / "server.pem")
    server = grpc.aio.server(options=server_options())
    rounds = _Rounds(options.nodes, options.size, options.rounds, options.plain)
    server.add_generic_rpc_handlers((rounds,))
    credentials = ServerCertificate(pair).mutual_credentials((options.folder / "authority.pem").read_bytes())
    print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
    await server.start()
    await rounds.done.wait()
    await server.stop(2)
    print(json.dumps(rounds.times), flush=True)


async def _take_part(options: argparse.Namespace) -> None:
    credentials = channel_credentials(
        (options.folder / "authority.pem").read_bytes(), KeyPair.load(options.folder / "node.pem")
    )
    settings = channel_options(server_name=internal_name("coordinator"), proxy=False)
    async with grpc.aio.secure_channel(f"127.0.0.1:{options.port}", credentials, settings) as channel:
        down = channel.unary_stream("/floor/down", response_deserializer=_read(options.plain))
        up = channel.stream_unary("/floor/up", request_serializer=_written(options.plain))
        await asyncio.wait_for(channel.channel_ready(), 60)
        for _ in range(options.rounds):
            async for message in down(b""):
                len(message if options.plain else message.data)
            await up(_messages(options.size, options.plain))


def _messages(size: int, plain: bool) -> Iterator[Any]:
    block = bytes(CHUNK)
    for start in range(0, size, CHUNK):
        data = block if start + CHUNK <= size else block[: size - start]
        yield data if plain else PayloadChunk(offset=start, data=data)


def _written(plain: bool) -> Any:
    return None if plain else PayloadChunk.SerializeToString


def _read(plain: bool) -> Any:
    return None if plain else PayloadChunk.FromString


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("serve", "take-part"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--plain", action="store_true")
    for name in ("nodes", "size", "rounds", "port"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    asyncio.run(_serve(options) if options.role == "serve" else _take_part(options))


if __name__ == "__main__":
    main()
