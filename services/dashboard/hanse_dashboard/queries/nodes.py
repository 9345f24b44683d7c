"""Nodes on two axes, trust and health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from hanse.errors import Reason
from hanse.ledger import Certificate, Invitation, Node, Participation, Trust, View, models
from hanse_dashboard.queries.egress import EgressTotal, egress_totals
from hanse_dashboard.queries.paging import Moment, Page, page_of

__all__ = ["DatasetOffer", "NodeDetail", "NodeRow", "node_counts", "node_detail", "node_rows"]


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """A node in a list."""

    name: str
    trust: str
    """invited, pending, approved or revoked."""
    health: str
    """online, slow, offline, never_seen; unknown while the coordinator does not answer."""
    last_seen: Moment
    certificate_expires: Moment
    renewal_overdue: bool
    """Less than a quarter of its certificate's life is left: it should have renewed long ago."""
    program: str
    labels: Mapping[str, str]
    datasets: Sequence[str]
    methods: Sequence[str]
    fingerprint: str
    reason: Reason | None


@dataclass(frozen=True, kw_only=True)
class DatasetOffer:
    """What a node says about a dataset; never a record."""

    name: str
    kind: str
    rows: int
    columns: Sequence[str]
    target: str


@dataclass(frozen=True, kw_only=True)
class NodeDetail:
    """One node."""

    node: NodeRow
    record: Node
    offers: Sequence[DatasetOffer]
    certificates: Sequence[Certificate]
    invitations: Sequence[Invitation]
    jobs: int
    totals: Sequence[EgressTotal]
    """What left it, by job, the newest first."""
    bytes: int
    contributions: int
    sequence: int


def node_row(node: Node, expiry: tuple[float, float] | None, *, slow: bool, known: bool, now: float) -> NodeRow:
    """A node as it is shown. `expiry`: its last good certificate's life."""
    if node.last_seen_at is None and not node.online:
        health = "never_seen"
    elif node.online and not known:
        health = "unknown"
    elif node.online:
        health = "slow" if slow else "online"
    else:
        health = "offline"
    overdue = expiry is not None and expiry[1] - now < (expiry[1] - expiry[0]) / 4
    return NodeRow(
        name=node.name,
        trust=node.trust.value,
        health=health,
        last_seen=now if health in ("online", "slow") else node.last_seen_at,
        certificate_expires=expiry[1] if expiry else None,
        renewal_overdue=overdue and node.trust is Trust.APPROVED,
        program=node.program or "",
        labels=dict(node.labels),
        datasets=[str(offer.get("name", "")) for offer in node.datasets],
        methods=list(node.methods),
        fingerprint=node.pending_fingerprint or node.fingerprint or "",
        reason=node.reason,
    )


def _expiries(view: View, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    table = models.certificate
    statement = select(table.c.node, table.c.not_before, table.c.not_after)
    statement = statement.where(table.c.node.in_(names), table.c.revoked_at.is_(None)).order_by(table.c.not_after)
    return {node: (before, after) for node, before, after in view.rows(statement)}


def node_rows(
    view: View,
    *,
    now: float,
    coordinator_answers: bool,
    slow: frozenset[str] = frozenset(),
    trust: Sequence[Trust] = (),
    online: bool | None = None,
    text: str = "",
    after: str = "",
    limit: int = 100,
) -> Page[NodeRow]:
    """Nodes in order of name; `text` is a part of the name."""
    table = models.node
    statement = view._select(table, Node).where(table.c.name > after).order_by(table.c.name).limit(limit + 1)
    if trust:
        statement = statement.where(table.c.trust.in_([word.value for word in trust]))
    if online is not None:
        statement = statement.where(table.c.online.is_(online))
    if text:
        statement = statement.where(func.lower(table.c.name).contains(text.lower(), autoescape=True))
    nodes = view._all(Node, statement)
    expiries = _expiries(view, [node.name for node in nodes])
    rows = [
        node_row(node, expiries.get(node.name), slow=node.name in slow, known=coordinator_answers, now=now)
        for node in nodes
    ]
    return page_of(rows, limit, lambda row: row.name)


def node_counts(view: View) -> dict[str, int]:
    """How many nodes there are by trust, and how many approved ones are `online`."""
    table = models.node
    counts: dict[str, int] = {}
    for trust, online, count in view.rows(
        select(table.c.trust, table.c.online, func.count()).group_by(table.c.trust, table.c.online)
    ):
        counts[trust] = counts.get(trust, 0) + count
        if online and trust == Trust.APPROVED.value:
            counts["online"] = counts.get("online", 0) + count
    return counts


def node_detail(view: View, name: str, *, now: float, coordinator_answers: bool, slow: bool = False) -> NodeDetail:
    """One node.

    Raises:
        NotFound: there is no such node.
    """
    node = view.node(name)
    part = models.participation
    totals = egress_totals(view, name)
    jobs = view.rows(select(func.count()).where(part.c.node == name, part.c.decision == "accepted"))[0][0]
    return NodeDetail(
        node=node_row(node, _expiries(view, [name]).get(name), slow=slow, known=coordinator_answers, now=now),
        record=node,
        offers=[_offer(offer) for offer in node.datasets],
        certificates=view.certificates(name)[:20],
        invitations=view.invitations(name)[:20],
        jobs=jobs,
        totals=totals,
        bytes=sum(total.bytes for total in totals),
        contributions=sum(total.contributions for total in totals),
        sequence=view.head().sequence,
    )


def _offer(offer: Mapping[str, Any]) -> DatasetOffer:
    try:
        rows = int(offer.get("rows", 0))
    except (TypeError, ValueError):
        rows = 0
    columns = [str(column.get("name", "")) for column in offer.get("columns", ()) if isinstance(column, dict)]
    return DatasetOffer(
        name=str(offer.get("name", "")),
        kind=str(offer.get("kind", "")),
        rows=rows,
        columns=columns,
        target=str(offer.get("target", "")),
    )


def refusals(view: View, node: str, *, limit: int = 20) -> list[Participation]:
    """Jobs that a node's policy (or a person there) refused, with the rule, the newest first."""
    table = models.participation
    statement = view._select(table, Participation).where(table.c.node == node, table.c.decision == "refused")
    return view._all(Participation, statement.order_by(table.c.at.desc()).limit(limit))
