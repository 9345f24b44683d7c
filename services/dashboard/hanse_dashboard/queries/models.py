"""Models and where they came from; and how two jobs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from hanse.ledger import Job, View, models
from hanse_dashboard.queries.jobs import MetricNow, pooled_metrics, specification
from hanse_dashboard.queries.paging import Moment, Page, page_of

__all__ = ["Difference", "ModelRow", "differences", "last_good_job", "model_rows"]


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """The newest model of a job."""

    digest: str
    size: int | None
    made_at: Moment
    job: str
    job_name: str
    method: str
    dataset: str
    state: str
    round: int
    rounds: int
    submitted_by: str
    nodes: Sequence[str]
    """Nodes that trained it."""
    unseen: Sequence[str]
    continue_from: str | None
    metrics: Sequence[MetricNow]
    there: bool
    """Whether its bytes are still stored."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key of two or more job files."""

    key: str
    values: Sequence[str]
    same: bool


def model_rows(view: View, *, after: str = "", limit: int = 50) -> Page[ModelRow]:
    """Models, the newest job's first.

    Raises:
        NotFound: `after` is no job.
    """
    table, art, part = models.job, models.artifact, models.participation
    statement = view._select(table, Job).where(table.c.model_digest.is_not(None))
    if after:
        place = view.job(after)
        older = (table.c.submitted_at < place.submitted_at) | (
            (table.c.submitted_at == place.submitted_at) & (table.c.id < place.id)
        )
        statement = statement.where(older)
    jobs = view._all(Job, statement.order_by(table.c.submitted_at.desc(), table.c.id.desc()).limit(limit + 1))
    ids = [job.id for job in jobs]
    metrics = pooled_metrics(view, ids)
    stored = {
        row[0]: row
        for row in view.rows(
            select(art.c.digest, art.c.size, art.c.created_at, art.c.deleted_at).where(
                art.c.digest.in_([job.model_digest for job in jobs])
            )
        )
    }
    who: dict[str, tuple[list[str], list[str]]] = {job: ([], []) for job in ids}
    for job, node, unseen in view.rows(
        select(part.c.job, part.c.node, part.c.unseen)
        .where(part.c.job.in_(ids), part.c.decision == "accepted")
        .order_by(part.c.node)
    ):
        who[job][1 if unseen else 0].append(node)
    rows = []
    for job in jobs:
        found = stored.get(job.model_digest)
        rows.append(
            ModelRow(
                digest=job.model_digest or "",
                size=found[1] if found else None,
                made_at=found[2] if found else None,
                job=job.id,
                job_name=job.name,
                method=job.method,
                dataset=job.dataset,
                state=job.state.value,
                round=job.round,
                rounds=job.rounds,
                submitted_by=job.submitted_by,
                nodes=who[job.id][0],
                unseen=who[job.id][1],
                continue_from=job.continue_from,
                metrics=metrics.get(job.id, ()),
                there=bool(found and found[3] is None),
            )
        )
    return page_of(rows, limit, lambda row: row.job)


def last_good_job(view: View, job: Job) -> Job | None:
    """The newest job that succeeded before this one, with the same method and dataset."""
    table = models.job
    statement = view._select(table, Job).where(
        table.c.state == "succeeded",
        table.c.method == job.method,
        table.c.dataset == job.dataset,
        table.c.submitted_at < job.submitted_at,
    )
    return view._first(Job, statement.order_by(table.c.submitted_at.desc()).limit(1))


def differences(jobs: Sequence[Job]) -> list[Difference]:
    """The job files side by side, key by key, those that differ first."""
    flat = [dict(_flat(specification(job))) for job in jobs]
    keys = sorted({key for document in flat for key in document})
    rows = []
    for key in keys:
        values = [document.get(key, "–") for document in flat]
        rows.append(Difference(key=key, values=values, same=len(set(values)) == 1))
    return sorted(rows, key=lambda row: (row.same, row.key))


def _flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            found.append((prefix + str(key), ", ".join(map(str, value)) or "–"))
        else:
            found.append((prefix + str(key), "–" if value in ("", None, {}) else str(value)))
    return found
