"""Fed-GAME: federated forecasting in which each node also receives an update of its own (Li et al., arXiv 2603.01363).

Two streams come out of a round. The consensus is plain averaging with any of its server optimisers. The selective
arrays of the differences are scored between nodes as well, and each node receives, for these arrays alone, its own
difference mixed with those of its peers. Nodes that never train send one difference in a phase `adapt` and receive
theirs before the evaluation. The mathematics is `hanse.learning.game`; `docs/fedgame.md` says what is published and
what is ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.util import find_spec
from typing import ClassVar, Literal

from pydantic import BaseModel

from hanse.errors import MethodError, OperatorError
from hanse.learning.arrays import Float32
from hanse.learning.game import Played, Rows, play
from hanse.learning.game_options import LEARNED, GameOptions
from hanse.method import Aggregation, Audience, Contribution, JobContext, MetricValue, Outcome, Phase, Picture, Purpose
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.models import Delta, read_roles
from hanse_aggregator.plugins.averaging import Averaging, AveragingAggregation, AveragingConfig
from hanse_aggregator.plugins.averaging_round import (
    EVALUATE,
    Arrays,
    Carried,
    ModelRound,
    evaluation_phase,
    job_model,
    next_round,
)
from hanse_aggregator.plugins.calibration import CalibratedEvaluation
from hanse_aggregator.plugins.game_adapting import ADAPT, AdaptAggregation
from hanse_aggregator.plugins.game_figures import overhead, round_metrics, round_pictures
from hanse_aggregator.plugins.game_memory import Memory, Selective


class GameConfig(AveragingConfig):
    """The job file's `method_config`: that of averaging, and the personalised stream."""

    weighting: Literal["examples", "uniform"] = "uniform"
    """The published mean counts all nodes alike; `examples` weighs them by their training windows."""
    game: GameOptions = GameOptions()
    """Who learns from whom."""

    @property
    def serves_received(self) -> bool:
        """Whether nodes that train are judged by the model as they receive it, so that the evaluation must bring it."""
        return self.training.personal.served in ("received", "refined")


class Game(Averaging):
    """Fed-GAME: a common forecaster, and for each node an update mixed from those of its peers."""

    version: ClassVar[str] = "1"
    Config: ClassVar[type[BaseModel]] = GameConfig

    def first_phase(self, job: JobContext) -> Phase:
        """The first training phase.

        Raises:
            OperatorError: no such model, one without selective arrays, or options that do not fit the job's nodes.
        """
        config = self.config(job)
        first = super().first_phase(job)
        if not Selective.of(first.instruction.arrays, read_roles(first.instruction)).size:
            raise OperatorError(
                f"The method '{job.method}' scores a model's selective arrays, and '{job.model}' has none.",
                remedy="Name a model that marks some, such as a forecaster, or use the method fedavg.",
                code="NO_SELECTIVE_ARRAYS",
            )
        if Role.EVALUATION_ONLY in job_model(job, config.model).roles().values():
            raise OperatorError(
                f"The model '{job.model}' has arrays for unseen nodes alone; with '{job.method}' these receive an "
                "update of their own instead.",
                remedy="Name a model without arrays of the role evaluation_only.",
                code="EVALUATION_ONLY_ARRAYS",
            )
        if config.game.aggregator in LEARNED and find_spec("torch") is None:
            raise OperatorError(
                f"The aggregator {config.game.aggregator} needs torch, which is not installed beside this plug-in.",
                remedy="Install hanse[torch] for the aggregator, or set game.aggregator to uniform.",
                code="NO_TORCH",
            )
        _check_relations(job, config.game)
        return first

    def config(self, job: JobContext) -> GameConfig:
        """The job's configuration."""
        config = super().config(job)
        assert isinstance(config, GameConfig)
        return config

    def open(self, phase: Phase, state: Payload | None) -> Aggregation:
        """Begin a training, an adapting or an evaluation phase.

        Raises:
            MethodError: a phase that follows training came without the state that training left.
        """
        config = self.config(phase.job)
        if phase.name not in (ADAPT, EVALUATE):
            return super().open(phase, state)
        if state is None:
            raise MethodError(
                f"The phase '{phase.name}' of round {phase.round} came without the aggregation state of its round.",
                remedy="Submit the job anew.",
                code="NO_STATE",
            )
        start = ModelRound.of(phase, state, config.model)
        selective = Selective.of(start.shared, start.roles)
        memory = Memory.from_arrays(start.carried.added, selective.size)
        payloads = personal_payloads(selective, memory.updates, phase.instruction.digest)
        if phase.name == EVALUATE:
            return CalibratedEvaluation(phase, state, then=lambda: next_round(phase, phase.instruction, payloads))
        groups = groups_of(phase.job, config.game)

        def then(adapted: Mapping[str, Float32]) -> Phase:
            unseen = personal_payloads(selective, adapted, phase.instruction.digest)
            seen = payloads if config.serves_received else {}
            return evaluation_phase(phase, phase.instruction, {}, {**seen, **unseen})

        return AdaptAggregation(start, state, selective, memory, config.game, groups, config.compression, then=then)

    def aggregation(self, start: ModelRound) -> Aggregation:
        """The aggregation of a training phase."""
        return GameAggregation(start, self.config(start.phase.job))


class GameAggregation(AveragingAggregation):
    """Averaging, and the personalised stream beside it."""

    config: GameConfig

    def __init__(self, start: ModelRound, config: GameConfig) -> None:
        super().__init__(start, config)
        self._selective = Selective.of(start.shared, start.roles)
        self._memory = Memory.from_arrays(start.carried.added, self._selective.size)
        self._arrived: dict[str, Float32] = {}
        self._rows: Rows | None = None
        self._played: Played | None = None
        self._updates: dict[str, Float32] = {}

    def taken(self, contribution: Contribution, delta: Delta) -> None:
        """Keep the selective arrays of a difference that was added."""
        self._arrived[contribution.node] = self._selective.flat(delta)

    def step(self) -> tuple[Arrays, dict[str, Arrays]]:
        """The consensus first; then the personalised stream, which may start from either model."""
        trained, moments = super().step()
        self._play(self._selective.flat(trained))
        return trained, moments

    def carried(self, carried: Carried) -> Carried:
        """The stream's memory goes along, with the updates where an evaluation comes before they are sent."""
        return dataclasses.replace(carried, added=self._memory.to_arrays())

    def finish(self) -> Outcome:
        """The next model, and for each node that played an update of its own."""
        outcome = super().finish()
        following = outcome.next_phase
        phase, job = self.start.phase, self.start.phase.job
        payloads = {}
        if following is not None:
            payloads = personal_payloads(self._selective, self._updates, following.instruction.digest)
            if following.name != EVALUATE:
                following = dataclasses.replace(following, personal=payloads)
            elif job.evaluation.unseen:
                following = phase.then(ADAPT, following.instruction, purpose=Purpose.ADAPT, audience=Audience.UNSEEN)
            elif self.config.serves_received:
                following = dataclasses.replace(following, personal=payloads)
        sent = [self._facts[node].bytes for node in payloads if node in self._facts]
        cost = overhead(self._selective, self.start.shared, phase.instruction.size, sent, list(payloads.values()))
        return dataclasses.replace(
            outcome,
            next_phase=following,
            metrics=(*outcome.metrics, *cost),
            pictures=(*outcome.pictures, *self._pictures()),
        )

    def metrics(self) -> tuple[MetricValue, ...]:
        """As of averaging, and what the stream did."""
        assert self._rows is not None
        assert self._played is not None
        return (*super().metrics(), *round_metrics(self._rows, self._played))

    def about(self) -> dict[str, str]:
        """Lines of the model's card: which of the method's choices are in force."""
        return {**super().about(), **choices(self.config)}

    def _play(self, new: Float32) -> None:
        phase, options = self.start.phase, self.config.game
        base = self._selective.flat(self.start.shared) if options.delta_anchor == "old" else None
        memory = self._memory.after(self._arrived, phase.round, base)
        rows = memory.rows(phase.round, groups_of(phase.job, options))
        played = play(rows, memory.networks, options, seed=phase.job.seed, round_number=phase.round)
        nodes = tuple(rows.nodes[place] for place in played.places)
        updates = memory.anchored(played.updates, played.attention, options, own=nodes, peers=nodes, new=new)
        self._rows, self._played = rows, played
        self._updates = dict(zip(nodes, updates, strict=True))
        waits = phase.job.evaluation.due(phase.round, phase.job.rounds)
        self._memory = memory.learned(played, self._updates if waits else {})

    def _pictures(self) -> tuple[Picture, ...]:
        assert self._rows is not None
        assert self._played is not None
        every, phase = self.config.game.pictures_every, self.start.phase
        due = every > 0 and (phase.round % every == 0 or phase.round >= phase.job.rounds)
        return round_pictures(self._rows, self._played) if due else ()


def personal_payloads(selective: Selective, updates: Mapping[str, Float32], base: bytes) -> dict[str, Payload]:
    """What single nodes receive, each its own update [d] and nothing else."""
    return {node: selective.payload(values, base) for node, values in sorted(updates.items())}


def groups_of(job: JobContext, options: GameOptions) -> dict[str, str]:
    """Node to group: written out in the job file, or told by the nodes' dataset descriptions."""
    if not options.group_by:
        return dict(options.groups)
    facts = {node: dataset.facts.get(options.group_by, "") for node, dataset in job.datasets.items()}
    return {node: group for node, group in sorted(facts.items()) if group}


def choices(config: GameConfig) -> dict[str, str]:
    """Which of the method's open points (G1 to G12 of `docs/fedgame.md`) are decided how."""
    game = config.game
    mixture = f"own weight {game.own_weight:g}" if game.combine == "convex" else f"sum, gamma {game.gamma:g}"
    learned = f", {game.experts} experts, top {game.top_k}, temperature {game.temperature:g}"
    return {
        "personalised by": game.aggregator + (learned if game.aggregator == "game" else ""),
        "own update and peers": f"{mixture}, self loop {'on' if game.self_loop else 'off'}",
        "delta anchor": game.delta_anchor,
        "stale differences": f"up to {game.max_stale} rounds" if game.max_stale else "never",
        "differences clipped": f"at {game.clip:g} times the median norm" if game.clip else "never",
        "body": "rebased each round" if config.training.personal.rebase_body else "private",
    }


def _check_relations(job: JobContext, options: GameOptions) -> None:
    training = [node for node in job.nodes if node not in job.evaluation.unseen]
    if options.aggregator == "same_group":
        groups = groups_of(job, options)
        missing = [node for node in training if node not in groups]
        if missing:
            source = f"tells no '{options.group_by}'" if options.group_by else "is in none of game.groups"
            raise OperatorError(
                f"The aggregator same_group needs each node's group, and node '{missing[0]}' {source}.",
                remedy="Describe it at the node, or write game.groups out.",
                code="NO_GROUP",
            )
    if options.aggregator in ("graphsage", "gat") and not any(
        peer in training for node in training for peer in options.graph.get(node, ())
    ):
        raise OperatorError(
            f"game.graph joins no two nodes of this job; it names {', '.join(sorted(options.graph)[:5])}.",
            remedy=f"Use the nodes' names: {', '.join(training[:5])}.",
            code="NO_EDGES",
        )
