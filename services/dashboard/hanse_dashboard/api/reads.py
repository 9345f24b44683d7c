"""What can be read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from hanse.errors import NotFound
from hanse_dashboard.access import Caller
from hanse_dashboard.api.tables import AS_FILE, Format, csv_file, plain, whole_list
from hanse_dashboard.pages.jobs import states_of
from hanse_dashboard.pages.nodes import online_of, trust_of
from hanse_dashboard.queries import jobs, metrics, models, nodes, rounds, tokens, trail
from hanse_dashboard.queries.overview import Attention, attention, slow_nodes
from hanse_dashboard.queries.paging import Instant, Moment, Page
from hanse_dashboard.state import Admin, Dashboard, Desk, Viewer

router = APIRouter()

Limit = Annotated[int, Query(ge=1, le=1000, description="Rows of a page.")]
After = Annotated[str, Query(max_length=200, description="`next` of the page before.")]
Word = Annotated[str, Query(max_length=200)]
As = Annotated[Format, Query(alias="format", description="`csv`: the whole list as a file.")]
JobId = Annotated[str, Path(max_length=200, description="Id, or the name of the newest job of that name.")]
NodeName = Annotated[str, Path(max_length=200)]
Number = Annotated[int, Path(ge=0, lt=2**31)]


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


@dataclass(frozen=True, kw_only=True)
class JobDocument:
    """A job with everything that does not grow with its rounds."""

    job: jobs.JobRow
    specification: Mapping[str, Any]
    participants: Sequence[jobs.Participant]
    metrics: Sequence[jobs.MetricNow]
    seconds_left: float | None
    bytes: int
    ledger_sequence: int


@dataclass(frozen=True, kw_only=True)
class RoundDocument:
    """A round and its phases."""

    job: str
    number: int
    opened_at: Instant
    closed_at: Moment
    phases: Sequence[rounds.PhaseBlock]
    work_seconds: float
    wait_seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class NodeDocument:
    """A node, what it offers and what left it."""

    node: nodes.NodeRow
    offers: Sequence[nodes.DatasetOffer]
    jobs: int
    contributions: int
    bytes: int
    policy_digest: str | None
    ledger_sequence: int


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


# ---- Jobs
@router.get("/jobs", response_model=Page[jobs.JobRow], responses=AS_FILE)
def list_jobs(
    desk: Desk,
    caller: Viewer,
    state: Word = "",
    method: Word = "",
    q: Word = "",
    after: After = "",
    limit: Limit = 50,
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """Jobs, newest first. `state` may be `active`; `q` is a part of the name."""
    states = states_of(state)

    def read(place: str, size: int = 500) -> Page[jobs.JobRow]:
        with desk.read() as view:
            return jobs.job_rows(view, states=states, method=method, text=q, after=place, limit=size)

    if format is Format.CSV:
        return whole_list(read, "jobs", caller, most=desk.settings.largest_export)
    return read(after, limit)


@router.get("/jobs/{job}")
def get_job(desk: Desk, caller: Viewer, job: JobId) -> JobDocument:
    """One job."""
    with desk.read() as view:
        found = jobs.job_detail(view, jobs.find_job(view, job).id)
    return JobDocument(
        job=found.job,
        specification=found.specification,
        participants=found.participants,
        metrics=found.metrics,
        seconds_left=found.seconds_left,
        bytes=found.bytes,
        ledger_sequence=found.sequence,
    )


@router.get("/jobs/{job}/participants", response_model=list[jobs.Participant], responses=AS_FILE)
def job_participants(desk: Desk, caller: Viewer, job: JobId, format: As = Format.JSON) -> Any:  # noqa: A002
    """Who was asked, what they said, and how much each sent."""
    with desk.read() as view:
        found = jobs.job_detail(view, jobs.find_job(view, job).id).participants
    return csv_file(found, f"participants-{len(found)}") if format is Format.CSV else found


@router.get("/jobs/{job}/grid", response_model=list[rounds.Cell], responses=AS_FILE)
def job_grid(
    desk: Desk,
    caller: Viewer,
    job: JobId,
    until: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    width: Annotated[int, Query(ge=1, le=500)] = 100,
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """Rounds and nodes: how each node did in each of the last `width` rounds."""
    with desk.read() as view:
        found = rounds.grid(view, jobs.find_job(view, job).id, until=until, width=width).cells
    return csv_file(found, "rounds-and-nodes") if format is Format.CSV else found


@router.get("/jobs/{job}/rounds/{number}", response_model=RoundDocument, responses=AS_FILE)
def job_round(desk: Desk, caller: Viewer, job: JobId, number: Number, format: As = Format.JSON) -> Any:  # noqa: A002
    """One round, phase by phase and node by node."""
    with desk.read() as view:
        found = rounds.round_detail(view, jobs.find_job(view, job).id, number)
    if format is Format.CSV:
        rows = [
            {"phase": block.name, "attempt": block.attempt, **plain(bar)}
            for block in found.phases
            for bar in block.bars
        ]
        return csv_file(rows, f"round-{number}")
    return RoundDocument(
        job=found.job,
        number=found.number,
        opened_at=found.opened_at,
        closed_at=found.closed_at,
        phases=found.phases,
        work_seconds=found.work_seconds,
        wait_seconds=found.wait_seconds,
        bytes=found.bytes,
    )


@router.get("/jobs/{job}/metrics", response_model=list[metrics.Curve], responses=AS_FILE)
def job_metrics(desk: Desk, caller: Viewer, job: JobId, name: Word = "", format: As = Format.JSON) -> Any:  # noqa: A002
    """A metric (or all) over rounds: pooled, of the unseen nodes, of the aggregation, and of each node."""
    with desk.read() as view:
        key = jobs.find_job(view, job).id
        names = [word for word, _ in metrics.metric_names(view, key)]
        if name and name not in names:
            raise NotFound(f"The job has no metric {name}.", remedy=f"It has: {', '.join(names)}.", code="NO_METRIC")
        found = [curve for word in ([name] if name else names) for curve in metrics.curves(view, key, word)]
    if format is Format.CSV:
        rows = [
            {"name": curve.name, "scope": curve.scope, "node": curve.node, "round": number, "value": value}
            for curve in found
            for number, value in zip(curve.rounds, curve.values, strict=True)
        ]
        return csv_file(rows, "metrics", ["name", "scope", "node", "round", "value"])
    return found


# ---- Nodes
@router.get("/nodes", response_model=Page[nodes.NodeRow], responses=AS_FILE)
def list_nodes(
    desk: Desk,
    caller: Viewer,
    trust: Word = "",
    health: Word = "",
    q: Word = "",
    after: After = "",
    limit: Limit = 100,
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """Nodes in order of name, on two axes: trust and health."""
    wanted, online, answers = trust_of(trust), online_of(health), desk.coordinator.presence().answers

    def read(place: str, size: int = 500) -> Page[nodes.NodeRow]:
        now = time.time()
        with desk.read() as view:
            return nodes.node_rows(
                view,
                now=now,
                coordinator_answers=answers,
                slow=slow_nodes(view, now),
                trust=wanted,
                online=online,
                text=q,
                after=place,
                limit=size,
            )

    if format is Format.CSV:
        return whole_list(read, "nodes", caller, most=desk.settings.largest_export)
    return read(after, limit)


@router.get("/nodes/{name}")
def get_node(desk: Desk, caller: Viewer, name: NodeName) -> NodeDocument:
    """One node."""
    now = time.time()
    with desk.read() as view:
        found = nodes.node_detail(
            view,
            name,
            now=now,
            coordinator_answers=desk.coordinator.presence().answers,
            slow=name in slow_nodes(view, now),
        )
    return NodeDocument(
        node=found.node,
        offers=found.offers,
        jobs=found.jobs,
        contributions=found.contributions,
        bytes=found.bytes,
        policy_digest=found.record.policy_digest,
        ledger_sequence=found.sequence,
    )


@router.get("/nodes/{name}/egress", response_model=Page[nodes.EgressRow], responses=AS_FILE)
def node_egress(
    desk: Desk,
    caller: Viewer,
    name: NodeName,
    job: Word = "",
    since: Annotated[float, Query(ge=0, description="Seconds since 1970.")] = 0.0,
    after: After = "",
    limit: Limit = 100,
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """What left a node: when, to which job, round and phase, how large, and its SHA-256."""
    with desk.read() as view:
        view.node(name)

    def read(place: str, size: int = 500) -> Page[nodes.EgressRow]:
        with desk.read() as view:
            return nodes.egress_rows(view, name, job=job, since=since, after=place, limit=size)

    if format is Format.CSV:
        return whole_list(read, f"egress-{_file_word(name)}", caller, most=desk.settings.largest_export)
    return read(after, limit)


def _file_word(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)


# ---- Models, trail, tokens
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
