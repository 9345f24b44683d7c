"""Jobs, and one job's participants, rounds and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from hanse.errors import NotFound
from hanse_dashboard.api.parameters import After, As, Limit, Word
from hanse_dashboard.api.tables import AS_FILE, Format, csv_file, plain, whole_list
from hanse_dashboard.pages.jobs import states_of
from hanse_dashboard.queries import jobs, metrics, rounds
from hanse_dashboard.queries.paging import Instant, Moment, Page
from hanse_dashboard.state import Desk, Viewer

router = APIRouter()

JobId = Annotated[str, Path(max_length=200, description="Id, or the name of the newest job of that name.")]
Number = Annotated[int, Path(ge=0, lt=2**31)]


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
