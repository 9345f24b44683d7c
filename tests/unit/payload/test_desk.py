"""The server's desk for uploads: one at a time for each assignment, each from where it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import numpy as np
import pytest

from hanse.artifacts import LocalStore
from hanse.errors import Conflict, FencedOut, InvalidPayload, NotFound
from hanse.payload import CHUNK, Payload, chunks
from hanse.payload.desk import UploadDesk, serve
from hanse.v1 import node_pb2, payload_pb2


def a_payload(seed: int = 0) -> Payload:
    values = np.random.default_rng(seed).integers(0, 256, 2 * CHUNK + 99, np.uint8)
    return Payload.build(payload_pb2.WeightDelta(examples=seed), {"v": values})


def opening(payload: Payload, assignment: str = "a-1", fence: int = 4) -> node_pb2.OpenUploadRequest:
    return node_pb2.OpenUploadRequest(assignment=assignment, fence=fence, digest=payload.digest, size=payload.size)


async def requests(
    open_: node_pb2.OpenUploadRequest, parts: Iterable[payload_pb2.PayloadChunk]
) -> AsyncIterator[node_pb2.UploadRequest]:
    yield node_pb2.UploadRequest(open=open_)
    for chunk in parts:
        yield node_pb2.UploadRequest(chunk=chunk)


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path)


def test_an_upload_ends_in_the_store_and_settling_removes_its_spool(store):
    payload = a_payload()

    async def scenario() -> None:
        desk = UploadDesk(store)
        assert await desk.open(opening(payload)) == 0
        received = await desk.receive(requests(opening(payload), chunks(payload)))
        assert (received.assignment, received.fence) == ("a-1", 4)
        assert (received.digest, received.size) == (payload.digest, payload.size)
        assert store.open(payload.digest).image() == payload.image()
        assert list(store.spool.iterdir())
        await desk.settle("a-1")
        assert not list(store.spool.iterdir())

    asyncio.run(scenario())


def test_a_restarted_program_goes_on_where_the_old_one_was(store):
    payload = a_payload()

    async def before() -> None:
        with pytest.raises(InvalidPayload) as error:
            await UploadDesk(store).receive(requests(opening(payload), list(chunks(payload))[:2]))
        assert error.value.code == "INCOMPLETE"

    async def after() -> None:
        desk = UploadDesk(store)
        assert await desk.open(opening(payload)) == 2 * CHUNK
        received = await desk.receive(requests(opening(payload), chunks(payload, offset=2 * CHUNK)))
        assert received.digest == payload.digest

    asyncio.run(before())
    asyncio.run(after())


def test_an_upload_that_was_whole_but_not_recorded_has_nothing_left_to_send(store):
    payload = a_payload()

    async def scenario() -> None:
        await UploadDesk(store).receive(requests(opening(payload), chunks(payload)))
        desk = UploadDesk(store)
        assert await desk.open(opening(payload)) == payload.size
        assert (await desk.receive(requests(opening(payload), []))).digest == payload.digest

    asyncio.run(scenario())


def test_knowing_a_digest_is_not_enough_to_deliver_somebody_elses_payload(store):
    payload = a_payload()
    store.put(payload)

    async def scenario() -> None:
        desk = UploadDesk(store)
        assert await desk.open(opening(payload, "a-2")) == 0
        with pytest.raises(InvalidPayload, match="ended after 0 bytes"):
            await desk.receive(requests(opening(payload, "a-2"), []))

    asyncio.run(scenario())


def test_another_payload_for_the_assignment_replaces_what_was_there(store):
    first, second = a_payload(1), a_payload(2)

    async def scenario() -> None:
        desk = UploadDesk(store)
        with pytest.raises(InvalidPayload):
            await desk.receive(requests(opening(first), list(chunks(first))[:1]))
        assert await desk.open(opening(second)) == 0
        assert len(list(store.spool.rglob("*.part"))) <= 1
        assert (await desk.receive(requests(opening(second), chunks(second)))).digest == second.digest
        assert await desk.open(opening(first)) == 0

    asyncio.run(scenario())


def test_the_newest_call_takes_over_and_the_older_one_ends_with_a_reason(store):
    payload = a_payload()
    first, *others = chunks(payload)

    async def scenario() -> None:
        desk, taken, forever = UploadDesk(store), asyncio.Event(), asyncio.Event()

        async def stalled() -> AsyncIterator[node_pb2.UploadRequest]:
            yield node_pb2.UploadRequest(open=opening(payload))
            yield node_pb2.UploadRequest(chunk=first)
            taken.set()
            await forever.wait()

        old = asyncio.ensure_future(desk.receive(stalled()))
        await taken.wait()
        assert await desk.open(opening(payload)) == CHUNK
        with pytest.raises(FencedOut) as error:
            await old
        assert error.value.code == "SUPERSEDED"
        assert (await desk.receive(requests(opening(payload), others))).digest == payload.digest

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_leaves_what_it_committed(store):
    payload = a_payload()
    first, *others = chunks(payload)

    async def scenario() -> None:
        desk, taken = UploadDesk(store), asyncio.Event()

        async def stalled() -> AsyncIterator[node_pb2.UploadRequest]:
            yield node_pb2.UploadRequest(open=opening(payload))
            yield node_pb2.UploadRequest(chunk=first)
            taken.set()
            await asyncio.Event().wait()

        call = asyncio.ensure_future(desk.receive(stalled()))
        await taken.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await desk.open(opening(payload)) == CHUNK
        assert (await desk.receive(requests(opening(payload), others))).digest == payload.digest

    asyncio.run(scenario())


def test_a_chunk_at_the_wrong_byte_is_refused_and_what_was_committed_stays(store):
    payload = a_payload()
    first, second, third = chunks(payload)

    async def scenario() -> None:
        desk = UploadDesk(store)
        with pytest.raises(Conflict, match=f"{CHUNK} bytes are committed"):
            await desk.receive(requests(opening(payload), [first, third]))
        assert (await desk.receive(requests(opening(payload), [second, third]))).digest == payload.digest

    asyncio.run(scenario())


@pytest.mark.parametrize("assignment", ["", "../../etc", "a/b", ".", "a" * 101, "a\0"])
def test_an_assignment_cannot_name_a_path(store, assignment):
    payload = a_payload()

    async def scenario() -> None:
        desk = UploadDesk(store)
        for call in (
            desk.open(opening(payload, assignment)),
            desk.receive(requests(opening(payload, assignment), [])),
            desk.settle(assignment),
        ):
            with pytest.raises(InvalidPayload, match="is no assignment"):
                await call

    asyncio.run(scenario())
    assert not list(store.spool.iterdir())


def test_an_upload_must_say_what_it_is_once_and_first(store):
    payload = a_payload()
    chunk = node_pb2.UploadRequest(chunk=next(chunks(payload)))
    again = node_pb2.UploadRequest(open=opening(payload))

    async def stream(*parts: node_pb2.UploadRequest) -> AsyncIterator[node_pb2.UploadRequest]:
        for part in parts:
            yield part

    async def scenario() -> None:
        desk = UploadDesk(store)
        for parts in ([], [chunk], [again, again]):
            with pytest.raises(InvalidPayload, match="an upload"):
                await desk.receive(stream(*parts))

    asyncio.run(scenario())


def test_a_payload_above_the_limit_gets_no_room(store):
    async def scenario() -> None:
        with pytest.raises(InvalidPayload) as error:
            await UploadDesk(store, limit=1000).open(opening(a_payload()))
        assert error.value.code == "TOO_LARGE"

    asyncio.run(scenario())


@pytest.mark.parametrize("offset", [0, 1, CHUNK, 2 * CHUNK + 5])
def test_serving_begins_at_any_byte(store, offset):
    payload = a_payload()
    store.put(payload)

    async def scenario() -> list[payload_pb2.PayloadChunk]:
        return [chunk async for chunk in serve(store, payload.digest, offset)]

    served = asyncio.run(scenario())
    assert b"".join(chunk.data for chunk in served) == payload.image()[offset:]
    assert served[-1].digest == payload.digest


def test_serving_what_is_not_there_says_so(store):
    async def scenario() -> None:
        with pytest.raises(NotFound):
            await anext(serve(store, bytes(32)))

    asyncio.run(scenario())
