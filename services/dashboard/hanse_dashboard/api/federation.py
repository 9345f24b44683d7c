"""The federation as a whole: how it is, its models, its audit trail, its tokens; and who asks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from hanse_dashboard.access import Caller
from hanse_dashboard.api.parameters import After, As, Limit, Word
from hanse_dashboard.api.tables import AS_FILE, Format, csv_file, whole_list
from hanse_dashboard.queries import jobs, models, nodes, tokens, trail
from hanse_dashboard.queries.overview import Attention, attention
from hanse_dashboard.queries.paging import Page
from hanse_dashboard.state import Admin, Dashboard, Desk, Viewer

router = APIRouter()


@dataclass(frozen=True, kw_only=True)
class FederationState:
    """The federation at a glance."""

    name: str
    coordinator_answers: bool
    coordinator_fault: str
    nodes: Mapping[str, int]
    jobs: Mapping[str, int]
    attention: Sequence[Attention]
    ledger_sequence: int
    ledger_hash: str


@router.get("/federation")
def federation(desk: Desk, caller: Viewer) -> FederationState:
    """Is it healthy, and what needs somebody?"""
    presence = desk.coordinator.presence()
    with desk.read() as view:
        head = view.head()
        return FederationState(
            name=desk.settings.name,
            coordinator_answers=presence.answers,
            coordinator_fault="" if presence.answers else f"{presence.sentence} {presence.remedy}".strip(),
            nodes=nodes.node_counts(view),
            jobs=jobs.job_counts(view),
            attention=attention(view, time.time()),
            ledger_sequence=head.sequence,
            ledger_hash=head.hash.hex(),
        )


@router.get("/models", response_model=Page[models.ModelRow], responses=AS_FILE)
def list_models(desk: Desk, caller: Viewer, after: After = "", limit: Limit = 50, format: As = Format.JSON) -> Any:  # noqa: A002
    """The newest model of each job, and where it came from."""

    def read(place: str, size: int = 200) -> Page[models.ModelRow]:
        with desk.read() as view:
            return models.model_rows(view, after=place, limit=size)

    if format is Format.CSV:
        return whole_list(read, "models", caller, most=desk.settings.largest_export)
    return read(after, limit)


@router.get("/events", response_model=Page[trail.EventRow], responses=AS_FILE)
def list_events(
    desk: Desk,
    caller: Viewer,
    job: Word = "",
    node: Word = "",
    kind: Word = "",
    actor: Word = "",
    after: After = "",
    limit: Limit = 100,
    oldest_first: bool = False,
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """The audit trail, newest first unless asked otherwise."""

    def read(place: str, size: int = 1000, *, newest_first: bool = False) -> Page[trail.EventRow]:
        with desk.read() as view:
            return trail.event_rows(
                view, job=job, node=node, kind=kind, actor=actor, after=place, limit=size, newest_first=newest_first
            )

    if format is Format.CSV:
        return whole_list(read, "ledger", caller, most=desk.settings.largest_export)
    return read(after, limit, newest_first=not oldest_first)


@router.get("/events/{sequence}")
def get_event(desk: Desk, caller: Viewer, sequence: Annotated[int, Path(ge=1, lt=2**62)]) -> trail.Entry:
    """One entry, with the bytes that were hashed and whether they fit."""
    with desk.read() as view:
        return trail.entry(view, sequence)


@router.get("/search")
def search(desk: Desk, caller: Viewer, q: Annotated[str, Query(min_length=1, max_length=200)]) -> list[trail.Found]:
    """Everything that bears a name, number, id or digest."""
    with desk.read() as view:
        return trail.find(view, q)


@router.get("/tokens", response_model=list[tokens.TokenRow], responses=AS_FILE)
def list_tokens(desk: Desk, caller: Admin, format: As = Format.JSON) -> Any:  # noqa: A002
    """Operator tokens, without their secrets."""
    with desk.read() as view:
        found = tokens.token_rows(view, time.time())
    return csv_file(found, "tokens") if format is Format.CSV else found


@router.get("/me")
def me(desk: Desk, caller: Viewer) -> dict[str, Any]:
    """Who you are here, and what you may do."""
    return _me(desk, caller)


def _me(desk: Dashboard, caller: Caller) -> dict[str, Any]:
    may = [words for words, needed in tokens.PERMISSIONS if caller.role.allows(needed)]
    return {"name": caller.name, "role": caller.role.value, "may": may}
