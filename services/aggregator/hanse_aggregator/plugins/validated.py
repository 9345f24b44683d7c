"""Evaluation phases whose figures steer the job: which round's model is the result, and how much a node counts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hanse.errors import OperatorError
from hanse.evaluation import EvaluationAggregation
from hanse.method import HELD_OUT, Contribution, JobContext, MetricValue, Outcome, Phase, Scope
from hanse.payload import Payload
from hanse_aggregator.plugins.averaging_round import Carried

FITTED = "fitted_"
"""Begins the names of figures of models as trained at the nodes, before they were averaged."""

Figures = Mapping[str, Mapping[str, float]]
"""Metric, then node, to value; of the nodes that train alone."""


@dataclass(frozen=True, kw_only=True)
class Steered:
    """What a method makes of an evaluation.

    `notes` of the next state; a `model` or none; further `metrics`; artifacts that are `stored`; and the phase that
    ends the job where no round follows.
    """

    notes: Mapping[str, Any]
    model: Payload | None = None
    metrics: tuple[MetricValue, ...] = ()
    stored: tuple[Payload, ...] = ()
    ending: Phase | None = None


class SteeringEvaluation:
    """An evaluation that is told what to make of the figures.

    `steer(figures, whole, carried)` is given the metrics of the nodes that train, one by one; those over all of them
    and over all unseen nodes; and the state.
    """

    def __init__(
        self,
        phase: Phase,
        state: Payload,
        *,
        then: Callable[[], Phase | None],
        steer: Callable[[Figures, tuple[MetricValue, ...], Carried], Steered],
    ) -> None:
        self._inner = EvaluationAggregation(phase, state, then=then)
        self._carried = Carried.from_payload(state)
        self._steer = steer
        self._unseen: set[str] = set()

    def add(self, contribution: Contribution) -> None:
        """Take the metrics of one node; see `EvaluationAggregation.add`."""
        self._inner.add(contribution)
        if contribution.unseen:
            self._unseen.add(contribution.node)

    def finish(self) -> Outcome:
        """The evaluation's outcome, with what the method made of it."""
        outcome = self._inner.finish()
        figures: dict[str, dict[str, float]] = {}
        for metric in outcome.metrics:
            if metric.scope is Scope.NODE and metric.node not in self._unseen:
                figures.setdefault(metric.name, {})[metric.node] = metric.value
        whole = tuple(metric for metric in outcome.metrics if metric.scope in (Scope.POOLED, Scope.UNSEEN))
        steered = self._steer(figures, whole, self._carried)
        return dataclasses.replace(
            outcome,
            next_phase=outcome.next_phase or steered.ending,
            state=dataclasses.replace(self._carried, notes=steered.notes).to_payload(),
            model=steered.model,
            stored=steered.stored,
            metrics=(*outcome.metrics, *steered.metrics),
        )


def require_held_out(job: JobContext, what: str, remedy: str) -> None:
    """Refuse at the beginning what held-out rows decide, where every node that trains tells that it has none.

    A single node without any trains all the same, and has no say. `what` begins the sentence.

    Raises:
        OperatorError: there are none.
    """
    training = [node for node in job.nodes if node not in job.evaluation.unseen]
    told = [job.datasets[node].facts.get(HELD_OUT) if node in job.datasets else None for node in training]
    if told and all(each == "0" for each in told):
        raise OperatorError(
            f"{what}, which needs held-out rows at the nodes that train, and their dataset '{job.dataset}' has none.",
            remedy=remedy,
            code="NO_HELD_OUT_ROWS",
        )


def weighted_mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    """The mean over the nodes that have both, weighted; None when there are none."""
    both = [node for node in values if weights.get(node, 0) > 0]
    total = math.fsum(weights[node] for node in both)
    return math.fsum(values[node] * weights[node] for node in both) / total if total else None
