"""FedDG-GA: nodes count by how much worse the averaged model is for them (Zhang et al., CVPR 2023).

After each round the generalisation gap of a node is the log-loss, on its held-out rows, of the averaged model less
that of its own model before averaging. Weights start equal and move by `step_r * gap / max|gap| / C` for C nodes, with
a step that falls linearly to 0; they are clipped to [0, 1] and brought to a sum of 1 [official code]. When every gap
is 0 the weights stay (the official code divides by zero).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, Field

from hanse.errors import OperatorError
from hanse.method import Aggregation, Contribution, JobContext, MetricValue, Phase, Scope
from hanse.payload import Payload
from hanse.payload.models import Delta
from hanse_aggregator.plugins.averaging import Averaging, AveragingAggregation, AveragingConfig
from hanse_aggregator.plugins.averaging_round import EVALUATE, Carried, ModelRound
from hanse_aggregator.plugins.validated import FITTED, Figures, Steered, SteeringEvaluation, require_held_out

UNITS = 2**20
"""Weights are averaged in whole parts of this many."""


class GapConfig(AveragingConfig):
    """The job file's `method_config`: that of averaging, and the step."""

    gap_step: float = Field(0.2, gt=0, le=1)
    """How far weights move in the first round; the published value."""


class GapAveraging(Averaging):
    """FedDG-GA: averaging by generalisation gaps, which evaluation after every round tells."""

    Config: ClassVar[type[BaseModel]] = GapConfig

    def first_phase(self, job: JobContext) -> Phase:
        """The first training phase.

        Raises:
            OperatorError: the job does not evaluate after every round, or no node that trains has rows for it.
        """
        if job.evaluation.every != 1:
            raise OperatorError(
                "The method 'feddg_ga' weighs nodes by an evaluation after every round.",
                remedy="Set evaluation.every to 1 in the job file.",
            )
        what = "The method 'feddg_ga' weighs nodes by their generalisation gaps"
        require_held_out(job, what, "Set 'holdout' in agent.yaml of the nodes, or use the method fedavg.")
        return super().first_phase(job)

    def open(self, phase: Phase, state: Payload | None) -> Aggregation:
        """Begin a training or an evaluation phase."""
        if phase.name != EVALUATE or state is None:
            return super().open(phase, state)
        config = self.config(phase.job)
        assert isinstance(config, GapConfig)
        left = 1.0 - (phase.round - 1) / phase.job.rounds

        def steer(figures: Figures, _: tuple[MetricValue, ...], carried: Carried) -> Steered:
            notes = carried.notes
            after, before = figures.get("log_loss", {}), figures.get(f"{FITTED}log_loss", {})
            gaps = {node: after[node] - before[node] for node in sorted(before) if node in after}
            weights = moved(notes.get("weights", {}), gaps, config.gap_step * left)
            metrics = tuple(
                MetricValue(name="gap_weight", value=weight, scope=Scope.NODE, node=node)
                for node, weight in weights.items()
            )
            return Steered(notes={**notes, "weights": weights}, metrics=metrics)

        return SteeringEvaluation(phase, state, then=lambda: self.after_evaluation(phase), steer=steer)

    def aggregation(self, start: ModelRound) -> Aggregation:
        """The aggregation of a training phase."""
        return GapAggregation(start, self.config(start.phase.job))


class GapAggregation(AveragingAggregation):
    """Averaging by the weights that the state holds."""

    def weight(self, contribution: Contribution, delta: Delta) -> int:
        """In whole parts; a node that is new, or whose weight is nothing, counts one part."""
        weights: Mapping[str, float] = self.start.carried.notes.get("weights", {})
        equal = 1.0 / max(1, len(weights) or len(self.start.phase.job.nodes))
        return max(1, round(weights.get(contribution.node, equal) * UNITS))

    def carried(self, carried: Carried) -> Carried:
        """The weights stay until the next evaluation."""
        return dataclasses.replace(carried, notes=self.start.carried.notes)


def moved(weights: Mapping[str, float], gaps: Mapping[str, float], step: float) -> dict[str, float]:
    """The weights after a round, over the nodes with a gap, in order of name.

    Nodes without a weight begin with the mean one.
    """
    if not gaps:
        return dict(sorted(weights.items()))
    equal = 1.0 / len(gaps)
    old = {node: weights.get(node, equal) for node in sorted(gaps)}
    largest = max(abs(gap) for gap in gaps.values())
    if largest > 0:
        old = {node: min(max(w + step * gaps[node] / largest * equal, 0.0), 1.0) for node, w in old.items()}
    total = sum(old.values())
    return {node: w / total for node, w in old.items()} if total else dict.fromkeys(old, equal)
