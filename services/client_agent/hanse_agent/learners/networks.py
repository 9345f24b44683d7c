"""The node half of every method that trains a network and averages it: FedAvg, FedProx, FedBN, gPerXAN.

A `train` phase loads the shared arrays, trains, and sends the difference; whatever belongs to the node stays in its
state folder. An `evaluate` phase judges the round's model on held-out rows, with the node's own arrays where it has
trained. A `deliver` phase brings the model of an earlier round, where that is the job's result. What kind of records,
loss and figures: a subclass says by its `NodeTask`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hanse.errors import MethodError
from hanse.learning.arrays import Int64
from hanse.learning.compression import CompressionOptions
from hanse.learning.forecast_options import PersonalOptions
from hanse.learning.local_training import Report, Task, derived_seed, train
from hanse.learning.training_options import TrainingOptions, UnseenReadOut, learning_rate
from hanse.method import Assignment, Dataset, JobContext
from hanse.models import SHARED, Role, load_model
from hanse.payload import Payload
from hanse.payload.compressing import compressed_delta, keep_residuals
from hanse.payload.kinds import MetricSum, document_payload, metrics_payload
from hanse.payload.models import DELIVERED
from hanse.settings import validate
from hanse_agent.learners.network_setup import (
    Arrays,
    NetworkModel,
    Setup,
    device_of,
    is_averaged,
    own_arrays,
    shared_arrays,
)
from hanse_agent.learners.network_state import (
    NetworkState,
    carry_over,
    keep_model,
    members_of,
    with_bits,
    without_bits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FITTED = "fitted_"
"""Begins the names of figures of the model as trained at the node, before it was averaged."""


class NodeTask(Task, Protocol):
    """A node's records as a task: which rows are for training and which are held out, and the figures.

    Every row of an unseen node is for evaluation.
    """

    training: Int64
    held_out: Int64
    everything: Int64

    def evaluate(
        self, network: nn.Module, rows: Int64, reading: UnseenReadOut | None, progress: Callable[[float, str], None]
    ) -> dict[str, MetricSum]:
        """The figures of a network on rows; `reading` is None for a node with statistics of its own."""

    def evaluate_ensemble(self, networks: list[Callable[[], nn.Module]], rows: Int64) -> dict[str, MetricSum]:
        """The figures of the mean of several networks' predictions, each made when its turn comes."""


class NetworkLearner(ABC):
    """Trains a registered network on a node's records. Subclasses say how records become a task."""

    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = ()
    training: ClassVar[type[TrainingOptions]] = TrainingOptions
    personalises: ClassVar[bool] = False
    """Whether `training.personal` is understood."""
    judges_fitted: ClassVar[bool] = True
    """Whether the model as trained is judged before it leaves, where the instruction says that an evaluation follows,
    which then tells its figures too."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._records: Any = None
        self._kept: Setup | None = None
        self._task: NodeTask | None = None

    @abstractmethod
    def task(self, records: Any, model: NetworkModel, options: TrainingOptions, device: torch.device) -> NodeTask:
        """The records as a task.

        Raises:
            SiteError: they do not fit the model; the sentence says how.
        """

    def perform(self, assignment: Assignment) -> Payload:
        """Do a `train`, an `evaluate` or a `deliver` phase, or one that a subclass knows.

        Raises:
            SiteError: records that do not fit, or a state folder that cannot be read.
            InvalidPayload: an instruction whose arrays are not those of the job's model.
            MethodError: training diverged, or the phase is unknown.
        """
        assignment.progress(0.0, "preparing")
        setup = self._setup(assignment.job)
        if assignment.phase == "deliver":  # needs no records
            carry_over(assignment.state, assignment.next_state)
            self._keep_model(assignment, shared_arrays(assignment, setup))
            return document_payload(DELIVERED, {})
        if self._records is None:
            self._records = self._dataset.load()
        if self._task is None:
            device = next(setup.network.parameters()).device
            self._task = self.task(self._records, setup.model, setup.options, device)
        shared = shared_arrays(assignment, setup)
        if assignment.phase == "train":
            return self._train(assignment, setup, self._task, shared)
        if assignment.phase == "evaluate":
            carry_over(assignment.state, assignment.next_state)
            keep_residuals(assignment)
            self._keep_model(assignment, shared)
            return metrics_payload(self._evaluate(assignment, setup, self._task, shared))
        return self._other_phase(assignment, setup, self._task, shared)

    # What other learners replace.
    def _other_phase(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays) -> Payload:
        """A phase that is neither for training nor for evaluation."""
        raise MethodError(f"The method '{assignment.job.method}' has no phase '{assignment.phase}'.")

    def _keep_model(self, assignment: Assignment, shared: Arrays) -> None:
        """Before the last evaluation, and when the selected model is delivered: keep it for predictions."""
        if assignment.round >= assignment.job.rounds:
            given = dict(assignment.personal.arrays) if assignment.personal is not None else {}
            rounds = assignment.instruction.header.model_state.version
            keep_model(assignment.next_state, {**shared, **given}, assignment.job, rounds=rounds)

    def _start(self, assignment: Assignment, setup: Setup, shared: Arrays, kept: NetworkState) -> Arrays:
        """The whole state that a round's training starts from."""
        return {**shared, **own_arrays(setup, kept)}

    def _stays(self, setup: Setup, after: Arrays) -> Arrays:
        """What of the trained state stays at the node."""
        return {name: array for name, array in after.items() if setup.roles[name] not in SHARED}

    def _fit(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays, kept: NetworkState) -> Report:
        """Train the network, which holds the start."""
        device = next(setup.network.parameters()).device
        job, options = assignment.job, setup.options
        return train(
            setup.network,
            task,
            task.training,
            options,
            rate=learning_rate(options.learning_rate, options.schedule, assignment.round, job.rounds),
            seed=derived_seed(job.seed, assignment.node, assignment.round),
            shared={name: torch.from_numpy(np.array(array)).to(device) for name, array in shared.items()}
            if options.proximal
            else {},
            optimiser={name: torch.from_numpy(array) for name, array in kept.optimiser.items()},
            progress=assignment.progress,
        )

    def _train(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays) -> Payload:
        if assignment.unseen:
            raise MethodError(f"The unseen node '{assignment.node}' was asked to train.")
        kept = NetworkState.load(assignment.state)
        self._load(setup, self._start(assignment, setup, shared, kept))
        report = self._fit(assignment, setup, task, shared, kept)
        after = {name: np.asarray(tensor.cpu().numpy()) for name, tensor in setup.network.state_dict().items()}
        fitted: dict[str, MetricSum] = {}
        if self.judges_fitted and assignment.instruction.header.model_state.judge:
            fitted = task.evaluate(setup.network, task.held_out, None, assignment.progress)
        differences = {
            name: np.asarray(after[name] - array, dtype=np.float32)
            for name, array in shared.items()
            if is_averaged(array)
        }
        # Copies: the network itself goes on to be trained.
        absolute = {name: np.array(after[name]) for name, role in setup.roles.items() if role is Role.EVALUATION_ONLY}
        NetworkState(
            round=assignment.round,
            own=self._stays(setup, after),
            optimiser={name: tensor.numpy() for name, tensor in report.optimiser.items()},
            fitted={name: with_bits(each) for name, each in fitted.items()},
            earlier=kept.for_later(assignment.instruction.header.model_state),
        ).save(assignment.next_state)
        return compressed_delta(
            assignment,
            examples=len(task.training),
            shared=differences,
            absolute=absolute,
            options=setup.compression,
        )

    def _evaluate(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays) -> dict[str, MetricSum]:
        if assignment.unseen:
            return self._evaluate_unseen(assignment, setup, task, shared)
        kept = NetworkState.load(assignment.state)
        self._load(setup, {**shared, **own_arrays(setup, kept)})
        figures = task.evaluate(setup.network, task.held_out, None, assignment.progress)
        if kept.round == assignment.round:
            figures |= {prefixed(FITTED, name): without_bits(array) for name, array in kept.fitted.items()}
        return figures

    def _evaluate_unseen(
        self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays
    ) -> dict[str, MetricSum]:
        """Every row, in the job's way of reading; further ways under names of their own."""
        given = dict(assignment.personal.arrays) if assignment.personal is not None else {}
        figures: dict[str, MetricSum] = {}
        for place, reading in enumerate(setup.readings):
            if reading == "client_ensemble":
                found = task.evaluate_ensemble(self._members(setup, shared, given), task.everything)
            else:
                averaged = {name: array for name, array in given.items() if "/" not in name}
                own = {name: array for name, array in setup.initial.items() if setup.roles[name] not in SHARED}
                missing = [name for name in own if is_averaged(own[name]) and name not in averaged]
                if reading == "average" and missing:
                    raise MethodError(
                        f"An unseen node has no value for '{missing[0]}', which does not leave the nodes that train.",
                        remedy="Set method_config.unseen_bn to in_only or batch_stats, or bn_upload to "
                        "average_for_unseen.",
                        code="NO_UNSEEN_VALUES",
                    )
                self._load(setup, {**shared, **own, **averaged})
                found = task.evaluate(setup.network, task.everything, reading, assignment.progress)
            figures |= {name if place == 0 else prefixed(f"{reading}_", name): each for name, each in found.items()}
        return figures

    def _members(self, setup: Setup, shared: Arrays, given: Arrays) -> list[Callable[[], nn.Module]]:
        """The networks of the nodes that trained, made one after another in the place of this one."""
        own = {name: array for name, array in setup.initial.items() if setup.roles[name] not in SHARED}
        groups = members_of(given)
        if not groups:
            raise MethodError("The ensemble's arrays did not arrive.", code="NO_UNSEEN_VALUES")

        def network(arrays: Arrays) -> nn.Module:
            self._load(setup, {**shared, **own, **arrays})
            return setup.network

        return [partial(network, arrays) for _, arrays in sorted(groups.items())]

    def _setup(self, job: JobContext) -> Setup:
        key = json.dumps([job.method, job.model, job.seed, dict(job.config)], sort_keys=True, default=str)
        if self._kept is None or self._kept.key != key:
            config = job.config
            options = validate(self.training, dict(config.get("training", {})), source="method_config.training")
            if options.personal != PersonalOptions() and not self.personalises:
                raise MethodError(
                    f"training.personal is for forecasters; the method '{job.method}' works on other records here.",
                    remedy="Leave method_config.training.personal out.",
                    code="NOT_PERSONAL",
                )
            model: Any = load_model(job.model, config.get("model", {}))
            first = config.get("unseen_bn", "average")
            self._kept = Setup(
                key=key,
                model=model,
                options=options,
                compression=CompressionOptions.model_validate(config.get("compression", {})),
                readings=(first, *(each for each in options.also_read if each != first)),
                network=model.build().to(device_of(options)),
                roles=model.roles(),
                initial=model.initial_state(job.seed),
            )
            self._task = None
        return self._kept

    def _load(self, setup: Setup, arrays: Arrays) -> None:
        tensors: dict[str, Tensor] = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        try:
            setup.network.load_state_dict(tensors)
        except RuntimeError as error:
            raise MethodError(
                f"The arrays do not fit the network: {' '.join(str(error).split())[:300]}",
                remedy="Start a new job: its model was configured in another way before.",
                code="STATE_MISMATCH",
            ) from error


def prefixed(start: str, name: str) -> str:
    """The name of a figure with a beginning, so that a confusion matrix is read as `fitted_accuracy`."""
    return start.rstrip("_") if name == "confusion" else start + name
