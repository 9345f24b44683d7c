"""What a person on call must see first: is the federation healthy, whose move is it, and what is next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from hanse.errors import Owner, Reason
from hanse.ledger import Job, JobState, Node, Trust, View, models
from hanse_dashboard.queries.jobs import JobRow, job_counts, job_rows, seconds_left
from hanse_dashboard.queries.nodes import node_counts
from hanse_dashboard.queries.paging import Instant
from hanse_dashboard.queries.rounds import stragglers
from hanse_dashboard.queries.trail import EventRow, event_rows
from hanse_dashboard.words import span

__all__ = ["Attention", "Overview", "Running", "overview", "slow_nodes"]

_RECENT_S = 86_400.0
_MOST = 50


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Something that is not as it should be, who can mend it, and how."""

    tone: str
    title: str
    sentence: str
    remedy: str
    owner: str
    code: str
    since: Instant
    job: str = ""
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A job that runs, and how far it is."""

    job: JobRow
    phase: str
    answered: int
    assigned: int
    seconds_left: float | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The first page."""

    nodes: dict[str, int]
    jobs: dict[str, int]
    attention: Sequence[Attention]
    running: Sequence[Running]
    recent: Sequence[JobRow]
    events: Sequence[EventRow]
    bytes_today: int
    contributions_today: int
    head: int
    head_hash: str
    head_at: Instant | None


def slow_nodes(view: View, now: float) -> frozenset[str]:
    """Nodes that are far behind the others of their phase."""
    return frozenset(item.node for item, _, _ in stragglers(view, now))


def overview(view: View, now: float) -> Overview:
    """The whole federation at a glance."""
    given = models.contribution
    size, count = view.rows(
        select(func.sum(given.c.size), func.count()).where(
            given.c.received_at > now - _RECENT_S, given.c.node.in_(select(models.node.c.name))
        )
    )[0]
    head = view.head()
    newest = event_rows(view, limit=8).rows
    return Overview(
        nodes=node_counts(view),
        jobs=job_counts(view),
        attention=attention(view, now),
        running=_running(view),
        recent=job_rows(view, limit=6).rows,
        events=newest,
        bytes_today=int(size or 0),
        contributions_today=count,
        head=head.sequence,
        head_hash=head.hash.hex(),
        head_at=newest[0].at if newest else None,
    )


def _running(view: View) -> list[Running]:
    found = []
    for row in job_rows(view, states=[JobState.RUNNING], limit=10).rows:
        tallies = view.phase_tallies(row.id, limit=40)
        last = tallies[-1] if tallies else None
        found.append(
            Running(
                job=row,
                phase=last.phase.name if last else "",
                answered=last.delivered if last else 0,
                assigned=last.assigned if last else 0,
                seconds_left=seconds_left(view.job(row.id), tallies),
            )
        )
    return found


# ---- What needs somebody
def attention(view: View, now: float) -> list[Attention]:
    """Everything that waits for somebody, the worst first."""
    found = [*_jobs(view, now), *_stragglers(view, now), *_nodes(view, now)]
    order = {"bad": 0, "warn": 1}
    return sorted(found, key=lambda item: (order.get(item.tone, 2), -item.since))[:_MOST]


def _jobs(view: View, now: float) -> list[Attention]:
    table = models.job
    states = [JobState.WAITING.value, JobState.PAUSED.value, JobState.FAILED.value]
    statement = view._select(table, Job).where(table.c.state.in_(states)).order_by(table.c.since.desc()).limit(_MOST)
    found = []
    for job in view._all(Job, statement):
        if job.state is JobState.FAILED and now - job.since > _RECENT_S:
            continue  # old news
        reason = job.reason or Reason(
            code=job.state.value.upper(), sentence="No reason was recorded.", owner=Owner.OPERATOR
        )
        found.append(
            Attention(
                tone="bad" if job.state is JobState.FAILED else "warn",
                title=f"Job {job.name} {'has failed' if job.state is JobState.FAILED else f'is {job.state.value}'}",
                sentence=reason.sentence,
                remedy=reason.remedy,
                owner=reason.owner.value,
                code=reason.code,
                since=job.since,
                job=job.id,
            )
        )
    return found


def _stragglers(view: View, now: float) -> list[Attention]:
    names: dict[str, str] = {}
    found = []
    for item, phase, seconds in stragglers(view, now):
        name = names.setdefault(item.job, view.job(item.job).name)
        found.append(
            Attention(
                tone="warn",
                title=f"Node {item.node} is slow",
                sentence=f"It has worked on {phase.name} of {name}, round {phase.round}, for {span(seconds)}; "
                "most others have answered in less than half of that.",
                remedy="Ask the site how the machine is; the round goes on without it at the deadline.",
                owner=Owner.SITE.value,
                code="SLOW_NODE",
                since=item.offered_at,
                job=item.job,
                node=item.node,
            )
        )
    return found


def _nodes(view: View, now: float) -> list[Attention]:
    table, part = models.node, models.participation
    pending = view._select(table, Node).where(table.c.trust == Trust.PENDING.value).limit(_MOST)
    live = select(models.job.c.id).where(models.job.c.state.in_(["running", "waiting"]))
    needed = select(part.c.node).where(part.c.job.in_(live), part.c.decision == "accepted")
    gone = view._select(table, Node).where(
        table.c.trust == Trust.APPROVED.value, table.c.online.is_(False), table.c.name.in_(needed)
    )
    found = [_waits(node) for node in view._all(Node, pending)]
    found += [_offline(node, now) for node in view._all(Node, gone.limit(_MOST))]
    return [*found, *_renewals(view, now)]


def _waits(node: Node) -> Attention:
    return Attention(
        tone="warn",
        title=f"Node {node.name} waits for approval",
        sentence="It has come with a key of its own and shows a fingerprint.",
        remedy="Compare the fingerprint with the site, by telephone, and approve it.",
        owner=Owner.OPERATOR.value,
        code="WAITS_FOR_APPROVAL",
        since=node.created_at,
        node=node.name,
    )


def _offline(node: Node, now: float) -> Attention:
    return Attention(
        tone="bad",
        title=f"Node {node.name} is offline",
        sentence="A job that it takes part in goes on without it.",
        remedy="Ask the site: is the machine on, does hanse-agent run, does `hanse-agent doctor` find a fault?",
        owner=Owner.SITE.value,
        code="NODE_OFFLINE",
        since=node.last_seen_at or now,
        node=node.name,
    )


def _renewals(view: View, now: float) -> list[Attention]:
    table, node = models.certificate, models.node
    last = (
        select(table.c.node, func.max(table.c.not_after).label("until"), func.max(table.c.not_before).label("begun"))
        .where(table.c.revoked_at.is_(None), table.c.node.is_not(None))
        .group_by(table.c.node)
        .subquery()
    )
    rows = view.rows(
        select(last.c.node, last.c.until)
        .join(node, node.c.name == last.c.node)
        .where(node.c.trust == Trust.APPROVED.value, last.c.until - now < (last.c.until - last.c.begun) / 4)
        .limit(_MOST)
    )
    return [
        Attention(
            tone="bad" if until <= now else "warn",
            title=f"The certificate of {name} " + ("has run out" if until <= now else "runs out"),
            sentence=f"It was good until {span(now - until)} ago."
            if until <= now
            else f"It is good for another {span(until - now)} and was not renewed in time.",
            remedy=f"Start hanse-agent there; it renews by itself. Too late? hanse node invite {name} --again"
            if until > now
            else f"hanse node invite {name} --again",
            owner=Owner.SITE.value,
            code="CERTIFICATE_EXPIRES",
            since=min(until, now),
            node=name,
        )
        for name, until in rows
    ]
