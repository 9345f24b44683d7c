"""Metrics: of one round, and over rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import case, func, select

from hanse.ledger import View, models
from hanse_dashboard.queries.rounds import RoundDetail
from hanse_dashboard.words import headline_first

__all__ = ["Curve", "MetricOfRound", "curves", "metric_names", "metrics_of_round"]


@dataclass(frozen=True, kw_only=True)
class MetricOfRound:
    """A metric of one round: of all nodes together (by scope), and of single nodes."""

    name: str
    whole: dict[str, float]
    nodes: Sequence[tuple[str, float]]

    @property
    def low(self) -> float:
        """The smallest of the nodes' values."""
        return min(value for _, value in self.nodes)

    @property
    def high(self) -> float:
        """The largest of the nodes' values."""
        return max(value for _, value in self.nodes)


def metrics_of_round(detail: RoundDetail) -> list[MetricOfRound]:
    """The round's metrics, one entry a name; the usual ones first. Of a phase that was repeated, the last value."""
    whole: dict[str, dict[str, float]] = {}
    nodes: dict[str, dict[str, float]] = {}
    for item in detail.metrics:
        if item.node:
            nodes.setdefault(item.name, {})[item.node] = item.value
        else:
            whole.setdefault(item.name, {})[item.scope.value] = item.value
    return [
        MetricOfRound(name=name, whole=whole.get(name, {}), nodes=sorted(nodes.get(name, {}).items()))
        for name in sorted({*whole, *nodes}, key=lambda name: (name not in whole, headline_first(name)))
    ]


# ---- Metrics over rounds
@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric over rounds: of all training nodes together, of the unseen ones, or of one node."""

    name: str
    scope: str
    node: str
    rounds: Sequence[int]
    values: Sequence[float]


def metric_names(view: View, job: str) -> list[tuple[str, bool]]:
    """The metrics of a job, and whether they are evaluations (known for all nodes together)."""
    table = models.metric
    pooled = func.max(case((table.c.scope.in_(["pooled", "unseen"]), 1), else_=0))
    rows = view.rows(select(table.c.name, pooled).where(table.c.job == job).group_by(table.c.name))
    return sorted(((name, bool(flag)) for name, flag in rows), key=lambda item: (not item[1], headline_first(item[0])))


def curves(view: View, job: str, name: str, *, nodes: bool = True) -> list[Curve]:
    """A metric's curves: pooled, unseen, aggregation, then the nodes in order."""
    table = models.metric
    statement = select(table.c.scope, table.c.node, table.c.round, table.c.value)
    statement = statement.where(table.c.job == job, table.c.name == name)
    if not nodes:
        statement = statement.where(table.c.scope != "node")
    series: dict[tuple[str, str], dict[int, float]] = {}
    for scope, node, number, value in view.rows(statement.order_by(table.c.id)):
        if math.isfinite(value):
            series.setdefault((scope, node or ""), {})[number] = value
    order = {"pooled": 0, "unseen": 1, "aggregation": 2, "node": 3}
    return [
        Curve(name=name, scope=scope, node=node, rounds=sorted(points), values=[points[n] for n in sorted(points)])
        for (scope, node), points in sorted(series.items(), key=lambda item: (order[item[0][0]], item[0][1]))
    ]
