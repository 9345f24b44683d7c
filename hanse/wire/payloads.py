"""Where a payload stands: inside the message that speaks of it, or elsewhere, by digest."""

from __future__ import annotations

from collections.abc import Callable

from hanse.payload import CHUNK, Payload
from hanse.rpc import INLINE_LIMIT
from hanse.v1 import payload_pb2

Place = Callable[[Payload], payload_pb2.PayloadSource]
Resolve = Callable[[payload_pb2.PayloadSource], Payload]
Fetch = Callable[[bytes], Payload]
Keep = Callable[[Payload], payload_pb2.ArtifactRef]


def small(payload: Payload) -> bool:
    """Whether a payload rides inside the message that speaks of it."""
    return payload.size <= INLINE_LIMIT


def placing(keep: Keep) -> Place:
    """Small payloads inside the message; `keep` takes the others and says what they are called.

    One `Place` serves one message: when 1 MiB is inside it, further payloads are kept, however small.
    """
    room = CHUNK

    def place(payload: Payload) -> payload_pb2.PayloadSource:
        nonlocal room
        if not small(payload) or payload.size > room:
            return payload_pb2.PayloadSource(artifact=keep(payload))
        room -= payload.size
        return payload_pb2.PayloadSource(inline=payload.image())

    return place


def resolving(fetch: Fetch) -> Resolve:
    """Decode what is inside the message; `fetch` finds the others by digest."""

    def resolve(source: payload_pb2.PayloadSource) -> Payload:
        if source.WhichOneof("source") == "artifact":
            return fetch(source.artifact.digest)
        return Payload.from_image(source.inline)

    return resolve
