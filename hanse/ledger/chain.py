"""The audit trail's hash chain: canonical bytes, and the proof that a trail is whole.

An event's canonical bytes are compact ASCII JSON with sorted keys of its sequence, instant, kind, job, node,
actor and body; numbers that are not whole are written as the shortest decimal that reads back the same. They are
stored as they were hashed, so that no database's idea of JSON or of time can change them. The hash is

    hash(n) = SHA-256(hash(n - 1) || canonical bytes(n)),   hash(0) = 32 zero bytes.

A change of any column of any row breaks its own row or, when somebody computed a new hash for it, the link of the
next. A trail that was cut at its end, or written anew from some row on, still links up: only a head that somebody
kept elsewhere shows it (`against`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hanse.errors import Reason
from hanse.ledger.records import Event, reason_to_json

GENESIS = bytes(32)


class Head(NamedTuple):
    """The newest entry of a trail; (0, 32 zero bytes) when there is none."""

    sequence: int
    hash: bytes


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was proved. `events` were found good, up to `head`; `first_bad` is the sequence of the first that is not."""

    whole: bool
    events: int
    head: Head
    first_bad: int | None
    sentence: str


class EventSource(Protocol):
    """Whatever can tell all events in order of their sequence (a view of a ledger)."""

    def every_event(self) -> Iterable[Event]:
        """All events, in order of their sequence."""


def _plain(value: Any) -> Any:
    if isinstance(value, Reason):
        return reason_to_json(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    raise TypeError(f"an event cannot hold a {type(value).__name__}")


def canonical_json(value: Any) -> str:
    """The one way in which a value is written. Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)


def canonical_bytes(
    *,
    sequence: int,
    at: float,
    kind: str,
    job: str | None,
    node: str | None,
    actor: str,
    body: Mapping[str, Any],
) -> bytes:
    """The bytes of an event that are hashed and stored.

    Raises:
        ValueError: the body holds NaN or an infinity.
        TypeError: the body holds something that JSON cannot say.
    """
    document = {
        "sequence": sequence,
        "at": float(at),
        "kind": kind,
        "job": job,
        "node": node,
        "actor": actor,
        "body": dict(body),
    }
    return canonical_json(document).encode("ascii")


def link(previous_hash: bytes, body: bytes) -> bytes:
    """The hash of an event, from the hash before it and its canonical bytes."""
    return hashlib.sha256(previous_hash + body).digest()


def verify(source: EventSource, against: Iterable[tuple[int, bytes]] = ()) -> Verification:
    """Prove a trail whole, or name its first bad row.

    Reads one event at a time, so that memory does not grow with the trail.

    Args:
        source: the trail.
        against: heads (sequence, hash) that were seen earlier and kept elsewhere.
    """
    return verify_events(source.every_event(), against)


def verify_events(events: Iterable[Event], against: Iterable[tuple[int, bytes]] = ()) -> Verification:
    """Like `verify`, for events in the order in which they lie in the database."""
    seen: dict[int, list[bytes]] = {}
    for sequence, digest in against:
        seen.setdefault(sequence, []).append(bytes(digest))
    head = Head(0, GENESIS)
    fault = _contradiction(head, seen.pop(0, ()))
    for event in events:
        fault = fault or _fault(event, head)
        if fault:
            return _bad(head, fault)
        found = Head(event.sequence, bytes(event.hash))
        fault = _contradiction(found, seen.pop(event.sequence, ()))
        if fault:
            return _bad(head, fault)
        head = found
    missing = max(seen, default=0)
    if missing > head.sequence:
        fault = f"Event {head.sequence + 1} is missing: the trail was seen up to event {missing} and is cut off."
    if fault:
        return _bad(head, fault)
    kept = "" if head.sequence else " It is empty."
    return Verification(
        whole=True,
        events=head.sequence,
        head=head,
        first_bad=None,
        sentence=f"The trail of {head.sequence} events is whole.{kept}",
    )


def _bad(head: Head, fault: str) -> Verification:
    return Verification(whole=False, events=head.sequence, head=head, first_bad=head.sequence + 1, sentence=fault)


def _contradiction(found: Head, seen: Sequence[bytes]) -> str:
    if all(hmac.compare_digest(found.hash, digest) for digest in seen):
        return ""
    return f"Event {found.sequence} is not the one that was seen earlier: the trail was written anew before its end."


def _fault(event: Event, head: Head) -> str:
    """What is wrong with the event that follows `head`; empty when nothing is."""
    expected = head.sequence + 1
    if event.sequence != expected:
        if isinstance(event.sequence, int) and event.sequence > expected:
            return f"Event {expected} is missing; event {event.sequence} follows event {head.sequence}."
        return f"A row numbered {event.sequence} stands where event {expected} belongs."
    if event.previous_hash != head.hash:
        return (
            f"Event {expected} does not continue the trail: its previous hash is not the hash of event {head.sequence}."
        )
    if not isinstance(event.body, bytes) or link(head.hash, event.body) != event.hash:
        return f"Event {expected} was changed: its bytes do not have its hash."
    try:
        stated = json.loads(event.body)
        differing = [name for name in _COLUMNS if stated[name] != getattr(event, name)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"Event {expected} was changed: its bytes are not an event."
    if differing:
        return f"Event {expected} was changed: column {differing[0]} differs from the bytes that were hashed."
    return ""


_COLUMNS = ("sequence", "at", "kind", "job", "node", "actor")
