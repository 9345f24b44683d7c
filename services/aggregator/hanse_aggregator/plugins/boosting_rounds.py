"""The exchanges of a boosting round by atoms: sketches become edges, atoms become trees."""

from __future__ import annotations

import dataclasses

import numpy as np

from hanse.errors import InvalidPayload, MethodError, RejectedContribution
from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges, exact_edges, sketched_edges
from hanse.learning.sketch import BucketMapping
from hanse.learning.splitting import grow_trees
from hanse.learning.trees import Forest
from hanse.method import Contribution, MetricValue, Outcome, Phase, Scope
from hanse.payload.boosting import BoostingInstruction, read_distinct
from hanse.payload.kinds import AtomCounts, SketchBlock, read_atoms, read_sketches
from hanse_aggregator.plugins.boosting_models import (
    aggregation_metric,
    close_round,
    first_statistics,
    sent_bytes,
)
from hanse_aggregator.plugins.boosting_pictures import importance_and_tree, occupancy_by_atoms
from hanse_aggregator.plugins.boosting_state import BoostingState, MergingStack, totals


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
        """The edges, in the instruction of the phase that asks for the round's statistics."""
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
        state = dataclasses.replace(self._state, edges=edges, left_out=())
        following, state = first_statistics(self._phase, self._instruction, state, round_number=self._phase.round)
        bins = np.concatenate([each.bins for each in edges])
        return Outcome(
            next_phase=following,
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
        self._counts: dict[str, AtomCounts] = {}
        self._atoms: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def add(self, contribution: Contribution) -> None:
        """Merge a node's atoms.

        Raises:
            RejectedContribution: not atoms over the round's edges in the job's units.
        """
        node, payload = contribution.node, contribution.payload
        try:
            sets, counts = read_atoms(
                payload, edges=self._instruction.edges, outputs=self._instruction.parameters.outputs, grid=self._grid
            )
        except (InvalidPayload, RejectedContribution) as error:
            raise rejected(node, error) from error
        for stack, atoms in zip(self._stacks, sets, strict=True):
            stack.push(atoms)
        self._counts[node], self._bytes[node] = counts, payload.size
        self._atoms[node] = sum(len(each) for each in sets)

    def finish(self) -> Outcome:
        """The trees of the round."""
        phase, instruction = self._phase, self._instruction
        merged = totals(self._stacks)
        number, parameters = instruction.boosting_round(phase.round), instruction.parameters
        grown = [
            tree
            for k, (atoms, edges) in enumerate(zip(merged, instruction.edges, strict=False))
            for tree in grow_trees(atoms, edges, parameters, self._grid, round_number=number, first_output=k)
        ]
        forest = Forest.of_rounds([grown])
        state = self._state.with_trees(forest)
        names = instruction.schema.features
        pictures = (
            occupancy_by_atoms(names, state, merged[0], instruction.edges[0]),
            *importance_and_tree(names, state, forest),
        )
        return close_round(phase, instruction, state, forest, metrics=self._metrics(merged), pictures=pictures)

    def _metrics(self, merged: list[Atoms]) -> tuple[MetricValue, ...]:
        rows: list[MetricValue] = []
        counts = {node: self._counts[node] for node in sorted(self._counts)}
        for node, counted in counts.items():

            def of_node(name: str, value: float, weight: int, node: str = node) -> None:
                rows.append(MetricValue(name=name, value=value, scope=Scope.NODE, node=node, weight=weight))

            of_node("atoms", float(self._atoms[node]), counted.rows)
            if self._atoms[node]:
                of_node("single_row_atoms", counted.single / self._atoms[node], self._atoms[node])
            if counted.found:
                of_node("small_atoms", counted.small / counted.found, counted.found)
                of_node("coarsened", float(counted.coarsened), counted.found)
        sent, found = sum(self._atoms.values()), sum(each.found for each in counts.values())
        single, small = sum(each.single for each in counts.values()), sum(each.small for each in counts.values())
        return (
            *rows,
            *sent_bytes(self._bytes, "atom_bytes"),
            aggregation_metric("atoms", float(sum(len(each) for each in merged))),
            aggregation_metric("single_row_atoms", single / sent if sent else 0.0, weight=float(sent)),
            aggregation_metric("small_atoms", small / found if found else 0.0, weight=float(found)),
        )


def rejected(node: str, error: InvalidPayload | RejectedContribution) -> RejectedContribution:
    """The error of a reader as the rejection of a node's contribution."""
    return RejectedContribution(f"The contribution of node '{node}': {error.sentence}", remedy=error.remedy)
