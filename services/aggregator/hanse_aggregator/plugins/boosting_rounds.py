"""The two exchanges of a boosting round: sketches become edges, atoms become trees."""

from __future__ import annotations

import dataclasses

import numpy as np

from hanse.errors import InvalidPayload, MethodError, PlatformError, RejectedContribution
from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges, exact_edges, sketched_edges
from hanse.learning.booster import to_booster
from hanse.learning.objectives import make_objective
from hanse.learning.sketch import BucketMapping
from hanse.learning.splitting import grow_trees
from hanse.learning.trees import Forest
from hanse.method import Audience, Contribution, JobContext, MetricValue, Outcome, Phase, Purpose, Scope
from hanse.payload import Payload
from hanse.payload.boosting import BoostingInstruction, read_distinct
from hanse.payload.kinds import SketchBlock, document_payload, read_atoms, read_sketches, read_trees, trees_payload
from hanse_aggregator.plugins.boosting_config import config_of
from hanse_aggregator.plugins.boosting_pictures import pictures
from hanse_aggregator.plugins.boosting_state import BoostingState, MergingStack, totals

MODEL = "xgboost.booster"
MODEL_FILES = ("model.ubj", "model.json")


class SketchAggregation:
    """Merges sketches (or distinct values) as they arrive; the outcome is the edges of the round."""

    def __init__(self, phase: Phase, instruction: BoostingInstruction, state: BoostingState) -> None:
        self._phase, self._instruction, self._state = phase, instruction, state
        parameters = instruction.parameters
        self._features = instruction.schema.features
        self._sets = parameters.outputs if parameters.edges == "per_class" else 1
        self._mapping = BucketMapping(parameters.sketch_accuracy)
        self._blocks: MergingStack[SketchBlock] = MergingStack()
        self._distinct = [np.zeros(0, dtype=np.float32) for _ in self._features]
        self._bytes: dict[str, int] = {}

    def add(self, contribution: Contribution) -> None:
        """Merge a node's sketches.

        Raises:
            RejectedContribution: not sketches of these features with the agreed mapping.
        """
        payload = contribution.payload
        try:
            if self._instruction.parameters.bin_source == "exact":
                values = read_distinct(payload, features=len(self._features))
                self._distinct = [np.union1d(a, b) for a, b in zip(self._distinct, values, strict=True)]
            else:
                self._blocks.push(read_sketches(payload, self._mapping, features=self._features, outputs=self._sets))
        except (InvalidPayload, RejectedContribution) as error:
            raise rejected(contribution.node, error) from error
        self._bytes[contribution.node] = payload.size

    def finish(self) -> Outcome:
        """The edges, in the instruction of the `atoms` phase."""
        parameters, setup = self._instruction.parameters, self._instruction.setup
        if setup is None:
            raise MethodError("The sketch phase came before the preparation.")
        if parameters.bin_source == "exact":
            edges: tuple[BinEdges, ...] = (exact_edges(self._distinct),) * self._sets
        else:
            merged = self._blocks.total()
            edges = tuple(
                sketched_edges(sketches, setup.centres, self._mapping, parameters.bins)
                for sketches in (merged.sketches() if merged is not None else ())
            )
        state = dataclasses.replace(self._state, edges=edges)
        instruction = dataclasses.replace(self._instruction, edges=edges)
        bins = np.concatenate([each.bins for each in edges])
        return Outcome(
            next_phase=self._phase.then("atoms", instruction.to_payload()),
            state=state.to_payload(),
            metrics=(
                *sent_bytes(self._bytes, "sketch_bytes"),
                aggregation_metric("bins", float(bins.sum())),
                aggregation_metric("bins_per_feature", float(bins.mean())),
            ),
        )


class AtomAggregation:
    """Merges atoms as they arrive; the outcome is the trees of the round."""

    def __init__(self, phase: Phase, instruction: BoostingInstruction, state: BoostingState) -> None:
        if instruction.setup is None or not instruction.edges:
            raise MethodError("The atoms phase came before its edges.")
        self._phase, self._instruction, self._state = phase, instruction, state
        self._grid = instruction.setup.grid
        self._stacks: list[MergingStack[Atoms]] = [MergingStack() for _ in instruction.edges]
        self._facts: dict[str, tuple[int, int, int, int]] = {}

    def add(self, contribution: Contribution) -> None:
        """Merge a node's atoms.

        Raises:
            RejectedContribution: not atoms over the round's edges in the job's units.
        """
        node, payload = contribution.node, contribution.payload
        try:
            sets, rows, single = read_atoms(
                payload, edges=self._instruction.edges, outputs=self._instruction.parameters.outputs, grid=self._grid
            )
        except (InvalidPayload, RejectedContribution) as error:
            raise rejected(node, error) from error
        for stack, atoms in zip(self._stacks, sets, strict=True):
            stack.push(atoms)
        self._facts[node] = sum(len(each) for each in sets), single, rows, payload.size

    def finish(self) -> Outcome:
        """The trees as an artifact, the state, pictures, and the model when it is due."""
        phase, instruction = self._phase, self._instruction
        job, parameters, edges = phase.job, instruction.parameters, instruction.edges
        merged = totals(self._stacks)
        grown = [
            tree
            for k, atoms in enumerate(merged)
            for tree in grow_trees(
                atoms, edges[k], parameters, self._grid, round_number=phase.round - 1, first_output=k
            )
        ]
        forest = Forest.of_rounds([grown])
        artifact = trees_payload(forest, round_number=phase.round)
        state = self._state.with_trees(forest)
        following = dataclasses.replace(
            instruction, grown=(*instruction.grown, artifact.digest), newest=forest, edges=()
        )
        last = phase.round >= job.rounds
        every = config_of(job).checkpoint_every
        due = last or (every > 0 and phase.round % every == 0)
        if job.evaluation.due(phase.round, job.rounds):
            next_phase: Phase | None = phase.then(
                "evaluate", following.to_payload(), purpose=Purpose.EVALUATE, audience=Audience.ALL
            )
        else:
            next_phase = next_round(phase, following, state)
        return Outcome(
            next_phase=next_phase,
            state=state.to_payload(),
            model=model_of(job, following) if due else None,
            metrics=self._metrics(forest, merged),
            pictures=pictures(instruction.schema.features, state, merged[0], edges[0], forest),
            stored=(artifact,),
        )

    def _metrics(self, forest: Forest, merged: list[Atoms]) -> tuple[MetricValue, ...]:
        rows: list[MetricValue] = []
        for node in sorted(self._facts):
            atoms, single, count, _ = self._facts[node]
            rows.append(MetricValue(name="atoms", value=float(atoms), scope=Scope.NODE, node=node, weight=count))
            if atoms:
                share = single / atoms
                rows.append(
                    MetricValue(name="single_row_atoms", value=share, scope=Scope.NODE, node=node, weight=atoms)
                )
        sent = sum(fact[0] for fact in self._facts.values())
        single = sum(fact[1] for fact in self._facts.values())
        return (
            *rows,
            *sent_bytes({node: fact[3] for node, fact in self._facts.items()}, "atom_bytes"),
            aggregation_metric("trees", float(len(forest) * self._phase.round)),
            aggregation_metric("leaves", float(sum(np.count_nonzero(tree.left < 0) for tree in forest.trees))),
            aggregation_metric("atoms", float(sum(len(each) for each in merged))),
            aggregation_metric("single_row_atoms", single / sent if sent else 0.0, weight=float(sent)),
        )


def next_round(phase: Phase, instruction: BoostingInstruction, state: BoostingState) -> Phase | None:
    """The first phase of the round that follows; None after the last."""
    following = phase.round + 1
    if following > phase.job.rounds:
        return None
    if instruction.parameters.sketches_in(following - 1) or not state.edges:
        return phase.then("sketch", dataclasses.replace(instruction, edges=()).to_payload(), round=following)
    return phase.then("atoms", dataclasses.replace(instruction, edges=state.edges).to_payload(), round=following)


def model_of(job: JobContext, instruction: BoostingInstruction) -> Payload:
    """The model of all rounds as a real `xgboost.Booster`, in both of XGBoost's formats."""
    if instruction.newest is None or instruction.setup is None:
        raise MethodError("There are no trees to make a model of.")
    names, parameters = instruction.schema.features, instruction.parameters
    outputs = parameters.outputs
    forest = Forest.of_rounds([])
    for number, digest in enumerate(instruction.grown[:-1], start=1):
        try:
            trees = job.fetch(digest)
        except KeyError as error:
            raise PlatformError(f"The trees of round {number} ({digest.hex()[:12]}…) cannot be fetched.") from error
        forest += read_trees(trees, features=len(names), outputs=outputs)
    forest += instruction.newest
    booster = to_booster(forest, instruction.setup.base_margins, names, make_objective(parameters))
    files = {name: np.frombuffer(bytes(booster.save_raw(name[6:])), dtype=np.uint8) for name in MODEL_FILES}
    document = {
        "objective": parameters.objective,
        "classes": list(instruction.schema.classes),
        "trees": len(forest),
        "rounds": len(instruction.grown),
    }
    return document_payload(MODEL, document, files)


def rejected(node: str, error: InvalidPayload | RejectedContribution) -> RejectedContribution:
    """The error of a reader as the rejection of a node's contribution."""
    return RejectedContribution(f"The contribution of node '{node}': {error.sentence}", remedy=error.remedy)


def aggregation_metric(name: str, value: float, weight: float = 0.0) -> MetricValue:
    """A number about the aggregation itself."""
    return MetricValue(name=name, value=value, scope=Scope.AGGREGATION, weight=weight)


def sent_bytes(sizes: dict[str, int], name: str) -> tuple[MetricValue, ...]:
    """The bytes that each node sent, and their sum."""
    nodes = [MetricValue(name=name, value=float(sizes[n]), scope=Scope.NODE, node=n) for n in sorted(sizes)]
    return (*nodes, aggregation_metric(name, float(sum(sizes.values()))))
