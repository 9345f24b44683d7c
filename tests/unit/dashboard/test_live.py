"""The event stream: ids are ledger sequence numbers, it resumes, and it ends with the session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.testclient import TestClient

from hanse_dashboard.feed import Feed, Subscription

from .conftest import World


def parse(message: str) -> tuple[int, str, dict[str, Any]]:
    fields = dict(line.split(": ", 1) for line in message.strip().splitlines())
    return int(fields["id"]), fields["event"], json.loads(fields["data"])


async def collect(stream: AsyncIterator[str], count: int) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    async for message in stream:
        if not message.startswith("retry"):
            found.append(parse(message))
        if len(found) == count:
            break
    return found


def test_a_page_hears_of_what_was_appended_and_its_sequence(world: World) -> None:
    async def run() -> list[tuple[int, str, dict[str, Any]]]:
        feed = Feed(world.ledger, heartbeat_s=60)
        await feed.start()
        with world.ledger.read() as view:
            head = view.head().sequence
        stream = feed.stream(Subscription(after=head), status=lambda: {"coordinator": True}, still_welcome=lambda: True)
        first = await collect(stream, 1)

        def append() -> None:
            with world.ledger.write(world.epoch) as tx:
                tx.event("one")
                tx.event("two")

        await asyncio.to_thread(append)
        found = first + await collect(feed.stream(Subscription(after=head), status=dict, still_welcome=lambda: True), 1)
        await feed.stop()
        return [*found, (head, "head", {})]

    (beat_id, beat, facts), (change_id, change, data), (head, *_) = asyncio.run(run())
    assert (beat_id, beat, facts["coordinator"]) == (head, "beat", True)
    assert (change_id, change, data["sequence"]) == (head + 2, "change", head + 2)


def test_a_page_of_one_job_hears_of_that_job_alone(world: World) -> None:
    async def run(wanted: Subscription) -> tuple[int, str, dict[str, Any]]:
        feed = Feed(world.ledger, heartbeat_s=60)
        (message,) = await collect(feed.stream(wanted, status=dict, still_welcome=lambda: True), 1)
        return message

    _, kind, data = asyncio.run(run(Subscription(after=0, job=world.paused)))
    assert (kind, data["kinds"]) == ("change", ["job_paused"])
    sequence, kind, _ = asyncio.run(run(Subscription(after=0, job="nothing")))
    with world.ledger.read() as view:
        assert (sequence, kind) == (view.head().sequence, "beat")


def test_the_stream_ends_with_the_session(world: World) -> None:
    async def run() -> list[tuple[int, str, dict[str, Any]]]:
        feed = Feed(world.ledger, heartbeat_s=0)
        return await collect(feed.stream(Subscription(after=0), status=dict, still_welcome=lambda: False), 9)

    (message,) = asyncio.run(run())
    assert message[1] == "expired"


def test_the_stream_ends_when_the_replica_stops(world: World) -> None:
    async def run() -> int:
        feed = Feed(world.ledger, heartbeat_s=60)
        stream = feed.stream(Subscription(after=0), status=dict, still_welcome=lambda: True)
        await collect(stream, 1)
        feed.close()
        rest = await collect(feed.stream(Subscription(after=0), status=dict, still_welcome=lambda: True), 9)
        return len(rest)

    assert asyncio.run(run()) == 0


def test_the_poll_tells_whether_anything_is_new(world: World, client: TestClient) -> None:
    with world.ledger.read() as view:
        head = view.head().sequence
    assert client.get("/live/poll", params={"after": head - 1}).json()["changed"] is True
    answer = client.get("/live/poll", params={"after": head}).json()
    assert (answer["changed"], answer["sequence"], answer["coordinator"]) == (False, head, False)
    assert client.get("/live/poll", params={"after": 0, "job": world.good}).json()["changed"] is True
    assert client.get("/live/poll", params={"after": 0, "node": "nobody"}).json()["changed"] is False


def test_a_stranger_hears_nothing(stranger: TestClient) -> None:
    assert stranger.get("/live").status_code == 401
    assert stranger.get("/live/poll").json()["code"] == "NOT_LOGGED_IN"
