"""The aggregator half of `federated_mean`: the mean of the nodes' targets, and a state that remembers the last one."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
from pydantic import BaseModel

from hanse.errors import InvalidPayload, RejectedContribution
from hanse.method import Contribution, JobContext, MetricValue, Outcome, Phase, Scope
from hanse.payload import Payload
from hanse.payload.kinds import RatioSum, document_payload, read_document, read_metrics
from hanse.settings import Settings, validate


class FederatedMeanConfig(Settings):
    """The job file's `method_config`. Every field is documented; an unknown key is an error."""

    lower: float = -1e6
    """Targets below this count as this much, at the node."""
    upper: float = 1e6
    """Targets above this count as this much, at the node."""


class FederatedMean:
    """Federated mean: the mean of the target over all nodes, without anybody seeing a record."""

    version: ClassVar[str] = "1"
    Config: ClassVar[type[BaseModel]] = FederatedMeanConfig

    def first_phase(self, job: JobContext) -> Phase:
        """Ask every selected node to measure."""
        config = validate(FederatedMeanConfig, dict(job.config), source="method_config")
        instruction = document_payload("federated_mean.measure", {"lower": config.lower, "upper": config.upper})
        return Phase(job=job, name="measure", round=1, instruction=instruction)

    def open(self, phase: Phase, state: Payload | None) -> FederatedMeanAggregation:
        """Begin to add up. `state` is what the round before left, None in the first."""
        return FederatedMeanAggregation(phase, state)


class FederatedMeanAggregation:
    """Adds up integers, so that the order of arrival changes nothing."""

    def __init__(self, phase: Phase, state: Payload | None) -> None:
        self.phase = phase
        self.before = read_document(state, "federated_mean.state")["mean"] if state is not None else None
        self.total = RatioSum(np.zeros(2, dtype=np.int64))

    def add(self, contribution: Contribution) -> None:
        """Take a node's sum and count.

        Raises:
            RejectedContribution: it cannot be used; the others go on without it.
        """
        try:
            sums = read_metrics(contribution.payload)
        except InvalidPayload as error:
            raise RejectedContribution(f"The contribution of '{contribution.node}': {error.sentence}") from error
        found = sums.get("target")
        if not isinstance(found, RatioSum) or found.fraction_bits != self.total.fraction_bits or not found.count:
            raise RejectedContribution(f"The contribution of '{contribution.node}' is no sum of targets.")
        self.total += found

    def finish(self) -> Outcome:
        """The mean, the next round or the end, and the model as it stands."""
        mean, phase = self.total.mean, self.phase
        metrics = [MetricValue(name="mean", value=mean, scope=Scope.POOLED, weight=float(self.total.count))]
        if self.before is not None:
            metrics.append(MetricValue(name="change", value=mean - self.before, scope=Scope.AGGREGATION))
        file = np.frombuffer(json.dumps({"mean": mean, "rows": self.total.count}).encode(), dtype=np.uint8)
        last = phase.round >= phase.job.rounds
        return Outcome(
            next_phase=None if last else phase.then("measure", phase.instruction, round=phase.round + 1),
            state=document_payload("federated_mean.state", {"mean": mean}),
            model=document_payload("federated_mean.model", {}, {"mean.json": file}),
            metrics=tuple(metrics),
        )
