"""Rounds: the grid of rounds and nodes, one round's timeline, and metrics over rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, select

from hanse.errors import NotFound, Reason
from hanse.ledger import Assignment, AssignmentState, Contribution, JobState, Metric, Phase, PhaseState, View, models
from hanse_dashboard.queries.paging import Instant, Moment

__all__ = [
    "Bar",
    "Cell",
    "Grid",
    "PhaseBlock",
    "RoundDetail",
    "grid",
    "round_detail",
]

# The worst of a node's assignments in a round is what the round's cell shows.
_SEVERITY = {
    AssignmentState.DELIVERED: 0,
    AssignmentState.WITHDRAWN: 1,
    AssignmentState.PENDING: 2,
    AssignmentState.LEASED: 3,
    AssignmentState.LATE: 4,
    AssignmentState.REFUSED: 5,
    AssignmentState.REJECTED: 6,
    AssignmentState.EXPIRED: 7,
    AssignmentState.FAILED: 8,
}
SLOW = 2.0
"""So many times the median of its phase makes a node slow."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A node in a round."""

    node: str
    round: int
    state: str
    seconds: float
    """Time at work: from being asked to the answer, all phases together."""
    share: float
    """Of the longest in the grid, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rounds (columns) and nodes (rows)."""

    rounds: Sequence[int]
    nodes: Sequence[str]
    unseen: frozenset[str]
    cells: Sequence[Cell]
    first: int
    last: int
    """The job's first and last round so far."""


def round_span(view: View, job: str) -> tuple[int, int]:
    """The first and the last round that a job has begun; (0, 0) when none."""
    table = models.phase
    row = view.rows(select(func.min(table.c.round), func.max(table.c.round)).where(table.c.job == job))[0]
    return (row[0] or 0, row[1] or 0)


def grid(view: View, job: str, *, until: int | None = None, width: int = 40) -> Grid:
    """The last `width` rounds, or those that end at `until`."""
    first, last = round_span(view, job)
    end = last if until is None else max(first, min(until, last))
    begin = max(first, end - width + 1)
    phase, assignment = models.phase, models.assignment
    rows = view.rows(
        select(
            phase.c.round,
            assignment.c.node,
            assignment.c.state,
            assignment.c.unseen,
            assignment.c.offered_at,
            assignment.c.ended_at,
        )
        .join(assignment, assignment.c.phase == phase.c.id)
        .where(phase.c.job == job, phase.c.round >= begin, phase.c.round <= end, phase.c.state != "abandoned")
    )
    found: dict[tuple[str, int], tuple[AssignmentState, float]] = {}
    unseen = set()
    for number, node, word, is_unseen, offered, ended in rows:
        state, seconds = AssignmentState(word), (ended - offered if ended else 0.0)
        if is_unseen:
            unseen.add(node)
        worst, total = found.get((node, number), (state, 0.0))
        if _SEVERITY[state] > _SEVERITY[worst]:
            worst = state
        found[node, number] = (worst, total + seconds)
    longest = max((seconds for _, seconds in found.values()), default=0.0) or 1.0
    cells = [
        Cell(node=node, round=number, state=state.value, seconds=seconds, share=seconds / longest)
        for (node, number), (state, seconds) in sorted(found.items())
    ]
    return Grid(
        rounds=range(begin, end + 1) if found or last else (),
        nodes=sorted({node for node, _ in found}, key=lambda node: (node in unseen, node)),
        unseen=frozenset(unseen),
        cells=cells,
        first=first,
        last=last,
    )


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A node in a phase: asked, answered, and then waiting for the others."""

    node: str
    unseen: bool
    state: str
    offered_at: Instant
    ended_at: Moment
    seconds: float | None
    """At work; None when it never answered."""
    bytes: int | None
    digest: str | None
    received_at: Moment
    late: bool
    slow: bool
    """More than twice the median of its phase."""
    stage: str
    fraction: float
    reason: Reason | None


@dataclass(frozen=True, kw_only=True)
class PhaseBlock:
    """A phase of a round, with a bar for each node."""

    id: str
    name: str
    purpose: str
    audience: str
    attempt: int
    state: str
    reason: Reason | None
    opened_at: Instant
    closed_at: Moment
    deadline_at: Moment
    quorum: int
    delivered: int
    quorum_at: Moment
    """When the quorum was reached."""
    last_answer_at: Moment
    median_seconds: float | None
    bytes: int
    bars: Sequence[Bar]
    """Those still at work first, then the slowest."""


@dataclass(frozen=True, kw_only=True)
class RoundDetail:
    """A round of a job."""

    job: str
    number: int
    opened_at: Instant
    closed_at: Moment
    phases: Sequence[PhaseBlock]
    nodes: Sequence[str]
    """Those that were asked, the slowest first."""
    work_seconds: float
    wait_seconds: float
    """All nodes' time at work, and their time waiting for others."""
    bytes: int
    metrics: Sequence[Metric] = field(repr=False)


def round_detail(view: View, job: str, number: int) -> RoundDetail:
    """One round as it went.

    Raises:
        NotFound: the job has not begun that round.
    """
    table = models.phase
    statement = view._select(table, Phase).where(table.c.job == job, table.c.round == number)
    phases = view._all(Phase, statement.order_by(table.c.ordinal, table.c.attempt))
    if not phases:
        first, last = round_span(view, job)
        raise NotFound(
            f"The job has not begun round {number}.", remedy=f"It has rounds {first} to {last}.", code="NO_ROUND"
        )
    over = view.job(job).state.ended
    blocks = [_block(view, phase, over=over) for phase in phases]
    totals: dict[str, float] = {}
    work = wait = 0.0
    for block in blocks:
        for bar in block.bars:
            totals[bar.node] = totals.get(bar.node, 0.0) + (bar.seconds or 0.0)
            work += bar.seconds or 0.0
            if bar.ended_at and block.last_answer_at:
                wait += max(0.0, block.last_answer_at - bar.ended_at)
    return RoundDetail(
        job=job,
        number=number,
        opened_at=phases[0].opened_at,
        closed_at=phases[-1].closed_at if phases[-1].state.ended else None,
        phases=blocks,
        nodes=sorted(totals, key=lambda node: (-totals[node], node)),
        work_seconds=work,
        wait_seconds=wait,
        bytes=sum(block.bytes for block in blocks),
        metrics=_round_metrics(view, job, number),
    )


def _block(view: View, phase: Phase, *, over: bool) -> PhaseBlock:
    given = {item.assignment: item for item in view.contributions(phase.id)}
    assignments = view.assignments(phase.id)
    taken = [item.ended_at - item.offered_at for item in assignments if item.ended_at and item.id in given]
    median = statistics.median(taken) if taken else None
    answered = sorted(
        given[item.id].received_at for item in assignments if item.id in given and not given[item.id].late
    )
    settled = [item.ended_at for item in assignments if item.ended_at]
    return PhaseBlock(
        id=phase.id,
        name=phase.name,
        purpose=phase.purpose.value,
        audience=phase.audience.value,
        attempt=phase.attempt,
        state=phase.state.value,
        reason=phase.reason,
        opened_at=phase.opened_at,
        closed_at=phase.closed_at,
        deadline_at=phase.deadline_at,
        quorum=phase.quorum,
        delivered=sum(item.state is AssignmentState.DELIVERED for item in assignments),
        quorum_at=answered[phase.quorum - 1] if 0 < phase.quorum <= len(answered) else None,
        last_answer_at=max(settled, default=None),
        median_seconds=median,
        bytes=sum(item.size for item in given.values()),
        bars=sorted(
            (_bar(item, given.get(item.id), median, phase, over=over) for item in assignments),
            key=lambda bar: (bar.seconds is not None, -(bar.seconds or 0.0), bar.node),
        ),
    )


def _bar(item: Assignment, given: Contribution | None, median: float | None, phase: Phase, *, over: bool) -> Bar:
    ended = item.ended_at or (phase.closed_at if phase.state.ended or over else None)
    seconds = ended - item.offered_at if ended else None
    return Bar(
        node=item.node,
        unseen=item.unseen,
        state=item.state.value,
        offered_at=item.offered_at,
        ended_at=ended,
        seconds=seconds,
        bytes=given.size if given else None,
        digest=given.digest if given else None,
        received_at=given.received_at if given else None,
        late=bool(given and given.late),
        slow=bool(median and seconds and seconds > SLOW * median and seconds - median > 1.0),
        stage=item.stage,
        fraction=item.fraction,
        reason=item.reason,
    )


def _round_metrics(view: View, job: str, number: int) -> list[Metric]:
    table = models.metric
    phases = select(models.phase.c.id).where(models.phase.c.job == job, models.phase.c.round == number)
    statement = view._select(table, Metric).where(table.c.job == job, table.c.phase.in_(phases))
    return view._all(Metric, statement.order_by(table.c.scope.desc(), table.c.name, table.c.node))


def stragglers(view: View, now: float) -> list[tuple[Assignment, Phase, float]]:
    """Assignments that are open for more than twice what the others of their phase took, and their phases."""
    table = models.phase
    running = select(models.job.c.id).where(models.job.c.state == JobState.RUNNING.value)
    statement = view._select(table, Phase).where(table.c.state == PhaseState.COLLECTING.value, table.c.job.in_(running))
    found = []
    for phase in view._all(Phase, statement):
        assignments = view.assignments(phase.id)
        taken = [
            item.ended_at - item.offered_at
            for item in assignments
            if item.state is AssignmentState.DELIVERED and item.ended_at
        ]
        if len(taken) * 2 < len(assignments):
            continue
        limit = max(SLOW * statistics.median(taken), 5.0)
        found += [
            (item, phase, now - item.offered_at)
            for item in assignments
            if not item.state.ended and now - item.offered_at > limit
        ]
    return found
