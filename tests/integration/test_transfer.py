"""Payloads over real gRPC and TLS, through a proxy that cuts the connection at random bytes."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from hanse.artifacts import LocalStore
from hanse.errors import FencedOut, Forbidden, HanseError, NotFound, SiteError
from hanse.payload import CHUNK, Payload
from hanse.payload.desk import UploadDesk, serve
from hanse.payload.raw_chunks import TransferStub
from hanse.payload.transfer import Patience, download, upload
from hanse.rpc import ErrorInterceptor
from hanse.security import (
    Authority,
    Identity,
    ServerCertificate,
    channel_credentials,
    channel_options,
    server_options,
)
from hanse.v1 import node_pb2, node_pb2_grpc, payload_pb2

HURRIED = Patience(first=timedelta(milliseconds=1), longest=timedelta(milliseconds=50))
MIB = 1024 * 1024


def a_payload(size: int, seed: int = 0) -> Payload:
    values = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return Payload.build(payload_pb2.WeightDelta(examples=seed), {"values": values})


class NodeService(node_pb2_grpc.NodeServiceServicer):
    """The transfer calls of a coordinator, counting what arrives and what is asked for."""

    def __init__(self, store: LocalStore, *, limit: int = 2**40) -> None:
        self.store = store
        self.desk = UploadDesk(store, limit=limit)
        self.chunk_bytes = 0
        self.opened_at: dict[str, list[int]] = {}
        self.asked_from: list[int] = []
        self.forbidden: set[str] = set()
        self.hold: asyncio.Event | None = None  # while it is not set, uploads stop after their first chunk
        self.held = asyncio.Event()

    async def OpenUpload(self, request, context):
        if request.assignment in self.forbidden:
            raise Forbidden("node-1 was revoked.")
        committed = await self.desk.open(request)
        self.opened_at.setdefault(request.assignment, []).append(committed)
        return node_pb2.OpenUploadResponse(committed=committed)

    async def Upload(self, request_iterator, context):
        received = await self.desk.receive(self._counted(request_iterator))
        await self.desk.settle(received.assignment)
        return node_pb2.Receipt(assignment=received.assignment, fence=received.fence, digest=received.digest)

    async def _counted(self, requests) -> AsyncIterator[node_pb2.UploadRequest]:
        seen = 0
        async for request in requests:
            self.chunk_bytes += len(request.chunk.data)
            seen += request.WhichOneof("part") == "chunk"
            if self.hold is not None and seen == 2:
                self.held.set()
                await self.hold.wait()
            yield request

    async def Download(self, request, context):
        self.asked_from.append(request.offset)
        async for chunk in serve(self.store, request.digest, request.offset):
            yield chunk


class CuttingProxy:
    """Passes bytes on, and cuts each connection after a number of bytes that `budget` draws; None: never."""

    def __init__(self, port: int, budget: Callable[[], int | None]) -> None:
        self._port = port
        self._budget = budget
        self.passed = 0
        self.cuts = 0
        self.tasks: set[asyncio.Task] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=64 * 1024)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        left = [self._budget()]
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port, limit=64 * 1024)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while (data := await source.read(16 * 1024)) and left[0] != 0:
                if left[0] is not None:
                    data = data[: left[0]]
                    left[0] -= len(data)
                    self.cuts += left[0] == 0
                target.write(data)
                self.passed += len(data)
                await target.drain()
                if left[0] == 0:
                    return

        pumps = [asyncio.ensure_future(pump(reader, far_writer)), asyncio.ensure_future(pump(far_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the scenario is over
        finally:
            for each in pumps:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.transport.abort()
            far_writer.close()


class Federation:
    """A server over TLS, reached through a cutting proxy."""

    def __init__(self, service: NodeService, proxy: CuttingProxy, stub: node_pb2_grpc.NodeServiceAsyncStub) -> None:
        self.service = service
        self.proxy = proxy
        self.stub = stub

    @property
    def store(self) -> LocalStore:
        return self.service.store


Scenario = Callable[[Federation], Awaitable[None]]


@pytest.fixture
def play(authority: Authority, tmp_path: Path) -> Callable[..., None]:
    """Run a scenario against a server of its own."""

    def run(scenario: Scenario, *, budget: Callable[[], int | None] = lambda: None, limit: int = 2**40) -> None:
        async def inner() -> None:
            service = NodeService(LocalStore(tmp_path / "artifacts"), limit=limit)
            server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
            node_pb2_grpc.add_NodeServiceServicer_to_server(service, server)
            shown = ServerCertificate(authority.issue(Identity.service("coordinator")))
            port = server.add_secure_port("127.0.0.1:0", shown.mutual_credentials(authority.certificate_pem))
            await server.start()
            proxy = CuttingProxy(port, budget)
            credentials = channel_credentials(authority.certificate_pem, authority.issue(Identity.node("node-1")))
            options = [
                *channel_options(server_name="coordinator.hanse.internal", proxy=False),
                ("grpc.initial_reconnect_backoff_ms", 10),
                ("grpc.min_reconnect_backoff_ms", 10),
                ("grpc.max_reconnect_backoff_ms", 50),
            ]
            try:
                async with (
                    proxy.running() as proxy_port,
                    grpc.aio.secure_channel(f"127.0.0.1:{proxy_port}", credentials, options) as channel,
                ):
                    await scenario(Federation(service, proxy, TransferStub(channel)))
            finally:
                await server.stop(None)

        asyncio.run(inner())

    return run


def written(folder: Path, payload: Payload) -> Path:
    path = folder / f"{payload.digest.hex()[:8]}.payload"
    payload.write(path)
    return path


def cutting(seed: int, cuts: int, least: int, most: int, *, last: int | None = None) -> Callable[[], int | None]:
    """Random budgets for the first connections; `last` is late enough that a good part is committed by then."""
    draw = random.Random(seed)
    budgets = [draw.randrange(least, most) for _ in range(cuts)]
    left = iter(budgets if last is None else [*budgets, last + draw.randrange(CHUNK)])
    return lambda: next(left, None)


@pytest.mark.parametrize("seed", range(3))
def test_an_upload_that_is_cut_at_random_bytes_arrives_whole_and_is_never_begun_anew(play, tmp_path, seed):
    payload = a_payload(20 * MIB + 12345, seed)
    path = written(tmp_path, payload)
    progress: list[int] = []

    async def scenario(federation: Federation) -> None:
        receipt = await upload(
            federation.stub,
            assignment="a-1",
            fence=3,
            path=path,
            digest=payload.digest,
            patience=HURRIED,
            on_progress=lambda done, _: progress.append(done),
        )
        assert (receipt.assignment, receipt.fence, receipt.digest) == ("a-1", 3, payload.digest)
        assert federation.store.open(payload.digest).image() == payload.image()
        starts = federation.service.opened_at["a-1"]
        assert federation.proxy.cuts == 6
        assert starts == sorted(starts)
        assert starts[-1] > 0, "the last connection went on where an earlier one broke"
        # A cut costs the chunks that were on their way: never a restart.
        assert federation.service.chunk_bytes <= payload.size + federation.proxy.cuts * 2 * CHUNK
        assert federation.proxy.passed < payload.size + federation.proxy.cuts * 2 * MIB

    play(scenario, budget=cutting(seed, 5, 10_000, 2 * MIB, last=8 * MIB))
    assert progress[-1] == payload.size


@pytest.mark.parametrize("seed", range(3))
def test_a_download_that_is_cut_at_random_bytes_arrives_whole_and_never_asks_for_what_it_has(play, tmp_path, seed):
    payload = a_payload(20 * MIB + 54321, seed)
    target = tmp_path / "instruction"

    async def scenario(federation: Federation) -> None:
        federation.store.put(payload)
        await download(
            federation.stub,
            assignment="a-1",
            digest=payload.digest,
            into=target,
            size=payload.size,
            patience=HURRIED,
        )
        assert Payload.open(target).image() == payload.image()
        asked = federation.service.asked_from
        assert federation.proxy.cuts == 6
        assert asked == sorted(asked)
        assert asked[-1] > 0
        assert federation.proxy.passed < payload.size + federation.proxy.cuts * 2 * MIB
        assert not target.with_name("instruction.part").exists()

    play(scenario, budget=cutting(100 + seed, 5, 10_000, 2 * MIB, last=8 * MIB))


def test_interleaved_uploads_of_different_assignments_are_independent(play, tmp_path):
    payloads = [a_payload(3 * MIB + n, n) for n in range(6)]
    paths = [written(tmp_path, payload) for payload in payloads]

    async def scenario(federation: Federation) -> None:
        receipts = await asyncio.gather(
            *(
                upload(
                    federation.stub, assignment=f"a-{n}", fence=1, path=path, digest=payload.digest, patience=HURRIED
                )
                for n, (path, payload) in enumerate(zip(paths, payloads, strict=True))
            )
        )
        for receipt, payload in zip(receipts, payloads, strict=True):
            assert receipt.digest == payload.digest
            assert federation.store.open(payload.digest).image() == payload.image()
        assert not list(federation.store.spool.iterdir())

    play(scenario, budget=cutting(9, 4, 1 * MIB, 6 * MIB))


def test_a_node_that_comes_back_takes_over_from_its_own_lingering_upload(play, tmp_path):
    payload = a_payload(5 * MIB)
    path = written(tmp_path, payload)

    async def scenario(federation: Federation) -> None:
        service = federation.service
        service.hold = asyncio.Event()
        send = {"assignment": "a-1", "fence": 1, "path": path, "digest": payload.digest, "patience": HURRIED}
        lingering = asyncio.ensure_future(upload(federation.stub, **send))
        await service.held.wait()
        service.hold, held = None, service.hold
        receipt = await upload(federation.stub, **send)
        assert receipt.digest == payload.digest
        assert service.opened_at["a-1"][-1] == CHUNK, "it went on after the chunk that was committed"
        with pytest.raises(FencedOut) as error:
            await lingering
        assert error.value.code == "SUPERSEDED"
        held.set()
        assert federation.store.open(payload.digest).image() == payload.image()

    play(scenario)


def test_uploading_a_delivered_payload_again_gives_the_same_receipt(play, tmp_path):
    payload = a_payload(2 * MIB)
    path = written(tmp_path, payload)

    async def scenario(federation: Federation) -> None:
        send = {"assignment": "a-1", "fence": 1, "path": path, "digest": payload.digest}
        assert await upload(federation.stub, **send) == await upload(federation.stub, **send)

    play(scenario)


def test_a_payload_above_the_limit_is_refused_before_a_byte_of_it_is_sent(play, tmp_path):
    payload = a_payload(2 * MIB)
    path = written(tmp_path, payload)

    async def scenario(federation: Federation) -> None:
        with pytest.raises(SiteError) as error:
            await upload(federation.stub, assignment="a-1", fence=1, path=path, digest=payload.digest)
        assert error.value.code == "TOO_LARGE"
        assert federation.service.chunk_bytes == 0

    play(scenario, limit=MIB)


def test_a_refusal_ends_the_upload_with_the_servers_own_reason(play, tmp_path):
    payload = a_payload(2 * MIB)
    path = written(tmp_path, payload)

    async def scenario(federation: Federation) -> None:
        federation.service.forbidden.add("a-1")
        with pytest.raises(Forbidden, match="revoked"):
            await upload(federation.stub, assignment="a-1", fence=1, path=path, digest=payload.digest)

    play(scenario)


def test_a_file_that_is_not_what_was_declared_is_refused_after_one_fresh_try(play, tmp_path):
    payload, other = a_payload(2 * MIB, 1), a_payload(2 * MIB, 2)
    path = written(tmp_path, payload)

    async def scenario(federation: Federation) -> None:
        with pytest.raises(HanseError, match="SHA-256") as error:
            await upload(federation.stub, assignment="a-1", fence=1, path=path, digest=other.digest, patience=HURRIED)
        assert error.value.code == "DIGEST_MISMATCH"
        assert federation.service.opened_at["a-1"] == [0, 0]
        assert not federation.store.exists(other.digest)

    play(scenario)


def test_an_artifact_that_is_not_there_ends_the_download_at_once(play, tmp_path):
    async def scenario(federation: Federation) -> None:
        with pytest.raises(NotFound):
            await download(
                federation.stub, assignment="a-1", digest=hashlib.sha256().digest(), into=tmp_path / "instruction"
            )

    play(scenario)
    assert not (tmp_path / "instruction").exists()


def test_a_download_goes_on_in_another_process_where_it_stopped(play, tmp_path):
    payload = a_payload(4 * MIB)
    target = tmp_path / "instruction"
    target.with_name("instruction.part").write_bytes(payload.image()[: 3 * MIB + 7])

    async def scenario(federation: Federation) -> None:
        federation.store.put(payload)
        await download(federation.stub, assignment="a-1", digest=payload.digest, into=target)
        assert federation.service.asked_from == [3 * MIB + 7]

    play(scenario)
    assert Payload.open(target).image() == payload.image()
