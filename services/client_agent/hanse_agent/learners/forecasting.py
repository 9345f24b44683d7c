"""Forecasters at the node: the learner of Fed-GAME, and of the averaging methods on series.

The node keeps its trained model `w_A` from round to round. A round starts from the common model `w_B`; where the
aggregator has sent an update of the selective arrays for this very version of it, that is added first. [methods 2.3]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.errors import InvalidPayload, MethodError
from hanse.learning.arrays import Float32
from hanse.learning.forecast_options import PersonalOptions
from hanse.learning.forecaster_models import ForecasterModel
from hanse.learning.forecaster_training import fit_epochs, train_moreau
from hanse.learning.local_training import Report, derived_seed
from hanse.learning.training_options import TrainingOptions, learning_rate
from hanse.method import Assignment, Predictions
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.compressing import compressed_delta
from hanse.payload.kinds import MetricSum, RatioSum
from hanse_agent.learners.forecast_predictions import forecast, keep_use
from hanse_agent.learners.forecast_task import ForecastTask
from hanse_agent.learners.network_setup import Arrays, NetworkModel, Setup
from hanse_agent.learners.network_state import NetworkState, keep_model
from hanse_agent.learners.networks import NetworkLearner, NodeTask

SERIES_KINDS = ("charging_sessions", "series", "st_evcdp")
ADAPT = "adapt"
OWN = "fitted"
"""The node's own model after training; its figures begin with `fitted_` unless it is the one that is served."""
SKIPPED = "personal_skipped"
_SKIPPED_FILE = "personal-skipped"
_PLAIN = TrainingOptions().model_dump(exclude={"augmentation"}) | {"augmentation": TrainingOptions().augmentation}


class ForecastLearner(NetworkLearner):
    """The learner of averaging methods on series: FedAvg, FedAdam, FedProx, pFedMe and local training are options."""

    dataset_kinds: ClassVar[tuple[str, ...]] = SERIES_KINDS
    personalises: ClassVar[bool] = True
    judges_fitted: ClassVar[bool] = False
    serves: ClassVar[str] = "global"
    """What `served: method` means."""

    def task(self, records: Any, model: NetworkModel, options: TrainingOptions, device: torch.device) -> ForecastTask:
        """Series and a forecaster."""
        personal = options.personal
        foreign = [name for name in ("guide", "augmentation", "also_read") if getattr(options, name) != _PLAIN[name]]
        if options.proximal and (personal.pfedme is not None or personal.early_stop):
            foreign.append("proximal (beside pfedme or early_stop)")
        if foreign:
            raise MethodError(
                f"training.{foreign[0]} means nothing to a forecaster.",
                remedy="Leave it out of method_config.training.",
                code="NOT_FOR_FORECASTERS",
            )
        if not isinstance(model, ForecasterModel):
            raise MethodError(
                f"{type(model).__name__} is no forecaster.",
                remedy="Name gru_forecaster or conv_forecaster under `model:` in the job file.",
                code="WRONG_MODEL",
            )
        return ForecastTask(records, model, options, device)

    # Training.
    _theta: Arrays = MappingProxyType({})
    """pFedMe's personal model of the assignment in hand."""

    def _start(self, assignment: Assignment, setup: Setup, shared: Arrays, kept: NetworkState) -> Arrays:
        """The common model with the node's update of the selective arrays; its own body where the job says so."""
        start: dict[str, NDArray[Any]] = {**setup.initial, **shared}
        if not setup.options.personal.rebase_body:
            body = {name for name, role in setup.roles.items() if role is not Role.SELECTIVE}
            start |= {name: array for name, array in kept.own.items() if name in body}
        return {**start, **self._updated(assignment, setup, shared)}

    def _stays(self, setup: Setup, after: Arrays) -> Arrays:
        """The whole trained model is the node's own, to be served."""
        return {name: np.array(array) for name, array in after.items()}

    def _fit(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays, kept: NetworkState) -> Report:
        assert isinstance(task, ForecastTask)
        options, personal = setup.options, setup.options.personal
        rate, seed = _rate(assignment, options), _seed(assignment)
        if personal.early_stop:
            return fit_epochs(
                setup.network,
                task,
                options,
                rate=rate,
                seed=seed,
                epochs=options.local_epochs,
                patience=personal.early_stop,
                progress=assignment.progress,
            )
        if personal.pfedme is not None:
            report, theta = train_moreau(
                setup.network,
                task,
                task.training,
                options,
                personal.pfedme,
                rate=rate,
                seed=seed,
                progress=assignment.progress,
            )
            self._theta = {name: np.array(value.cpu().numpy()) for name, value in theta.items()}
            return report
        return super()._fit(assignment, setup, task, shared, kept)

    def _train(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays) -> Payload:
        self._theta = {}
        contribution = super()._train(assignment, setup, task, shared)
        if self._theta:  # the personal model is served, not the copy that was sent
            _replace_own(assignment.next_state, {**self._theta})
        if assignment.personal is not None and not self._fits(assignment):
            (assignment.next_state / _SKIPPED_FILE).write_text(str(assignment.round))
        return contribution

    # Adapting.
    def _other_phase(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays) -> Payload:
        """`adapt`: an unseen node fine-tunes the common model, and tells the difference of the selective arrays."""
        if assignment.phase != ADAPT:
            return super()._other_phase(assignment, setup, task, shared)
        if not assignment.unseen:
            raise MethodError(f"The node '{assignment.node}' trains, and was asked to adapt.")
        self._load(setup, {**setup.initial, **shared})
        super()._fit(assignment, setup, task, shared, NetworkState())
        after = {name: np.array(tensor.cpu().numpy()) for name, tensor in setup.network.state_dict().items()}
        NetworkState(round=assignment.round, own=after).save(assignment.next_state)
        differences: dict[str, Float32] = {
            name: np.asarray(after[name] - shared[name], dtype=np.float32) for name in _selective(setup)
        }
        # What an adaptation leaves out is not owed to the next one, which starts from another model.
        options = setup.compression.model_copy(update={"error_feedback": False})
        return compressed_delta(
            assignment, examples=len(task.training), shared=differences, absolute={}, options=options
        )

    # Judging.
    def _evaluate(self, assignment: Assignment, setup: Setup, task: NodeTask, shared: Arrays) -> dict[str, MetricSum]:
        """The figures of the served model, and under names of their own those of the others.

        Without a prefix: what the node uses; `global_`: the common model; `fitted_`: the node's own after training;
        `finetuned_`: the common model fine-tuned here; `adapted_`: with the update for an unseen node; `chosen_`: at an
        unseen node, the one that its validation windows prefer.
        """
        assert isinstance(task, ForecastTask)
        kept = NetworkState.load(assignment.state)
        common = {**setup.initial, **shared}
        models = self._models(assignment, setup, task, common, kept)
        chosen = self._validated(setup, task, models) if setup.options.personal.served == "validated" else ""
        served = self._served(assignment, setup.options.personal, models, chosen)
        figures: dict[str, MetricSum] = {}
        for name, arrays in models.items():
            self._load(setup, arrays)
            found = task.evaluate(setup.network, task.held_out, None, assignment.progress)
            figures |= found if name == served else {f"{name}_{each}": value for each, value in found.items()}
            if name == chosen and assignment.unseen:
                figures |= {f"chosen_{each}": value for each, value in found.items()}
        used = chosen or self._used(models, served)
        keep_model(assignment.next_state, models[used], assignment.job)
        keep_use(assignment.next_state, used, task.windows)
        skipped = assignment.state is not None and (assignment.state / _SKIPPED_FILE).exists()
        if assignment.unseen or self.serves == "post":
            figures[SKIPPED] = RatioSum.of(np.array([float(skipped or self._stale(assignment))]))
        return figures

    def forecast(self, state: Path) -> Predictions:
        """The next steps from the newest records, by the model that this node used at the last evaluation.

        Raises:
            NotFound: no evaluation has come to this node yet.
            SiteError: the newest records are not complete.
        """
        return forecast(state, self._dataset)

    def _keep_model(self, assignment: Assignment, shared: Arrays) -> None:
        """The evaluation keeps the model that the node uses."""

    def _models(
        self, assignment: Assignment, setup: Setup, task: ForecastTask, common: Arrays, kept: NetworkState
    ) -> dict[str, Arrays]:
        """The whole models to judge, by name."""
        personal, options = setup.options.personal, setup.options
        models: dict[str, Arrays] = {"global": common}
        update = self._updated(assignment, setup, common)
        if assignment.unseen:
            if kept.own and kept.round == assignment.round:
                models["finetuned"] = kept.own
            if update:
                models["adapted"] = {**common, **update}
                if personal.adapt_finetune:
                    models["adapted"] = self._trained_again(assignment, setup, task, common, models["adapted"])
        else:
            if kept.own:
                models[OWN] = kept.own
            if update:
                models["received"] = {**common, **update}
                if personal.served == "refined":
                    models["refined"] = self._trained_again(assignment, setup, task, common, models["received"])
        if personal.finetune != "none":
            self._load(setup, common)
            fit_epochs(
                setup.network,
                task,
                options,
                rate=_rate(assignment, options),
                seed=derived_seed(_seed(assignment), "fine-tuning"),
                epochs=personal.finetune_epochs,
                patience=personal.finetune_epochs,
                names=_selective(setup) if personal.finetune == "head" else None,
                progress=assignment.progress,
            )
            models["finetuned"] = _copied(setup)
        return models

    def _trained_again(
        self, assignment: Assignment, setup: Setup, task: ForecastTask, common: Arrays, start: Arrays
    ) -> Arrays:
        """A model after one more round of training at this node."""
        self._load(setup, start)
        super()._fit(assignment, setup, task, common, NetworkState())
        return _copied(setup)

    def _validated(self, setup: Setup, task: ForecastTask, models: Mapping[str, Arrays]) -> str:
        """The model with the lowest loss on this node's validation windows; the earlier one of equals."""
        losses: dict[str, float] = {}
        for name, arrays in models.items():
            self._load(setup, arrays)
            losses[name] = task.loss_on(setup.network, task.validation)
        return min(losses, key=lambda name: losses[name])

    def _served(
        self, assignment: Assignment, personal: PersonalOptions, models: Mapping[str, Arrays], chosen: str
    ) -> str:
        """Which of the models the figures without a prefix are of."""
        if assignment.unseen:
            return "global"
        if chosen:
            return chosen
        wanted = self.serves if personal.served == "method" else personal.served
        name = {"post": OWN, "global": "global"}.get(wanted, wanted)
        if name == "refined" and name not in models:  # nothing came for this node
            name = OWN
        return name if name in models else "global"

    def _used(self, models: Mapping[str, Arrays], served: str) -> str:
        """Which of the models the node forecasts with: the most personal one that there is."""
        return next((name for name in ("adapted", "finetuned") if name in models), served)

    # The update.
    def _fits(self, assignment: Assignment) -> bool:
        payload = assignment.personal
        return (
            payload is not None
            and payload.kind == "weight_delta"
            and payload.header.weight_delta.base_digest == assignment.instruction.digest
        )

    def _stale(self, assignment: Assignment) -> bool:
        return assignment.personal is not None and not self._fits(assignment)

    def _updated(self, assignment: Assignment, setup: Setup, shared: Arrays) -> Arrays:
        """The selective arrays with the node's update, if there is one for this very version of the model.

        Raises:
            InvalidPayload: an update of other arrays than the model's selective ones.
        """
        payload = assignment.personal
        if payload is None or not self._fits(assignment):
            return {}
        wanted = {name: shared[name].shape for name in _selective(setup)}
        if {name: array.shape for name, array in payload.arrays.items()} != wanted or payload.encoded:
            raise InvalidPayload(
                f"The update for this node holds {sorted(payload.arrays)}, not the selective arrays {sorted(wanted)}.",
                remedy="Check that node and aggregator have the same version of the method.",
            )
        return {name: np.asarray(shared[name] + payload.arrays[name], dtype=np.float32) for name in wanted}


class GameLearner(ForecastLearner):
    """The learner of `fedgame`: the node serves its own trained model."""

    serves: ClassVar[str] = "post"


def _replace_own(folder: Path, own: Arrays) -> None:
    kept = NetworkState.load(folder)
    NetworkState(round=kept.round, own={**kept.own, **own}, optimiser=kept.optimiser, fitted=kept.fitted).save(folder)


def _copied(setup: Setup) -> Arrays:
    return {name: np.array(tensor.cpu().numpy()) for name, tensor in setup.network.state_dict().items()}


def _selective(setup: Setup) -> tuple[str, ...]:
    return tuple(name for name, role in setup.roles.items() if role is Role.SELECTIVE)


def _rate(assignment: Assignment, options: TrainingOptions) -> float:
    rounds = assignment.job.rounds
    return learning_rate(options.learning_rate, options.schedule, assignment.round, rounds)


def _seed(assignment: Assignment) -> int:
    return derived_seed(assignment.job.seed, assignment.node, assignment.round)
