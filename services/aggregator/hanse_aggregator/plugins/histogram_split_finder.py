"""FedSCS-XGB: gradient boosting whose trees are those of central XGBoost (Walger et al., arXiv 2603.06224).

Preparation fixes schema, base margins, centres and units. Every round then has a `sketch` phase (hessian-weighted
DDSketches become bin edges) and the statistics that trees are grown from: either one `histogram` phase a level of the
trees (sums per tree node, feature and bin, searched by our own split finder), or one `atoms` phase (sums of rows that
share all their bins, searched by XGBoost itself). Both give the same trees. Rounds that keep the edges skip the
sketches. All sums are integers: neither the partition of rows into nodes nor the order of arrival changes a bit of
the model. At the end each node gets the finished model (`deliver`).
"""

from __future__ import annotations

import json
from typing import ClassVar

import pydantic

from hanse.errors import MethodError, OperatorError
from hanse.method import Aggregation, JobContext, Phase
from hanse.payload import Payload
from hanse.payload.boosting import DELIVERED, BoostingInstruction, Schema
from hanse_aggregator.plugins.boosting_base import BaseModel
from hanse_aggregator.plugins.boosting_config import FedScsConfig, config_of
from hanse_aggregator.plugins.boosting_evaluation import BoostingEvaluation
from hanse_aggregator.plugins.boosting_histograms import HistogramAggregation
from hanse_aggregator.plugins.boosting_models import next_round
from hanse_aggregator.plugins.boosting_rounds import AtomAggregation, SketchAggregation
from hanse_aggregator.plugins.boosting_setup import SetupAggregation
from hanse_aggregator.plugins.boosting_state import BoostingState
from hanse_aggregator.plugins.delivering import DELIVER, DeliveryAggregation

__all__ = ["FedScsConfig", "HistogramSplitFinder"]

# Each round adds a reference to every instruction, whose header is at most 1 MB.
MOST_ROUNDS = 25_000


class HistogramSplitFinder:
    """The aggregator plug-in of the method `fedscs_xgb`."""

    version: ClassVar[str] = "1"
    Config: ClassVar[type[pydantic.BaseModel]] = FedScsConfig

    def first_phase(self, job: JobContext) -> Phase:
        """Preparation: schemas and sums.

        Raises:
            OperatorError: a configuration that does not fit, too many rounds, a job that names a model, or one that
                continues from a model of something else.
        """
        config = config_of(job)
        if job.model:
            raise OperatorError(f"The method 'fedscs_xgb' trains trees and has no model '{job.model[:80]}'.")
        if config.early_stopping_rounds and not job.evaluation.every:
            raise OperatorError(
                "Early stopping judges evaluations, and this job never evaluates.",
                remedy="Set evaluation.every in the job file, best to 1, or leave early_stopping_rounds out.",
            )
        if job.rounds > MOST_ROUNDS:
            raise OperatorError(f"The method 'fedscs_xgb' grows at most {MOST_ROUNDS} rounds, not {job.rounds}.")
        schema = _reference_schema(job, config)
        if schema.classes and config.num_class and len(schema.classes) != config.num_class:
            raise OperatorError(
                f"The datasets have {len(schema.classes)} classes, but num_class is {config.num_class}.",
                remedy="Correct num_class in the job file.",
            )
        if job.continue_from is not None:
            base = BaseModel.read(job.continue_from, config.parameters(job))
            if schema.features:
                base.check_schema(schema)
        instruction = BoostingInstruction(
            parameters=config.parameters(job), schema=schema, select=bool(config.features)
        )
        return Phase(job=job, name="prepare", round=0, instruction=instruction.to_payload())

    def open(self, phase: Phase, state: Payload | None) -> Aggregation:
        """Begin the aggregation of a phase."""
        job = phase.job
        if phase.name == DELIVER:
            return DeliveryAggregation(state, DELIVERED)
        instruction = BoostingInstruction.from_payload(phase.instruction)
        if phase.name == "prepare":
            base = None if job.continue_from is None else BaseModel.read(job.continue_from, instruction.parameters)
            centring = config_of(job).centring
            return SetupAggregation(phase, instruction, centring=centring, then=next_round, base=base)
        kept = BoostingState.from_payload(state, features=len(instruction.schema.features))
        if phase.name == "sketch":
            return SketchAggregation(phase, instruction, kept)
        if phase.name == "atoms":
            return AtomAggregation(phase, instruction, kept)
        if phase.name == "histogram":
            return HistogramAggregation(phase, instruction, kept)
        if phase.name == "evaluate":
            return BoostingEvaluation(phase, instruction, kept)
        raise MethodError(f"The method 'fedscs_xgb' has no phase '{phase.name}'.")


def _reference_schema(job: JobContext, config: FedScsConfig) -> Schema:
    """The job's own columns, or those of the first training node in order of name; empty when nothing is known."""
    described = [job.datasets[n] for n in job.nodes if n in job.datasets and n not in job.evaluation.unseen]
    first = described[0] if described else None
    classes = json.loads(first.facts["classes"]) if first and "classes" in first.facts else []
    if config.features:
        return Schema(features=config.features, classes=tuple(classes))
    columns = [column.name for column in first.columns if column.name != first.target] if first else []
    return Schema(features=tuple(columns), classes=tuple(classes))
