"""Evaluation of a boosting job: scores per node and pooled, early stopping, and the end of the job."""

from __future__ import annotations

import dataclasses

from hanse.errors import OperatorError
from hanse.evaluation import EvaluationAggregation
from hanse.learning.metrics import RANKS
from hanse.learning.objectives import Objective, make_objective
from hanse.method import Contribution, MetricValue, Outcome, Phase, Scope
from hanse.payload.boosting import BoostingInstruction
from hanse_aggregator.plugins.boosting_config import config_of
from hanse_aggregator.plugins.boosting_models import aggregation_metric, delivery, model_of, next_round
from hanse_aggregator.plugins.boosting_state import BoostingState


class BoostingEvaluation:
    """Adds up the nodes' scores; the pooled loss of the training nodes says whether the job goes on."""

    def __init__(self, phase: Phase, instruction: BoostingInstruction, state: BoostingState) -> None:
        self._phase, self._instruction, self._state = phase, instruction, state
        self._objective = make_objective(instruction.parameters)
        self._scores = EvaluationAggregation(phase, None, expected=expected_metrics(self._objective), then=lambda: None)

    def add(self, contribution: Contribution) -> None:
        """Take the scores of one node.

        Raises:
            RejectedContribution: not the metrics of the objective.
        """
        self._scores.add(contribution)

    def finish(self) -> Outcome:
        """Metrics; the next round, or the end with the model that is best.

        Raises:
            OperatorError: early stopping is asked for, and no training node holds rows out.
        """
        outcome = self._scores.finish()
        phase, instruction = self._phase, self._instruction
        patience = config_of(phase.job).early_stopping_rounds
        state, last = self._state, phase.round >= phase.job.rounds
        metrics: tuple[MetricValue, ...] = ()
        if patience:
            state = self._judged(outcome.metrics)
            metrics = (
                aggregation_metric("best_round", float(state.best_round)),
                aggregation_metric("best_loss", state.best_loss),
            )
            last = last or instruction.rounds - state.best_round >= patience
        model = None
        if not last:
            following, state = next_round(phase, instruction, state)
        elif state.model:
            following = delivery(phase, state.model)
        else:
            model = model_of(phase.job, instruction, rounds=state.best_round or None)
            following = delivery(phase, model.digest)
        return dataclasses.replace(
            outcome,
            next_phase=following,
            state=state.to_payload(),
            model=model,
            metrics=(*outcome.metrics, *metrics),
            stored=(model,) if model is not None else (),
        )

    def _judged(self, metrics: tuple[MetricValue, ...]) -> BoostingState:
        name = "log_loss" if self._objective.classes else "mse"
        pooled = [row.value for row in metrics if row.name == name and row.scope is Scope.POOLED]
        if not pooled:
            raise OperatorError(
                "Early stopping needs held-out rows, and no training node holds any out.",
                code="NO_HELD_OUT_ROWS",
                remedy="Set holdout or holdout_column in agent.yaml of the nodes, or leave early_stopping_rounds out.",
            )
        state = self._state
        if state.best_round and pooled[0] >= state.best_loss:
            return state
        return dataclasses.replace(state, best_round=self._instruction.rounds, best_loss=pooled[0])


def expected_metrics(objective: Objective) -> dict[str, tuple[int, ...]]:
    """The names and shapes of what a node sends: loss, confusion matrix, and a ranking for two classes."""
    if not objective.classes:
        return {"mse": (2,)}
    shapes: dict[str, tuple[int, ...]] = {"log_loss": (2,), "confusion": (objective.classes, objective.classes)}
    return shapes | ({"ranking": (2, RANKS)} if objective.outputs == 1 else {})
