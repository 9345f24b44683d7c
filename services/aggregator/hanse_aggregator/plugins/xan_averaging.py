"""gPerXAN: averaging of networks whose batch normalisation belongs to the node (Le et al., CVPR 2024).

Convolutions, classifier and instance normalisation are averaged by examples; the BN branch stays with the node. What
unseen nodes read in its place is an option (`unseen_bn`), and so is the round whose model is the result (`select`).
Who owns which array is the model's to say (`hanse.learning.networks.roles`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from hanse.errors import OperatorError
from hanse.learning.arrays import Float32, Float64
from hanse.learning.averaging import WeightedSum
from hanse.learning.training_options import PublishedGperxan, UnseenReadOut
from hanse.method import Aggregation, Contribution, JobContext, MetricValue, Outcome, Phase, Picture
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.documents import document_payload
from hanse.payload.models import DELIVERED, Delta, model_state_payload
from hanse_aggregator.plugins.averaging import Averaging, AveragingAggregation, AveragingConfig
from hanse_aggregator.plugins.averaging_round import EVALUATE, Arrays, Carried, ModelRound, job_model
from hanse_aggregator.plugins.delivering import DELIVER, DeliveryAggregation
from hanse_aggregator.plugins.validated import FITTED, Figures, Steered, SteeringEvaluation, require_held_out
from hanse_aggregator.plugins.xan_selection import NO_ROWS_REMEDY, judge, selected_round

BATCH_SCORE, INSTANCE_SCORE = "score_batchnorm", "score_instancenorm"
MEAN, VARIANCE = "running_mean", "running_var"


class XanConfig(AveragingConfig):
    """The job file's `method_config`: that of averaging, with gPerXAN's own."""

    training: PublishedGperxan = PublishedGperxan()
    """What each node does in a round; the defaults are the published ones."""
    unseen_bn: UnseenReadOut = "average"
    """What unseen nodes do in the place of BN statistics of their own. `average`: those of the nodes that train,
    averaged (published code); `in_only`: the IN branch alone; `batch_stats`: the statistics of each batch, with the
    averaged affine where it leaves the nodes, else the initial one; `client_ensemble`: the mean of the predictions of
    all nodes' models, for which every unseen node receives the BN of every node."""
    bn_pool: Literal["naive", "moments"] = "naive"
    """How variances are averaged: `naive`, their mean (published code), or with the spread of the means between nodes
    (`moments`: the variance of all nodes' values together)."""
    select: Literal["client_val", "aggregated_val", "last"] = "client_val"
    """The round whose model is the job's result, of those that are evaluated: the one with the best accuracy on the
    nodes' held-out rows (the mean by examples), of the nodes' own models before averaging (`client_val`, published) or
    of the averaged one there (`aggregated_val`); or the last."""
    expect_xan: bool = Field(True)
    """Refuse a model without XAN layers: with `norm: batch` this method would be FedAvg by another name."""

    @property
    def readings(self) -> frozenset[UnseenReadOut]:
        """All ways in which unseen nodes read the model."""
        return frozenset({self.unseen_bn, *self.training.also_read})

    @property
    def gives_members(self) -> bool:
        """Whether unseen nodes receive the BN of every node that trains."""
        return "client_ensemble" in self.readings


class XanAveraging(Averaging):
    """gPerXAN: personal batch normalisation mixed with shared instance normalisation, for nodes never seen."""

    Config: ClassVar[type[BaseModel]] = XanConfig

    def first_phase(self, job: JobContext) -> Phase:
        """The first training phase.

        Raises:
            OperatorError: no such model, one without XAN, options that contradict each other, or nothing to select by.
        """
        config = self.config(job)
        roles = job_model(job, config.model).roles()
        if config.expect_xan and not any(_leaf(name) == INSTANCE_SCORE for name in roles):
            raise OperatorError(
                "The method 'gperxan' is for models with XAN layers, and this one has none.",
                remedy="Set method_config.model.norm to xan, or expect_xan to false.",
                code="NO_XAN",
            )
        nothing_leaves = Role.EVALUATION_ONLY not in roles.values()
        unreadable = sorted(config.readings & {"average", "client_ensemble"})
        if job.evaluation.unseen and nothing_leaves and unreadable:
            raise OperatorError(
                f"With bn_upload 'never' there is nothing for unseen nodes to read by unseen_bn '{unreadable[0]}'.",
                remedy="Set unseen_bn (and training.also_read) to in_only or batch_stats, or bn_upload to "
                "average_for_unseen.",
            )
        if config.select != "last" and not job.evaluation.every:
            raise OperatorError(
                f"select '{config.select}' compares evaluated rounds, and the job evaluates none.",
                remedy="Set evaluation.every (1, as published), or select to last.",
            )
        if config.select != "last":
            require_held_out(job, f"select '{config.select}' compares rounds by accuracy", NO_ROWS_REMEDY)
        return super().first_phase(job)

    def config(self, job: JobContext) -> XanConfig:
        """The job's configuration."""
        config = super().config(job)
        assert isinstance(config, XanConfig)
        return config

    def open(self, phase: Phase, state: Payload | None) -> Aggregation:
        """Begin a training or an evaluation phase, or the delivery of the selected model."""
        config = self.config(phase.job)
        if phase.name == DELIVER:
            return DeliveryAggregation(state, DELIVERED)
        if phase.name != EVALUATE or config.select == "last" or state is None:
            return super().open(phase, state)

        by = f"{FITTED}accuracy" if config.select == "client_val" else "accuracy"

        def steer(figures: Figures, whole: tuple[MetricValue, ...], carried: Carried) -> Steered:
            return judge(phase, by, figures, whole, carried, _choices(config), ensemble=config.gives_members)

        return SteeringEvaluation(phase, state, then=lambda: self.after_evaluation(phase), steer=steer)

    def aggregation(self, start: ModelRound) -> Aggregation:
        """The aggregation of a training phase."""
        return XanAggregation(start, self.config(start.phase.job))


class XanAggregation(AveragingAggregation):
    """Averaging with BN for unseen nodes, and a picture of the mixing weights."""

    config: XanConfig

    def __init__(self, start: ModelRound, config: XanConfig) -> None:
        super().__init__(start, config)
        self._weights: dict[str, dict[str, float]] = {}
        self._members: dict[str, Arrays] = {}

    def new_sums(self) -> WeightedSum:
        """With `bn_pool: moments`, variances enter as second moments."""
        plain, pairs = super().new_sums(), self._pairs()
        return _MomentSums(plain, pairs) if pairs else plain

    def taken(self, contribution: Contribution, delta: Delta) -> None:
        """Keep the node's mixing weights, and for an ensemble its BN."""
        self._weights[contribution.node] = self._mixture(delta)
        if self.config.gives_members:
            self._members[contribution.node] = {name: np.array(delta[name]) for name in self.expected.absolute}

    def average_absolute(self) -> Arrays:
        """The means over the nodes; with `bn_pool: moments`, variances of all nodes' values together."""
        pairs = self._pairs()
        squares = {mean: np.asarray(self.means(mean, dtype=np.dtype(np.float64))) for mean in pairs.values()}
        averaged: dict[str, NDArray[Any]] = {}
        for name, array in self.start.carried.absolute.items():
            if name in squares:
                averaged[name] = squares[name].astype(array.dtype)
            elif name in pairs:
                centre = squares[pairs[name]].reshape(-1)

                def spread(place: slice, moment: Float64, centre: Float64 = centre) -> NDArray[np.float64]:
                    return np.maximum(moment - centre[place] ** 2, 0.0)

                averaged[name] = self.means(name, spread, dtype=array.dtype)
            else:
                averaged[name] = self.means(name, dtype=array.dtype) if name in self.expected.absolute else array
        return averaged

    def carried(self, carried: Carried) -> Carried:
        """The examples of each node go along, for the mean over nodes in the evaluation."""
        examples = {node: self.examples(node) for node in sorted(self._weights)}
        return dataclasses.replace(carried, notes={**self.start.carried.notes, "examples": examples})

    def finish(self) -> Outcome:
        """The next model; the ensemble's arrays for unseen nodes; a picture."""
        outcome = super().finish()
        following = outcome.next_phase
        unseen = self.start.phase.job.evaluation.unseen
        if following is not None and following.name == EVALUATE and self._members and unseen:
            payload = self._ensemble(following.personal[unseen[0]])
            following = dataclasses.replace(
                following, personal={**following.personal, **dict.fromkeys(unseen, payload)}
            )
        selecting = self.config.select != "last"
        return dataclasses.replace(
            outcome,
            next_phase=following,
            model=None if selecting else outcome.model,
            pictures=(*outcome.pictures, *self._pictures()),
        )

    def selected(self) -> int | None:
        """The round that is ahead so far, where one is chosen."""
        return None if self.config.select == "last" else selected_round(self.start.carried.notes)

    def about(self) -> dict[str, str]:
        """Lines of the model's card: which of the method's choices are in force."""
        return {**super().about(), **_choices(self.config)}

    def _pairs(self) -> dict[str, str]:
        """Variances that are pooled with their means: variance name to mean name."""
        if self.config.bn_pool != "moments":
            return {}
        absolute = self.expected.absolute
        found = {name: name.removesuffix(VARIANCE) + MEAN for name in absolute if _leaf(name) == VARIANCE}
        return {variance: mean for variance, mean in found.items() if mean in absolute}

    def _mixture(self, delta: Delta) -> dict[str, float]:
        """The weight of BN in each layer of a node's own model, as far as both scores leave the node."""

        def value(name: str) -> float | None:
            if name in self.expected.absolute:
                return float(delta[name])
            return float(self.start.shared[name]) + float(delta[name]) if name in self.expected.shared else None

        layers = [name.removesuffix(INSTANCE_SCORE) for name in self.expected.shapes if _leaf(name) == INSTANCE_SCORE]
        mixture: dict[str, float] = {}
        for layer in layers:
            batch, instance = value(layer + BATCH_SCORE), value(layer + INSTANCE_SCORE)
            if batch is not None and instance is not None:
                mixture[layer.rstrip(".")] = float(1.0 / (1.0 + np.exp(instance - batch)))
        return mixture

    def _pictures(self) -> tuple[Picture, ...]:
        nodes = sorted(self._weights)
        layers = list(self._weights[nodes[0]]) if nodes else []
        if not layers:
            return ()
        values = np.array([[self._weights[node][layer] for node in nodes] for layer in layers])
        document = {"rows": layers, "columns": nodes, "row_title": "layer", "column_title": "node"}
        title = "Weight of batch normalisation in each layer (the rest to 1 is instance normalisation)"
        payload = document_payload("picture", document, {"values": values})
        return (Picture(name="mixing_weights", kind="matrix", title=title, payload=payload),)

    def _ensemble(self, averages: Payload) -> Payload:
        """The averages, and every node's BN under its number; names of nodes stay here."""
        arrays = dict(averages.arrays) | {
            f"{number:04d}/{name}": array
            for number, node in enumerate(sorted(self._members))
            for name, array in self._members[node].items()
        }
        job, roles = self.start.phase.job, dict.fromkeys(arrays, Role.EVALUATION_ONLY)
        return model_state_payload(job.model, self.start.phase.round, arrays, roles)


class _MomentSums(WeightedSum):
    """Sums in which each variance is replaced by the second moment, `var + mean ** 2`."""

    def __init__(self, plain: WeightedSum, pairs: Mapping[str, str]) -> None:
        super().__init__(plain._shapes, plain._bits, contributors=plain._contributors)
        self._pairs = dict(pairs)

    def add(self, arrays: Mapping[str, Float32], weight: int, **more: Any) -> None:
        """See `WeightedSum.add`."""
        super().add(_SecondMoments(arrays, self._pairs), weight, **more)


class _SecondMoments(Mapping[str, "Float32"]):
    def __init__(self, arrays: Mapping[str, Float32], pairs: Mapping[str, str]) -> None:
        self._arrays, self._pairs = arrays, pairs

    def __getitem__(self, name: str) -> Float32:
        array = self._arrays[name]
        return array + np.square(self._arrays[self._pairs[name]]) if name in self._pairs else array

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _choices(config: XanConfig) -> dict[str, str]:
    model = config.model
    return {
        "batch normalisation": f"bn_upload {model.get('bn_upload', 'average_for_unseen')}, bn_pool {config.bn_pool}",
        "mixing scores": f"score_sharing {model.get('score_sharing', 'code')}",
        "unseen nodes read": config.unseen_bn,
        "round selected by": config.select,
        "guide (lambda)": f"{config.training.guide:g}, schedule {config.training.schedule}",
    }


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
