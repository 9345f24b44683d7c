"""What a node replies in each phase of FedSCS-XGB: sums over its rows, made without looking at any state."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hanse.errors import MethodError, PolicyRefusal
from hanse.learning.atoms import Atoms, aggregate, coarsen, coarsening_for, small_atom_share
from hanse.learning.bin_edges import BinEdges
from hanse.learning.binning import BucketedValues
from hanse.learning.fixed_point import GRID_EXPONENT, encode
from hanse.learning.histograms import histograms
from hanse.learning.metrics import Confusion, Ranking
from hanse.learning.objectives import Objective
from hanse.learning.setup_sums import SetupSums
from hanse.learning.sketch import BucketMapping
from hanse.learning.trees import LEAF, Tree
from hanse.method import LearnerLimits
from hanse.payload import Payload
from hanse.payload.boosting import SETUP, BoostingInstruction, Schema, Setup, distinct_payload
from hanse.payload.kinds import (
    AtomCounts,
    ConfusionSum,
    MetricSum,
    RankingSum,
    RatioSum,
    atoms_payload,
    document_payload,
    histograms_payload,
    metrics_payload,
    sketches_payload,
    text_array,
)
from hanse.payload.metrics import RATIO_FRACTION_BITS
from hanse.tables import Table
from hanse_agent.learners.boosting_rows import Rows


@dataclass(kw_only=True, eq=False)
class RoundRows:
    """The rows that take part in a round: what all its phases are counted from, kept warm between them.

    `drawn` are places in `rows.training`; `gradient` and `hessian` int64 [drawn, K]; `bins` int32 [drawn, F] by set of
    edges; `positions` the unfinished tree of an output and the node int32 [drawn] that each row has reached in it.
    """

    rows: Rows
    buckets: BucketedValues
    drawn: NDArray[np.int64]
    gradient: NDArray[np.int64]
    hessian: NDArray[np.int64]
    values: NDArray[np.float32]
    bins: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    positions: dict[int, tuple[Tree, NDArray[np.int32]]] = field(default_factory=dict)
    edges: tuple[BinEdges, ...] = ()

    def bins_over(self, edges: tuple[BinEdges, ...], place: int) -> NDArray[np.int32]:
        """Bin ids int32 [drawn, F] over the edge set number `place`, column by column in memory."""
        if not _same_edges(self.edges, edges):
            self.edges, self.bins = edges, {}
        if place not in self.bins:
            ids = self.buckets.bins(edges[place])
            self.bins[place] = ids if len(self.drawn) == len(ids) else np.asfortranarray(ids[self.drawn])
        return self.bins[place]

    def position(self, output: int, tree: Tree) -> NDArray[np.int32]:
        """The node of an unfinished tree that each row has reached: from where it was, if that was the same tree."""
        before = self.positions.get(output)
        if before is not None and _grown_from(before[0], tree):
            node = before[1].copy()
        else:
            node = np.zeros(len(self.drawn), dtype=np.int32)
        while True:
            rows = np.flatnonzero(tree.left[node] != LEAF)
            if not len(rows):
                break
            node[rows] = tree.step_of(self.values, rows, node[rows])
        self.positions[output] = tree, node
        return node


def setup_reply(table: Table, rows: Rows, instruction: BoostingInstruction, objective: Objective) -> Payload:
    """The node's schema and the sums over its training rows that fix base margins, centres and units."""
    training = rows.training
    weights = None if rows.weights is None else rows.weights[training]
    sums = SetupSums.of(objective, rows.features[training], rows.labels[training], weights)
    schema = Schema(features=instruction.schema.features or table.feature_names, classes=table.class_names)
    texts = {"features": text_array(schema.features), "classes": text_array(schema.classes)}
    return document_payload(SETUP, {}, texts | sums.arrays())


def sketches_reply(of: RoundRows, instruction: BoostingInstruction) -> Payload:
    """Sketches weighted by the very hessian integers that the statistics will carry."""
    parameters = instruction.parameters
    if parameters.bin_source == "exact":
        return distinct_payload(of.buckets.lower)
    weights = of.hessian if parameters.edges == "per_class" else of.hessian.sum(axis=1, keepdims=True)
    full = np.zeros((of.buckets.codes.shape[1], weights.shape[1]), dtype=np.int64)
    full[of.drawn] = weights
    sketches = [of.buckets.sketches(full[:, k]) for k in range(full.shape[1])]
    return sketches_payload(sketches, BucketMapping(parameters.sketch_accuracy))


def histograms_reply(of: RoundRows, instruction: BoostingInstruction) -> Payload:
    """For each tree, the sums of the nodes that the instruction asks for."""
    frontier, edges = instruction.frontier, instruction.edges
    if frontier is None or not edges or instruction.setup is None:
        raise MethodError("The histogram phase came without edges or trees.")
    parts = []
    for k, (tree, wanted) in enumerate(zip(frontier.trees.trees, frontier.wanted, strict=True)):
        place = k if len(edges) > 1 else 0
        bins, position = of.bins_over(edges, place), of.position(k, tree)
        parts.append(histograms(bins, edges[place], position, wanted, of.gradient[:, k], of.hessian[:, k]))
    return histograms_payload(parts, edges, instruction.setup.grid)


def atoms_reply(of: RoundRows, instruction: BoostingInstruction, limits: LearnerLimits) -> Payload:
    """Sums of rows that share all their bins.

    Raises:
        PolicyRefusal: atoms of fewer rows than the site allows, and it does not coarsen, or that does not help.
    """
    if not instruction.edges or instruction.setup is None:
        raise MethodError("The atoms phase came without edges.")
    grid, rows = instruction.setup.grid, of.rows
    if rows.weights is None:
        units = np.ones(len(of.drawn), dtype=np.float32)
    else:
        units = rows.weights[rows.training[of.drawn]]
    weight = np.maximum(encode(units, grid.hessian, name="weight"), 1)
    sets: list[Atoms] = []
    worst = AtomCounts(rows=len(of.drawn), single=0)
    for k, edges in enumerate(instruction.edges):
        own = slice(None) if len(instruction.edges) == 1 else slice(k, k + 1)
        gradient, hessian = of.gradient[:, own], of.hessian[:, own]
        bins = of.bins_over(instruction.edges, k)
        atoms, counts = aggregate(bins, edges, weight, gradient, hessian)
        small, found, factor = int(np.count_nonzero(counts < limits.minimum_rows_per_atom)), len(counts), 1
        if small:
            factor = _coarsening(bins, edges, counts, limits)
            atoms, counts = aggregate(coarsen(bins, factor), edges, weight, gradient, hessian)
        single = int(np.count_nonzero(counts == 1))
        if (small, single) >= (worst.small, worst.single):
            worst = AtomCounts(rows=len(of.drawn), single=single, small=small, found=found, coarsened=factor)
        sets.append(atoms)
    return atoms_payload(sets, worst, grid)


def _coarsening(bins: NDArray[np.int32], edges: BinEdges, counts: NDArray[np.int64], limits: LearnerLimits) -> int:
    minimum = limits.minimum_rows_per_atom
    factor = coarsening_for(bins, edges, minimum) if limits.small_atoms == "coarsen" else None
    if factor is not None:
        return factor
    small, share = int(np.count_nonzero(counts < minimum)), small_atom_share(counts, minimum)
    tried = ", and coarser bins do not help" if limits.small_atoms == "coarsen" else ""
    raise PolicyRefusal(
        f"{small} of {len(counts)} atoms ({share:.1%}) hold fewer than {minimum} rows, which makes them all but "
        f"records{tried}.",
        rule="minimum_rows_per_atom",
        remedy="Use statistics: histograms, fewer columns or fewer bins in the job; or, at the site, coarsen them "
        "(policy.small_atoms: coarsen), or lower policy.minimum_rows_per_atom where nearly single records may leave.",
    )


def evaluation_reply(
    objective: Objective, margins: NDArray[np.float32], labels: NDArray[np.float32], setup: Setup
) -> Payload:
    """Loss, confusion and, for two classes, ranking; units of a squared error follow the job's units of gradients."""
    losses = objective.losses(margins, labels)
    if not objective.classes:
        bits = RATIO_FRACTION_BITS - 2 * (setup.grid.gradient - GRID_EXPONENT)
        return metrics_payload({"mse": RatioSum.of(losses, bits)})
    predicted = objective.predictions(margins)
    sums: dict[str, MetricSum] = {
        "log_loss": RatioSum.of(losses),
        "confusion": ConfusionSum(Confusion.of(labels, predicted.argmax(axis=1), objective.classes).array),
    }
    if objective.outputs == 1:
        sums["ranking"] = RankingSum(Ranking.of(labels, predicted[:, 1]).array)
    return metrics_payload(sums)


def _same_edges(left: tuple[BinEdges, ...], right: tuple[BinEdges, ...]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a.offsets, b.offsets) and np.array_equal(a.cuts, b.cuts)
        for a, b in zip(left, right, strict=True)
    )


def _grown_from(before: Tree, tree: Tree) -> bool:
    """Whether `tree` is `before` with some of its leaves split."""
    size = len(before)
    inner = before.left != LEAF
    return len(tree) >= size and all(
        np.array_equal(getattr(before, name)[inner], getattr(tree, name)[:size][inner])
        for name in ("left", "right", "feature", "threshold", "default_left")
    )
