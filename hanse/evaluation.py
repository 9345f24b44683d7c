"""Evaluation phases of any method: named sums and counts from the nodes, added up per node, pooled and unseen.

A node sends a `Metrics` payload. Ratios become one number of their name; a matrix `confusion` becomes `accuracy`
and `macro_f1`, and a `ranking` becomes `auc`. Pooled numbers are those of all rows of the training nodes together;
nodes that never train are pooled apart. Sums are integers, so nothing depends on the order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from hanse.errors import HanseError, InvalidPayload, RejectedContribution
from hanse.learning.metrics import Confusion, Ranking
from hanse.method import Contribution, MetricValue, Outcome, Phase, Rejection, Scope
from hanse.payload import Payload
from hanse.payload.metrics import ConfusionSum, MetricSum, RankingSum, compatible, read_metrics

Sums = Mapping[str, MetricSum]


class EvaluationAggregation:
    """The aggregation of an evaluation phase.

    `state` is handed on as it came; `then` is asked for the next phase at the end (None ends the job). `expected`
    may name the metrics and their shapes: a contribution that differs is rejected on arrival. Without it the first
    node in order of name is the measure.
    """

    def __init__(
        self,
        phase: Phase,
        state: Payload | None,
        *,
        then: Callable[[], Phase | None],
        expected: Mapping[str, tuple[int, ...]] | None = None,
        model: Payload | None = None,
    ) -> None:
        self._phase = phase
        self._state = state
        self._then = then
        self._expected = expected
        self._model = model
        self._sums: dict[str, tuple[bool, Sums]] = {}

    def add(self, contribution: Contribution) -> None:
        """Take the metrics of one node.

        Raises:
            RejectedContribution: not metrics, or not those that are expected.
        """
        node = contribution.node
        try:
            sums = read_metrics(contribution.payload)
        except InvalidPayload as error:
            raise RejectedContribution(f"The evaluation of node '{node}': {error.sentence}") from error
        if self._expected is not None and {name: each.array.shape for name, each in sums.items()} != self._expected:
            raise RejectedContribution(
                f"Node '{node}' sent the metrics {sorted(sums)}, not {sorted(self._expected)} of the job's shapes.",
                remedy="Check that the node runs the same version of the method.",
            )
        self._sums[node] = contribution.unseen, sums

    def finish(self) -> Outcome:
        """Metric rows per node, pooled and unseen, in order of name."""
        rejected: list[Rejection] = []
        accepted: dict[str, tuple[bool, Sums]] = {}
        reference: dict[str, MetricSum] = {}
        for node in sorted(self._sums):
            unseen, sums = self._sums[node]
            odd = [name for name in sums if name in reference and not compatible([sums[name], reference[name]])]
            if odd:
                error: HanseError = RejectedContribution(
                    f"The metric '{odd[0]}' of node '{node}' has another form than that of the other nodes.",
                    remedy="Check that the node runs the same version of the method.",
                )
                rejected.append(Rejection(node=node, reason=error.reason))
                continue
            reference |= sums
            accepted[node] = unseen, sums
        metrics: list[MetricValue] = []
        for node, (_, sums) in accepted.items():
            metrics += rows_of(sums, Scope.NODE, node)
        metrics += rows_of(add_up(sums for unseen, sums in accepted.values() if not unseen), Scope.POOLED)
        metrics += rows_of(add_up(sums for unseen, sums in accepted.values() if unseen), Scope.UNSEEN)
        return Outcome(
            next_phase=self._then(),
            state=self._state,
            model=self._model,
            metrics=tuple(metrics),
            rejected=tuple(rejected),
        )


def add_up(sums: Iterable[Sums]) -> dict[str, MetricSum]:
    """The sums of several nodes, name by name."""
    total: dict[str, MetricSum] = {}
    for each in sums:
        for name, value in each.items():
            # Both are of one form: `finish` has seen to it.
            total[name] = total[name] + value if name in total else value  # type: ignore[operator]
    return total


def rows_of(sums: Sums, scope: Scope, node: str = "") -> list[MetricValue]:
    """What people read, in order of name; metrics over no rows are left out."""
    values: dict[str, tuple[float, int]] = {}
    for name, each in sums.items():
        if not each.count:
            continue
        if isinstance(each, ConfusionSum):
            confusion = Confusion(each.array)
            start = "" if name == "confusion" else f"{name}_"
            values[f"{start}accuracy"] = confusion.accuracy, each.count
            values[f"{start}macro_f1"] = confusion.macro_f1, each.count
        elif isinstance(each, RankingSum):
            area = Ranking(each.array).auc
            if not math.isnan(area):  # only one class occurs
                values["auc" if name == "ranking" else f"{name}_auc"] = area, each.count
        else:
            values[name] = each.mean, each.count
            if name == "mse":
                values["rmse"] = math.sqrt(max(each.mean, 0.0)), each.count
    return [
        MetricValue(name=name, value=value, scope=scope, node=node, weight=float(weight))
        for name, (value, weight) in sorted(values.items())
    ]
