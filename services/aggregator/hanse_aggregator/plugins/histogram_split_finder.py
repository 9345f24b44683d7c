"""FedSCS-XGB: gradient boosting whose trees are those of central XGBoost (Walger et al., arXiv 2603.06224).

Preparation fixes schema, base margins, centres and units. Every round then has a `sketch` phase (hessian-weighted
DDSketches become bin edges) and an `atoms` phase (gradient and hessian sums of rows that share all their bins
become trees, grown by XGBoost itself). Rounds that keep the edges skip the sketches. All sums are integers: neither
the partition of rows into nodes nor the order of arrival changes a bit of the model.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, field_validator

from hanse.errors import InvalidPayload, MethodError, OperatorError, PlatformError, RejectedContribution
from hanse.evaluation import EvaluationAggregation
from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges, exact_edges, sketched_edges
from hanse.learning.booster import to_booster
from hanse.learning.objectives import make_objective
from hanse.learning.parameters import BoostingParameters
from hanse.learning.sketch import BucketMapping
from hanse.learning.splitting import grow_trees
from hanse.learning.trees import Forest
from hanse.method import (
    Aggregation,
    Audience,
    Contribution,
    JobContext,
    MetricValue,
    Outcome,
    Phase,
    Purpose,
    Scope,
)
from hanse.payload import Payload
from hanse.payload.boosting import BoostingInstruction, Schema, read_distinct
from hanse.payload.kinds import SketchBlock, document_payload, read_atoms, read_sketches, read_trees, trees_payload
from hanse.settings import validate
from hanse_aggregator.plugins.boosting_pictures import pictures
from hanse_aggregator.plugins.boosting_setup import SetupAggregation
from hanse_aggregator.plugins.boosting_state import BoostingState, MergingStack, totals

MODEL = "xgboost.booster"
MODEL_FILES = ("model.ubj", "model.json")


class FedScsConfig(BoostingParameters):
    """The job file's `method_config`: XGBoost's parameters under XGBoost's names, and those of the federation."""

    statistics: Literal["atoms"] = "atoms"
    """What nodes send in each round: sums per atom, as published."""
    features: tuple[str, ...] = ()
    """The columns to learn from, picked by name at every node; all columns of the dataset when left out."""
    centring: bool = True
    """Sketch values by their distance from the feature's mean: accuracy is relative to zero otherwise."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    """Give the model as it stands after every so many rounds; 0: at the end alone."""

    @field_validator("statistics", mode="before")
    @classmethod
    def _only_atoms(cls, value: Any) -> Any:
        if value == "histograms":
            raise ValueError("histograms are not available in this version; use atoms")
        return value

    @field_validator("features")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("features lists a column twice")
        return value

    def parameters(self, job: JobContext) -> BoostingParameters:
        """The parameters of the trees; the seed is the job's unless given here."""
        known = self.model_dump(by_alias=True, include=set(BoostingParameters.model_fields))
        return BoostingParameters.model_validate(
            known if "seed" in self.model_fields_set else known | {"seed": job.seed}
        )


class HistogramSplitFinder:
    """The aggregator plug-in of the method `fedscs_xgb`."""

    version: ClassVar[str] = "1"
    Config: ClassVar[type[BaseModel]] = FedScsConfig

    def first_phase(self, job: JobContext) -> Phase:
        """Preparation: schemas and sums.

        Raises:
            OperatorError: a configuration that does not fit, or a job that continues from a model or names one.
        """
        config = _config(job)
        if job.model:
            raise OperatorError(f"The method 'fedscs_xgb' trains trees and has no model '{job.model[:80]}'.")
        if job.continue_from is not None:
            raise OperatorError("The method 'fedscs_xgb' cannot continue from an earlier model in this version.")
        schema = _reference_schema(job, config)
        if schema.classes and config.num_class and len(schema.classes) != config.num_class:
            raise OperatorError(
                f"The datasets have {len(schema.classes)} classes, but num_class is {config.num_class}.",
                remedy="Correct num_class in the job file.",
            )
        instruction = BoostingInstruction(
            parameters=config.parameters(job), schema=schema, select=bool(config.features)
        )
        return Phase(job=job, name="prepare", round=0, instruction=instruction.to_payload())

    def open(self, phase: Phase, state: Payload | None) -> Aggregation:
        """Begin the aggregation of a phase."""
        instruction = BoostingInstruction.from_payload(phase.instruction)
        if phase.name == "prepare":
            return SetupAggregation(phase, instruction, centring=_config(phase.job).centring, then=_next_round)
        kept = BoostingState.from_payload(state, features=len(instruction.schema.features))
        if phase.name == "sketch":
            return SketchAggregation(phase, instruction, kept)
        if phase.name == "atoms":
            return AtomAggregation(phase, instruction, kept)
        if phase.name == "evaluate":
            classes = make_objective(instruction.parameters).classes
            expected: dict[str, tuple[int, ...]] = (
                {"log_loss": (2,), "confusion": (classes, classes)} if classes else {"mse": (2,)}
            )
            return EvaluationAggregation(
                phase, state, expected=expected, then=lambda: _next_round(phase, instruction, kept)
            )
        raise MethodError(f"The method 'fedscs_xgb' has no phase '{phase.name}'.")


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
        every = _config(job).checkpoint_every
        due = last or (every > 0 and phase.round % every == 0)
        if job.evaluation.due(phase.round, job.rounds):
            next_phase: Phase | None = phase.then(
                "evaluate", following.to_payload(), purpose=Purpose.EVALUATE, audience=Audience.ALL
            )
        else:
            next_phase = _next_round(phase, following, state)
        return Outcome(
            next_phase=next_phase,
            state=state.to_payload(),
            model=_model(job, following) if due else None,
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


def _config(job: JobContext) -> FedScsConfig:
    return validate(FedScsConfig, dict(job.config), source="method_config")


def _next_round(phase: Phase, instruction: BoostingInstruction, state: BoostingState) -> Phase | None:
    """The first phase of the round that follows; None after the last."""
    following = phase.round + 1
    if following > phase.job.rounds:
        return None
    if instruction.parameters.sketches_in(following - 1) or not state.edges:
        return phase.then("sketch", dataclasses.replace(instruction, edges=()).to_payload(), round=following)
    return phase.then("atoms", dataclasses.replace(instruction, edges=state.edges).to_payload(), round=following)


def _reference_schema(job: JobContext, config: FedScsConfig) -> Schema:
    """The job's own columns, or those of the first training node in order of name; empty when nothing is known."""
    described = [job.datasets[n] for n in job.nodes if n in job.datasets and n not in job.evaluation.unseen]
    first = described[0] if described else None
    classes = json.loads(first.facts["classes"]) if first and "classes" in first.facts else []
    if config.features:
        return Schema(features=config.features, classes=tuple(classes))
    columns = [column.name for column in first.columns if column.name != first.target] if first else []
    return Schema(features=tuple(columns), classes=tuple(classes))


def _model(job: JobContext, instruction: BoostingInstruction) -> Payload:
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
