"""Jobs in lists, and one job as a whole."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, func, or_, select, tuple_

from hanse.errors import NotFound, Reason
from hanse.ledger import Job, JobState, PhaseTally, View, models
from hanse.method import Scope
from hanse_dashboard.queries.paging import Instant, Moment, Page, page_of
from hanse_dashboard.words import headline_first, lower_is_better

__all__ = [
    "JobDetail",
    "JobRow",
    "MetricNow",
    "Participant",
    "find_job",
    "job_counts",
    "job_detail",
    "job_rows",
    "seconds_left",
]


@dataclass(frozen=True, kw_only=True)
class MetricNow:
    """A metric of a whole job: its last and its best value."""

    name: str
    scope: str
    last: float
    best: float
    round: int
    best_round: int | None
    """In lists of many jobs it is not looked up."""
    lower_is_better: bool


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job in a list."""

    id: str
    name: str
    method: str
    dataset: str
    state: str
    reason: Reason | None
    since: Instant
    submitted_at: Instant
    ended_at: Moment
    submitted_by: str
    round: int
    rounds: int
    metric: MetricNow | None
    """The job's first pooled metric; accuracy before others."""
    model_digest: str | None
    continue_from: str | None


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A node in a job."""

    node: str
    decision: str
    reason: Reason | None
    unseen: bool
    bytes: int
    rows: int | None
    """Records that the node offers, as it said."""


@dataclass(frozen=True, kw_only=True)
class JobDetail:
    """One job."""

    job: JobRow
    specification: Mapping[str, Any]
    participants: Sequence[Participant]
    metrics: Sequence[MetricNow]
    seconds_left: float | None
    bytes: int
    sequence: int
    """The ledger's head when this was read."""
    phases: Sequence[PhaseTally] = field(repr=False)


def _row(job: Job, metric: MetricNow | None) -> JobRow:
    return JobRow(
        id=job.id,
        name=job.name,
        method=job.method,
        dataset=job.dataset,
        state=job.state.value,
        reason=job.reason,
        since=job.since,
        submitted_at=job.submitted_at,
        ended_at=job.ended_at,
        submitted_by=job.submitted_by,
        round=job.round,
        rounds=job.rounds,
        metric=metric,
        model_digest=job.model_digest,
        continue_from=job.continue_from,
    )


def find_job(view: View, name: str) -> Job:
    """A job by id, or the newest of that name.

    Raises:
        NotFound: there is none.
    """
    found = view.find_job(name)
    if found is not None:
        return found
    try:
        return view.job_by_name(name)
    except NotFound:
        raise NotFound(
            f"There is no job {name[:100]} in the ledger.", remedy="The list of jobs shows them all.", code="NO_JOB"
        ) from None


def job_rows(
    view: View,
    *,
    states: Iterable[JobState] = (),
    method: str = "",
    text: str = "",
    after: str = "",
    limit: int = 50,
    with_model: bool = False,
) -> Page[JobRow]:
    """Jobs, newest first; `text` is a part of the name.

    Raises:
        NotFound: `after` is no job.
    """
    table = models.job
    statement = view._select(table, Job).order_by(table.c.submitted_at.desc(), table.c.id.desc()).limit(limit + 1)
    if words := [str(word) for word in states]:
        statement = statement.where(table.c.state.in_(words))
    if method:
        statement = statement.where(table.c.method == method)
    if text:
        statement = statement.where(func.lower(table.c.name).contains(text.lower(), autoescape=True))
    if with_model:
        statement = statement.where(table.c.model_digest.is_not(None))
    if after:
        place = view.job(after)
        same = and_(table.c.submitted_at == place.submitted_at, table.c.id < place.id)
        statement = statement.where(or_(table.c.submitted_at < place.submitted_at, same))
    jobs = view._all(Job, statement)
    metrics = pooled_metrics(view, [job.id for job in jobs])
    rows = [_row(job, _first(metrics.get(job.id, ()))) for job in jobs]
    return page_of(rows, limit, lambda row: row.id)


def job_counts(view: View) -> dict[str, int]:
    """How many jobs are in each state."""
    table = models.job
    return dict(tuple(row) for row in view.rows(select(table.c.state, func.count()).group_by(table.c.state)))


_FEW = 5


def _first(metrics: Sequence[MetricNow]) -> MetricNow | None:
    """The metric that speaks for a job in a list."""
    pooled = [metric for metric in metrics if metric.scope == Scope.POOLED]
    return min(pooled, key=lambda metric: headline_first(metric.name), default=None)


def pooled_metrics(view: View, jobs: Sequence[str]) -> dict[str, list[MetricNow]]:
    """The metrics of whole jobs (not of single nodes): last and best. For few jobs, also the best one's round."""
    if not jobs:
        return {}
    table = models.metric
    key = (table.c.job, table.c.name, table.c.scope)
    whole = (table.c.job.in_(jobs), table.c.scope.in_(["pooled", "unseen"]))
    groups = view.rows(
        select(*key, func.max(table.c.id), func.min(table.c.value), func.max(table.c.value))
        .where(*whole)
        .group_by(*key)
    )
    newest = [group[3] for group in groups]
    last = {
        number: (round_number, value)
        for number, round_number, value in view.rows(
            select(table.c.id, table.c.round, table.c.value).where(table.c.id.in_(newest))
        )
    }
    best = {tuple(group[:3]): group[4] if lower_is_better(group[1]) else group[5] for group in groups}
    best_rounds: dict[tuple[str, ...], int] = {}
    if len(jobs) <= _FEW and best:
        wanted = tuple_(*key, table.c.value).in_([(*name, value) for name, value in best.items()])
        statement = select(*key, func.min(table.c.round)).where(wanted).group_by(*key)
        best_rounds = {tuple(row[:3]): row[3] for row in view.rows(statement)}
    found: dict[str, list[MetricNow]] = {}
    for job, name, scope, number, *_ in sorted(groups):
        found.setdefault(job, []).append(
            MetricNow(
                name=name,
                scope=scope,
                last=last[number][1],
                best=best[job, name, scope],
                round=last[number][0],
                best_round=best_rounds.get((job, name, scope)),
                lower_is_better=lower_is_better(name),
            )
        )
    return found


def job_detail(view: View, job_id: str) -> JobDetail:
    """Everything about a job that does not grow with its rounds.

    Raises:
        NotFound: there is no such job.
    """
    job = view.job(job_id)
    sent = view.bytes_by_node(job.id)
    phases = view.phase_tallies(job.id, limit=40)
    found = pooled_metrics(view, [job.id]).get(job.id, [])
    metrics = sorted(found, key=lambda metric: (headline_first(metric.name), metric.scope))
    participants = [
        Participant(
            node=item.node,
            decision=item.decision.value,
            reason=item.reason,
            unseen=item.unseen,
            bytes=sent.get(item.node, 0),
            rows=_rows(item.dataset),
        )
        for item in view.participations(job.id)
    ]
    return JobDetail(
        job=_row(job, _first(metrics)),
        specification=specification(job),
        participants=participants,
        metrics=metrics,
        seconds_left=seconds_left(job, phases),
        bytes=sum(sent.values()),
        sequence=view.head().sequence,
        phases=phases,
    )


def specification(job: Job) -> dict[str, Any]:
    """The job file as it was submitted."""
    try:
        document = json.loads(job.specification)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _rows(dataset: Mapping[str, Any] | None) -> int | None:
    try:
        return int(dataset["rows"]) if dataset else None
    except (KeyError, TypeError, ValueError):
        return None


def seconds_left(job: Job, phases: Sequence[PhaseTally]) -> float | None:
    """Rounds that are left times the median length of the last complete ones; None while nobody can know."""
    if job.state is not JobState.RUNNING:
        return None
    spans: dict[int, float] = {}
    for tally in phases:
        phase = tally.phase
        if phase.closed_at and 0 < phase.round < job.round:
            spans[phase.round] = spans.get(phase.round, 0.0) + phase.closed_at - phase.opened_at
    if len(spans) > 1:
        spans.pop(min(spans))  # the first one that was read may have been cut
    if not spans:
        return None
    return statistics.median(spans.values()) * (job.rounds - job.round + 1)
