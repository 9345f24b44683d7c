"""The audit trail: lists of events, one entry with its proof, and one box that finds things."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from hanse.errors import NotFound, OperatorError
from hanse.ledger import Event, View, models
from hanse.ledger.chain import GENESIS, link
from hanse_dashboard.queries.paging import Instant, Page, page_of

__all__ = ["Entry", "EventRow", "Found", "entry", "event_rows", "find"]

_MOST_FOUND = 50


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """An event of the audit trail."""

    sequence: int
    at: Instant
    kind: str
    job: str | None
    node: str | None
    actor: str
    facts: Mapping[str, Any]
    hash: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An event, and whether it fits between its neighbours."""

    event: EventRow
    body: str
    """The canonical bytes, exactly as hashed."""
    previous_hash: str
    fits: bool
    """Its bytes have its hash, and it continues the entry before it."""
    next: int | None
    head: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where something that was typed into the search box leads."""

    kind: str
    """event, job, node, artifact, invitation, token or certificate."""
    title: str
    detail: str
    sequence: int | None = None
    job: str = ""
    node: str = ""
    digest: str = ""


def _row(event: Event) -> EventRow:
    return EventRow(
        sequence=event.sequence,
        at=event.at,
        kind=event.kind,
        job=event.job,
        node=event.node,
        actor=event.actor,
        facts=_facts(event),
        hash=event.hash.hex(),
    )


def _facts(event: Event) -> Mapping[str, Any]:
    try:
        return event.facts
    except (ValueError, KeyError, TypeError):  # a row that somebody changed; verification says so
        return {}


def event_rows(
    view: View,
    *,
    job: str = "",
    node: str = "",
    kind: str = "",
    actor: str = "",
    after: str = "",
    limit: int = 100,
    newest_first: bool = True,
) -> Page[EventRow]:
    """Events; `after` is a sequence number, and the next page goes on from there in the same direction.

    Raises:
        OperatorError: `after` is no sequence number.
    """
    table = models.event
    statement = view._select(table, Event).limit(limit + 1)
    for column, value in ((table.c.job, job), (table.c.node, node), (table.c.kind, kind), (table.c.actor, actor)):
        if value:
            statement = statement.where(column == value)
    if after:
        if not re.fullmatch(r"[0-9]{1,18}", after):
            raise OperatorError(f"“{after[:60]}” is no sequence number.", code="INVALID_CURSOR")
        place = int(after)
        statement = statement.where(table.c.sequence < place if newest_first else table.c.sequence > place)
    order = table.c.sequence.desc() if newest_first else table.c.sequence
    rows = [_row(event) for event in view._all(Event, statement.order_by(order))]
    return page_of(rows, limit, lambda row: str(row.sequence))


def entry(view: View, sequence: int) -> Entry:
    """One entry.

    Raises:
        NotFound: the trail has none of that number.
    """
    head = view.head().sequence
    found = view.events(after=sequence - 1, limit=2) if 0 < sequence < 2**62 else []
    if not found or found[0].sequence != sequence:
        raise NotFound(
            f"The trail has no entry {sequence}.", remedy=f"It is complete up to entry {head}.", code="NO_EVENT"
        )
    event = found[0]
    before = view.events(after=sequence - 2, limit=1) if sequence > 1 else []
    previous = before[0].hash if before else GENESIS
    return Entry(
        event=_row(event),
        body=event.body.decode("ascii", errors="replace"),
        previous_hash=event.previous_hash.hex(),
        fits=event.previous_hash == previous and link(previous, event.body) == event.hash,
        next=found[1].sequence if len(found) > 1 else None,
        head=head,
    )


def find(view: View, text: str) -> list[Found]:
    """Everything that bears this name, number, id or digest (12 digits of it are enough)."""
    text = text.strip()
    if not text:
        return []
    found: list[Found] = []
    if re.fullmatch(r"#?[0-9]{1,18}", text):
        number = int(text.lstrip("#"))
        first = view.events(after=number - 1, limit=1) if number else []
        found += [_event(event) for event in first if event.sequence == number]
    found += _named(view, text)
    if re.fullmatch(r"[0-9a-fA-F]{12,64}", text):
        found += _digests(view, text.lower())
    return found[:_MOST_FOUND]


def _event(event: Event) -> Found:
    about = " ".join(filter(None, (event.job and f"job {event.job}", event.node and f"node {event.node}")))
    return Found(
        kind="event",
        title=f"Entry {event.sequence}: {event.kind}",
        detail=about or event.actor,
        sequence=event.sequence,
    )


def _named(view: View, text: str) -> list[Found]:
    found = []
    if node := view.find_node(text):
        found.append(Found(kind="node", title=node.name, detail=f"node, {node.trust.value}", node=node.name))
    job, certificate = models.job, models.certificate
    rows = view.rows(
        select(job.c.id, job.c.name, job.c.state)
        .where((job.c.id == text) | (job.c.name == text))
        .order_by(job.c.submitted_at.desc())
        .limit(20)
    )
    found += [Found(kind="job", title=name, detail=f"job {key}, {state}", job=key) for key, name, state in rows]
    if invitation := view.find_invitation(text):
        found.append(
            Found(
                kind="invitation", title=invitation.id, detail=f"invitation of {invitation.node}", node=invitation.node
            )
        )
    if token := view.find_token(text):
        found.append(Found(kind="token", title=token.name, detail=f"operator token {token.id}, {token.role}"))
    rows = view.rows(select(certificate.c.serial, certificate.c.node).where(certificate.c.serial == text.lower()))
    found += [Found(kind="certificate", title=s, detail=f"certificate of {n}", node=n or "") for s, n in rows]
    return found


def _digests(view: View, digits: str) -> list[Found]:
    upper = digits + "g"  # sorts after every continuation
    art, given, job, event = models.artifact, models.contribution, models.job, models.event
    rows = view.rows(
        select(art.c.digest, art.c.kind, art.c.job, art.c.size)
        .where(art.c.digest >= digits, art.c.digest < upper)
        .limit(20)
    )
    found = [
        Found(kind="artifact", title=digest, detail=f"{kind}, {size} bytes", job=owner or "", digest=digest)
        for digest, kind, owner, size in rows
    ]
    statement = select(given.c.digest, given.c.node, given.c.job).limit(20)
    for digest, node, owner in view.rows(statement.where(given.c.digest >= digits, given.c.digest < upper)):
        found.append(
            Found(
                kind="contribution", title=digest, detail=f"contributed by {node}", job=owner, node=node, digest=digest
            )
        )
    statement = select(job.c.id, job.c.name, job.c.model_digest).limit(20)
    for key, name, digest in view.rows(statement.where(job.c.model_digest >= digits, job.c.model_digest < upper)):
        found.append(Found(kind="model", title=digest, detail=f"model of {name}", job=key, digest=digest))
    if len(digits) == 64:
        statement = select(event.c.sequence, event.c.kind).where(event.c.hash == bytes.fromhex(digits)).limit(1)
        for sequence, kind in view.rows(statement):
            found.append(
                Found(kind="event", title=f"Entry {sequence}: {kind}", detail="by its hash", sequence=sequence)
            )
    return found


def known_kinds(view: View) -> Sequence[str]:
    """The kinds of the newest thousand events, for the filter."""
    table = models.event
    newest = select(table.c.kind).order_by(table.c.sequence.desc()).limit(1000).subquery()
    return sorted(kind for (kind,) in view.rows(select(newest.c.kind).distinct()))
