"""Trees from histograms: one exchange a level, all trees of the round together.

The state between two levels is the unfinished trees with the histograms of the open nodes' parents: of two siblings
only the smaller is asked for, and integer subtraction gives the other. That holds only while the same nodes answer,
so the nodes of the first level are the round's cohort. If one of them is missing later, the trees are begun anew
without it; who arrives in the middle of a tree waits for the next round.
"""

from __future__ import annotations

import dataclasses

from hanse.errors import InvalidPayload, MethodError, RejectedContribution
from hanse.learning.bin_edges import BinEdges
from hanse.learning.growth import Growth, grow_level
from hanse.learning.histograms import Histograms
from hanse.learning.trees import Forest
from hanse.method import Contribution, Outcome, Phase
from hanse.payload.boosting import BoostingInstruction
from hanse.payload.kinds import read_histograms
from hanse_aggregator.plugins.boosting_models import (
    aggregation_metric,
    close_round,
    first_statistics,
    next_level,
    sent_bytes,
)
from hanse_aggregator.plugins.boosting_pictures import importance_and_tree, occupancy_by_histograms
from hanse_aggregator.plugins.boosting_rounds import rejected
from hanse_aggregator.plugins.boosting_state import BoostingState


class HistogramAggregation:
    """Adds up histograms as they arrive; the outcome is the next level, or the trees of the round."""

    def __init__(self, phase: Phase, instruction: BoostingInstruction, state: BoostingState) -> None:
        if instruction.setup is None or not state.edges or not state.growths:
            raise MethodError("The histogram phase came before its edges.")
        self._phase, self._instruction, self._state = phase, instruction, state
        self._grid = instruction.setup.grid
        self._wanted = tuple(len(growth.wanted) for growth in state.growths)
        self._first = all(growth.depth == 0 for growth in state.growths)
        self._sums: tuple[Histograms, ...] = ()
        self._counted: set[str] = set()
        self._bytes: dict[str, int] = {}

    def add(self, contribution: Contribution) -> None:
        """Add a node's histograms; those of a node that is not of the round's cohort are left aside.

        Raises:
            RejectedContribution: not histograms of the wanted nodes over the round's edges in the job's units.
        """
        node, payload = contribution.node, contribution.payload
        try:
            parts = read_histograms(payload, self._state.edges, self._wanted, self._grid)
        except (InvalidPayload, RejectedContribution) as error:
            raise rejected(node, error) from error
        self._bytes[node] = payload.size
        if node in self._state.left_out or not (self._first or node in self._state.cohort):
            return
        self._counted.add(node)
        if not self._sums:
            self._sums = parts
        else:
            for total, part in zip(self._sums, parts, strict=True):
                total.take(part)

    def finish(self) -> Outcome:
        """The next level of the trees; the whole round, when they are finished; the first level again, when a node
        of the cohort is missing."""
        state = self._state
        missing = set() if self._first else set(state.cohort) - self._counted
        if missing or not self._counted:
            return self._begin_again(missing)
        state = dataclasses.replace(state, cohort=tuple(sorted(self._counted)))
        growths = tuple(self._grown(k, growth) for k, growth in enumerate(state.growths))
        state = dataclasses.replace(state, growths=growths)
        metrics = (
            *sent_bytes(self._bytes, "histogram_bytes"),
            aggregation_metric("nodes_left_aside", float(len(set(self._bytes) - self._counted))),
        )
        names = self._instruction.schema.features
        shown = (occupancy_by_histograms(names, state, self._sums[0], state.edges[0]),) if self._first else ()
        if any(not growth.finished for growth in growths):
            told = next_level(self._phase, self._instruction, state, round_number=self._phase.round)
            return Outcome(next_phase=told, state=state.to_payload(), metrics=metrics, pictures=shown)
        forest = Forest.of_rounds([[growth.tree for growth in growths]])
        state = state.with_trees(forest)
        pictures = (*shown, *importance_and_tree(names, state, forest))
        return close_round(self._phase, self._instruction, state, forest, metrics=metrics, pictures=pictures)

    def _grown(self, k: int, growth: Growth) -> Growth:
        if growth.finished:
            return growth
        return grow_level(growth, self._sums[k], self._edges(k), self._instruction.parameters, self._grid)

    def _edges(self, k: int) -> BinEdges:
        return self._state.edges[k if len(self._state.edges) > 1 else 0]

    def _begin_again(self, missing: set[str]) -> Outcome:
        if self._first:
            raise MethodError(
                "No node is left that has answered at every level of the trees.",
                code="NODES_FELL_AWAY",
                remedy="Look after the nodes that come and go, then resume the job.",
            )
        state = dataclasses.replace(self._state, left_out=tuple(sorted({*self._state.left_out, *missing})))
        following, state = first_statistics(self._phase, self._instruction, state, round_number=self._phase.round)
        return Outcome(
            next_phase=following,
            state=state.to_payload(),
            metrics=(
                *sent_bytes(self._bytes, "histogram_bytes"),
                aggregation_metric("trees_begun_again", float(len(missing))),
            ),
        )
