"""What left each node: the receipts' side of the sites' own egress journals."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select

from hanse.ledger import View, models
from hanse_dashboard.queries.paging import Instant, Moment, Page, page_of, split_cursor

__all__ = ["EgressRow", "EgressTotal", "egress_rows", "egress_totals"]


@dataclass(frozen=True, kw_only=True)
class EgressRow:
    """Something that left a node and arrived: the receipt's side of the site's own egress journal."""

    at: Instant
    node: str
    job: str
    job_name: str
    method: str
    dataset: str
    round: int
    phase: str
    purpose: str
    bytes: int
    digest: str
    late: bool
    deleted_at: Moment
    """When the bytes were removed here; digest and size stay."""
    assignment: str


@dataclass(frozen=True, kw_only=True)
class EgressTotal:
    """What left a node for one job."""

    job: str
    job_name: str
    method: str
    dataset: str
    submitted_by: str
    contributions: int
    bytes: int
    first_at: Instant
    last_at: Instant


def egress_rows(
    view: View, node: str, *, job: str = "", since: float = 0.0, after: str = "", limit: int = 100
) -> Page[EgressRow]:
    """What left a node, newest first.

    Raises:
        OperatorError: `after` is no place in this list.
    """
    given, phase, work = models.contribution, models.phase, models.job
    statement = (
        select(given, phase.c.round, phase.c.name, phase.c.purpose, work.c.name, work.c.method, work.c.dataset)
        .join(phase, phase.c.id == given.c.phase)
        .join(work, work.c.id == given.c.job)
        .where(given.c.node == node)
        .order_by(given.c.received_at.desc(), given.c.assignment.desc())
        .limit(limit + 1)
    )
    if job:
        statement = statement.where(given.c.job == job)
    if since:
        statement = statement.where(given.c.received_at >= since)
    if after:
        at, key = split_cursor(after)
        same = and_(given.c.received_at == at, given.c.assignment < key)
        statement = statement.where(or_(given.c.received_at < at, same))
    rows = [
        EgressRow(
            assignment=row[0],
            job=row[2],
            node=row[3],
            digest=row[4],
            bytes=row[5],
            at=row[6],
            late=bool(row[7]),
            deleted_at=row[8],
            round=row[9],
            phase=row[10],
            purpose=row[11],
            job_name=row[12],
            method=row[13],
            dataset=row[14],
        )
        for row in view.rows(statement)
    ]
    return page_of(rows, limit, lambda row: f"{row.at!r}~{row.assignment}")


def egress_totals(view: View, node: str) -> list[EgressTotal]:
    """What left a node, by job, the newest first."""
    given, work = models.contribution, models.job
    sums = (
        select(
            given.c.job,
            func.count().label("count"),
            func.sum(given.c.size).label("size"),
            func.min(given.c.received_at).label("first"),
            func.max(given.c.received_at).label("last"),
        )
        .where(given.c.node == node)
        .group_by(given.c.job)
        .subquery()
    )
    statement = (
        select(sums, work.c.name, work.c.method, work.c.dataset, work.c.submitted_by)
        .join(work, work.c.id == sums.c.job)
        .order_by(sums.c.last.desc())
    )
    return [
        EgressTotal(
            job=row[0],
            contributions=row[1],
            bytes=int(row[2]),
            first_at=row[3],
            last_at=row[4],
            job_name=row[5],
            method=row[6],
            dataset=row[7],
            submitted_by=row[8],
        )
        for row in view.rows(statement)
    ]
