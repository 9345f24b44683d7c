"""Federated averaging of models (FedAvg; McMahan et al., AISTATS 2017) with adaptive server optimisers.

Each round has a `train` phase (nodes send what they learned as differences from the round's model) and, where it is
due, an `evaluate` phase. Sums are integers, so that the order of arrival changes no bit of the model, and memory is
that of two models whatever the number of nodes. Other methods build on it: see `Averaging.aggregation` and the hooks
of `AveragingAggregation`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from hanse.errors import RejectedContribution
from hanse.learning.arrays import Float64
from hanse.learning.averaging import (
    ABSOLUTE_BITS,
    DIFFERENCE_BITS,
    UNIFORM_BITS,
    Update,
    WeightedSum,
    clip_factor,
    squared_norm,
)
from hanse.learning.compression import CompressionOptions
from hanse.learning.server_optimisers import ServerOptions, step
from hanse.learning.training_options import TrainingOptions
from hanse.method import Aggregation, Contribution, JobContext, MetricValue, Outcome, Phase, Scope
from hanse.payload import Payload
from hanse.payload.models import Delta, read_delta
from hanse.settings import Settings, validate
from hanse_aggregator.plugins.averaging_round import (
    EVALUATE,
    TRAIN,
    Arrays,
    Carried,
    ModelRound,
    first_instruction,
    next_round,
)
from hanse_aggregator.plugins.calibration import CalibratedEvaluation


class AveragingConfig(Settings):
    """The job file's `method_config` of methods that average a model."""

    model: dict[str, Any] = Field(default_factory=dict)
    """The configuration of the model that the job names."""
    training: TrainingOptions = TrainingOptions()
    """What each node does in a round."""
    weighting: Literal["examples", "uniform"] = "examples"
    """A node counts by its training examples, or all nodes alike."""
    server: ServerOptions = ServerOptions()
    """What the server makes of the mean difference."""
    clip_norm: float | None = Field(None, gt=0)
    """A node's difference is scaled down to this Euclidean norm; absent: never."""
    compression: CompressionOptions = CompressionOptions()
    """How differences travel; a site may forbid any but whole ones."""
    checkpoint_every: int = Field(0, ge=0)
    """Give the model as it stands after every so many rounds; 0: at the end alone."""


class Averaging:
    """Federated averaging of a named model, with server optimisers (FedAvg, FedAvgM, FedAdam, FedYogi)."""

    version: ClassVar[str] = "1"
    Config: ClassVar[type[BaseModel]] = AveragingConfig

    def first_phase(self, job: JobContext) -> Phase:
        """The first training phase, with the initial model.

        Raises:
            OperatorError: no such model, or a configuration that does not fit.
        """
        return Phase(job=job, name=TRAIN, round=1, instruction=first_instruction(job, self.config(job).model))

    def open(self, phase: Phase, state: Payload | None) -> Aggregation:
        """Begin a training or an evaluation phase."""
        if phase.name == EVALUATE:
            return CalibratedEvaluation(phase, state, then=lambda: self.after_evaluation(phase))
        return self.aggregation(ModelRound.of(phase, state, self.config(phase.job).model))

    def config(self, job: JobContext) -> AveragingConfig:
        """The job's configuration, of the plug-in's own class."""
        config = validate(self.Config, dict(job.config), source="method_config")
        assert isinstance(config, AveragingConfig)
        return config

    # What other methods replace.
    def aggregation(self, start: ModelRound) -> Aggregation:
        """The aggregation of a training phase."""
        return AveragingAggregation(start, self.config(start.phase.job))

    def after_evaluation(self, phase: Phase) -> Phase | None:
        """The phase after an evaluation: the next round, from the very model that was evaluated."""
        return next_round(phase, phase.instruction, {})


@dataclass(frozen=True)
class _Fact:
    """What is remembered of a contribution."""

    examples: int
    bytes: int
    norm: float
    clipped: bool


class AveragingAggregation:
    """Adds up differences as they arrive; the outcome is the next model.

    Methods that build on it replace `weight`, `taken`, `average_absolute`, `carried` or `personal`.
    """

    def __init__(self, start: ModelRound, config: AveragingConfig, *, summing: bool = True) -> None:
        """`summing`: whether differences are added up as they come; else a method keeps them itself."""
        self.start = start
        self.config = config
        self.expected = start.expected(config.compression)
        self.sums = self.new_sums() if summing else None
        self._facts: dict[str, _Fact] = {}

    def add(self, contribution: Contribution) -> None:
        """Take a node's difference.

        Raises:
            RejectedContribution: it cannot be used; the sentence names node, array, value and remedy.
        """
        assert self.sums is not None
        try:
            delta = read_delta(contribution.payload, self.expected)
            factors: dict[str, float] = {}
            if self.config.clip_norm is not None:
                norm = math.sqrt(squared_norm({name: delta[name] for name in self.expected.shared}))
                factors = dict.fromkeys(self.expected.shared, clip_factor(norm, self.config.clip_norm))
            self.sums.add(delta, self.weight(contribution, delta), factors=factors)
        except RejectedContribution as error:
            raise rejected(contribution.node, error) from error
        norm = math.sqrt(sum(self.sums.squares[name] for name in self.expected.shared))
        self.note(contribution.node, delta, norm, clipped=any(factor < 1 for factor in factors.values()))
        self.taken(contribution, delta)

    def finish(self) -> Outcome:
        """The next model, in the instruction of the phase that follows."""
        self.prepare()
        trained, moments = self.step()
        return self.start.outcome(
            trained,
            self.carried(Carried(absolute=self.average_absolute(), moments=moments)),
            metrics=self.metrics(),
            checkpoint_every=self.config.checkpoint_every,
            personal=self.personal(),
            about=self.about(),
            selected=self.selected(),
        )

    # What other methods replace.
    def weight(self, contribution: Contribution, delta: Delta) -> int:
        """The integer weight of a contribution."""
        return delta.examples if self.config.weighting == "examples" else 1

    def taken(self, contribution: Contribution, delta: Delta) -> None:
        """A contribution was added: keep of it what the method needs besides."""

    def prepare(self) -> None:
        """All contributions are there: whatever must be known before the first array is averaged."""

    def carried(self, carried: Carried) -> Carried:
        """What goes into the state; a method may add to it."""
        return carried

    def personal(self) -> dict[str, Payload]:
        """What single nodes receive in the next phase."""
        return {}

    def selected(self) -> int | None:
        """The round whose model is the job's result so far (0: none yet); None: it is always the newest."""
        return None

    def average_absolute(self) -> Arrays:
        """The arrays that only unseen nodes receive: the means over the nodes; counters stay as they were."""
        return {
            name: self.means(name, dtype=array.dtype) if name in self.expected.absolute else array
            for name, array in self.start.carried.absolute.items()
        }

    def means(
        self, name: str, update: Update | None = None, dtype: np.dtype[np.floating] | None = None
    ) -> NDArray[np.floating]:
        """The mean of an array over the nodes, passed through `update`; may be asked for once (`WeightedSum.means`)."""
        assert self.sums is not None
        return self.sums.means(name, update, dtype)

    # What the parts are made of.
    def new_sums(self) -> WeightedSum:
        """Sums of all arrays that nodes send."""
        counted = self.config.weighting == "examples"
        bits = dict.fromkeys(self.expected.shared, DIFFERENCE_BITS if counted else UNIFORM_BITS)
        bits |= dict.fromkeys(self.expected.absolute, ABSOLUTE_BITS if counted else UNIFORM_BITS)
        nodes = max(len(self.start.phase.job.nodes), 1)
        # A power of two, so that a node that joins late does not move the bounds of the others.
        return WeightedSum(self.expected.shapes, bits, contributors=2 ** math.ceil(math.log2(nodes) + 1))

    def note(self, node: str, delta: Delta, norm: float, *, clipped: bool) -> None:
        """Remember of an accepted contribution what people see."""
        self._facts[node] = _Fact(delta.examples, delta.bytes, norm, clipped)

    def norm(self, node: str) -> float:
        """The Euclidean norm of a node's difference, before any clipping."""
        return self._facts[node].norm

    def examples(self, node: str) -> int:
        """How many training examples a node has told."""
        return self._facts[node].examples

    def step(self) -> tuple[Arrays, dict[str, Arrays]]:
        """The shared arrays after the server's step, and its moments. The sums of these arrays are used up."""
        server, before = self.config.server, self.start.carried.moments
        trained: dict[str, NDArray[Any]] = {}
        moments: dict[str, dict[str, NDArray[Any]]] = {moment: {} for moment in server.moments}
        for name in self.expected.shared:
            base = self.start.shared[name].reshape(-1)
            current = []
            for moment in server.moments:
                old = before.get(moment, {}).get(name)
                shape = self.start.shared[name].shape
                moments[moment][name] = old.copy() if old is not None else server.fresh_moment(moment, shape)
                current.append(moments[moment][name].reshape(-1))

            def update(
                place: slice, mean: Float64, base: NDArray[Any] = base, current: list[NDArray[Any]] = current
            ) -> Float64:
                values = base[place].astype(np.float64)
                return step(server, values, mean, *(moment[place] for moment in current))

            trained[name] = self.means(name, update, dtype=base.dtype)
        return trained, {moment: dict(arrays) for moment, arrays in moments.items()}

    def metrics(self) -> tuple[MetricValue, ...]:
        """What people see of the round: who sent how much, and how far each node moved."""
        rows: list[MetricValue] = []
        for node, fact in sorted(self._facts.items()):
            rows.append(node_metric("update_norm", fact.norm, node, fact.examples))
            rows.append(node_metric("delta_bytes", float(fact.bytes), node))
        facts = self._facts.values()
        totals = {
            "contributors": float(len(facts)),
            "examples": float(sum(fact.examples for fact in facts)),
            "delta_bytes": float(sum(fact.bytes for fact in facts)),
        }
        if self.config.clip_norm is not None:
            totals["clipped"] = float(sum(fact.clipped for fact in facts))
        return (*rows, *(aggregation_metric(name, value) for name, value in totals.items()))

    def about(self) -> dict[str, str]:
        """Lines of the model's card."""
        server = self.config.server
        return {"weighting": self.config.weighting, "server": f"{server.optimiser}, learning rate {server.rate:g}"}


def rejected(node: str, error: RejectedContribution) -> RejectedContribution:
    """The reason with the node's name."""
    return RejectedContribution(
        f"The contribution of node '{node}': {error.sentence}", remedy=error.remedy, code=error.code
    )


def node_metric(name: str, value: float, node: str, weight: float = 0.0) -> MetricValue:
    """A number about one node's contribution."""
    return MetricValue(name=name, value=value, scope=Scope.NODE, node=node, weight=weight)


def aggregation_metric(name: str, value: float) -> MetricValue:
    """A number about the aggregation itself."""
    return MetricValue(name=name, value=value, scope=Scope.AGGREGATION)
