"""Models and a learner of plain NumPy for tests and benchmarks, packaged apart from Hanse as a site's own would be.

`reference_mlp` is a softmax classifier with an optional hidden layer over table datasets, trained by plain SGD;
`reference_bulk` is so many numbers in so many arrays, with differences that cost nothing to make, so that a benchmark
measures the federation and nothing else. The method is `reference_averaging`: Hanse's own averaging at the aggregator.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from hanse.errors import SiteError
from hanse.learning.compression import CompressionOptions
from hanse.learning.training_options import TrainingOptions
from hanse.method import Assignment, Dataset
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.compressing import compressed_delta, keep_residuals
from hanse.payload.kinds import ConfusionSum, RatioSum, metrics_payload
from hanse.tables import Table

Arrays = Mapping[str, NDArray[Any]]

ENTRY_POINTS = """\
[hanse.aggregators]
reference_averaging = hanse_aggregator.plugins.averaging:Averaging
reference_robust = hanse_aggregator.plugins.robust:Robust
[hanse.learners]
reference_averaging = hanse_reference:ReferenceLearner
reference_robust = hanse_reference:ReferenceLearner
[hanse.models]
reference_mlp = hanse_reference:Mlp
reference_bulk = hanse_reference:Bulk
"""


class MlpConfig(BaseModel, frozen=True, extra="forbid"):
    inputs: int = Field(ge=1)
    classes: int = Field(ge=2)
    hidden: int = Field(0, ge=0)


class Mlp:
    """Weights [inputs, outputs] and biases, and running means and scales of the inputs for nodes that never train."""

    Config: ClassVar[type[BaseModel]] = MlpConfig

    def __init__(self, config: MlpConfig) -> None:
        self.config = config

    def initial_state(self, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        sizes = [self.config.inputs, *([self.config.hidden] if self.config.hidden else []), self.config.classes]
        state: dict[str, NDArray[Any]] = {}
        for layer, (rows, columns) in enumerate(itertools.pairwise(sizes)):
            state[f"layer{layer}.weight"] = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
            state[f"layer{layer}.bias"] = np.zeros(columns, dtype=np.float32)
        state["inputs.mean"] = np.zeros(self.config.inputs, dtype=np.float32)
        state["inputs.scale"] = np.ones(self.config.inputs, dtype=np.float32)
        state["steps"] = np.zeros((), dtype=np.int64)
        return state

    def roles(self) -> Mapping[str, Role]:
        layers = ("layer0", "layer1") if self.config.hidden else ("layer0",)
        roles = {f"{layer}.{part}": Role.GLOBAL for layer in layers for part in ("weight", "bias")}
        return {
            **roles,
            "inputs.mean": Role.EVALUATION_ONLY,
            "inputs.scale": Role.EVALUATION_ONLY,
            "steps": Role.PERSONAL,
        }


class BulkConfig(BaseModel, frozen=True, extra="forbid"):
    numbers: int = Field(ge=1)
    arrays: int = Field(ge=1)


class Bulk:
    """`numbers` float32 in `arrays` arrays of one length."""

    Config: ClassVar[type[BaseModel]] = BulkConfig

    def __init__(self, config: BulkConfig) -> None:
        self.config = config

    def initial_state(self, seed: int) -> Arrays:
        length = self.config.numbers // self.config.arrays
        rng = np.random.default_rng(seed)
        return {name: rng.standard_normal(length, dtype=np.float32) for name in self._names()}

    def roles(self) -> Mapping[str, Role]:
        return dict.fromkeys(self._names(), Role.GLOBAL)

    def _names(self) -> list[str]:
        return [f"block{number:03d}.weight" for number in range(self.config.arrays)]


class ReferenceLearner:
    """Trains what the instruction holds: layers by SGD, anything else by differences of constant cost."""

    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._table: Table | None = None

    def perform(self, assignment: Assignment) -> Payload:
        if self._table is None:
            self._table = self._dataset.load()
        table, base = self._table, assignment.instruction.arrays
        if "layer0.weight" not in base:
            return self._bulk(assignment, len(table.target))
        if assignment.phase == "evaluate":
            keep_residuals(assignment)
            return self._evaluate(assignment, table)
        options = TrainingOptions.model_validate(assignment.job.config.get("training", {}))
        compression = CompressionOptions.model_validate(assignment.job.config.get("compression", {}))
        rows = np.flatnonzero(~table.held_out)
        if not len(rows):
            raise SiteError("the table has no rows to train on.")
        mean, scale = _input_statistics(table.features[rows])
        inputs, labels = (table.features[rows] - mean) / scale, table.target[rows].astype(np.int64)
        weights = {name: array.copy() for name, array in base.items()}
        rng = np.random.default_rng([assignment.job.seed, assignment.round, *assignment.node.encode()])
        for _ in range(options.local_epochs):
            for batch in np.array_split(rng.permutation(len(rows)), max(1, len(rows) // options.batch_size)):
                _sgd_step(weights, inputs[batch], labels[batch], options.learning_rate)
        return compressed_delta(
            assignment,
            examples=len(rows),
            shared={name: weights[name] - base[name] for name in base},
            absolute={"inputs.mean": mean, "inputs.scale": scale},
            options=compression,
        )

    def _bulk(self, assignment: Assignment, examples: int) -> Payload:
        """Every array of the difference is the same memory: making them costs nothing, sending them the same."""
        length = max(array.size for array in assignment.instruction.arrays.values())
        rng = np.random.default_rng([assignment.round, *assignment.node.encode()])
        once = rng.standard_normal(length, dtype=np.float32) * np.float32(0.01)
        shared = {name: once[: array.size] for name, array in assignment.instruction.arrays.items()}
        return compressed_delta(assignment, examples=examples, shared=shared, absolute={}, options=None)

    def _evaluate(self, assignment: Assignment, table: Table) -> Payload:
        weights = assignment.instruction.arrays
        chosen = np.arange(len(table.target)) if assignment.unseen else np.flatnonzero(table.held_out)
        if assignment.unseen and assignment.personal is not None:
            mean, scale = (assignment.personal.arrays[f"inputs.{part}"] for part in ("mean", "scale"))
        else:
            mean, scale = _input_statistics(table.features[~table.held_out])
        scores = _forward(weights, (table.features[chosen] - mean) / scale)[-1]
        labels = table.target[chosen].astype(np.int64)
        losses = -np.log(np.maximum(scores[np.arange(len(labels)), labels], 1e-12))
        confusion = np.zeros((scores.shape[1],) * 2, dtype=np.int64)
        np.add.at(confusion, (labels, scores.argmax(axis=1)), 1)
        return metrics_payload({"confusion": ConfusionSum(confusion), "loss": RatioSum.of(losses)})


def _input_statistics(features: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    scale = features.std(axis=0)
    return features.mean(axis=0), np.where(scale > 1e-6, scale, np.float32(1))


def _forward(weights: Arrays, inputs: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """The activations of every layer; the last are the classes' probabilities."""
    activations = [inputs]
    hidden = "layer1.weight" in weights
    if hidden:
        activations.append(np.maximum(inputs @ weights["layer0.weight"] + weights["layer0.bias"], 0))
    last = "layer1" if hidden else "layer0"
    scores = activations[-1] @ weights[f"{last}.weight"] + weights[f"{last}.bias"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    activations.append(scores / scores.sum(axis=1, keepdims=True))
    return activations


def _sgd_step(weights: dict[str, NDArray[Any]], inputs: NDArray[Any], labels: NDArray[Any], rate: float) -> None:
    activations = _forward(weights, inputs)
    error = activations[-1].copy()
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    for layer in reversed(range(len(activations) - 1)):
        below = activations[layer]
        gradient = below.T @ error
        error_below = (error @ weights[f"layer{layer}.weight"].T) * (below > 0) if layer else error
        weights[f"layer{layer}.weight"] -= np.float32(rate) * gradient
        weights[f"layer{layer}.bias"] -= np.float32(rate) * error.sum(axis=0)
        error = error_below
