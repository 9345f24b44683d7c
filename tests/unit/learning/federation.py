"""A federation in one process: how the pieces of the mathematics fit together.

Nodes keep rows, labels, margins and gradients; everything that passes between a node and the server is the
return value of a method. No sockets, no payloads.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from hanse.learning.atoms import Atoms, aggregate
from hanse.learning.bin_edges import BinEdges, exact_edges, merge_distinct, sketched_edges
from hanse.learning.binning import BucketedValues
from hanse.learning.drawing import chosen_rows
from hanse.learning.fixed_point import Grid, encode
from hanse.learning.growth import Growth, grow_level, plant
from hanse.learning.histograms import Histograms, histograms
from hanse.learning.objectives import make_objective, rounded_gradients
from hanse.learning.parameters import BoostingParameters
from hanse.learning.setup_sums import SetupSums
from hanse.learning.sketch import BucketMapping, Sketch, merge_sketches
from hanse.learning.splitting import grow_trees
from hanse.learning.trees import Forest, Tree


@dataclass
class Node:
    """One site's rows: `values` float32 [n, F], `labels` float32 [n], `weights` float32 [n] or none."""

    parameters: BoostingParameters
    values: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    # Numbers that stay with the rows, for subsampling.
    rows: np.ndarray | None = None

    def setup(self) -> SetupSums:
        self.objective = make_objective(self.parameters)
        return SetupSums.of(self.objective, self.values, self.labels, self.weights)

    def begin(self, centres: np.ndarray, base: np.ndarray, grid: Grid) -> None:
        self.grid = grid
        self.position: dict[int, np.ndarray] = {}
        self.margins = Forest.of_rounds([]).margins(self.values, base)
        mapping = BucketMapping(self.parameters.sketch_accuracy)
        exact = self.parameters.bin_source == "exact"
        self.buckets = BucketedValues.exact(self.values) if exact else BucketedValues.of(self.values, centres, mapping)
        w = np.ones(len(self.labels), dtype=np.float32) if self.weights is None else self.weights
        self.weight = encode(w, grid.hessian, name="weight")
        if self.rows is None:
            self.rows = np.arange(len(self.labels), dtype=np.uint64)

    def compute_gradients(self, round_number: int) -> None:
        self.gradient, self.hessian = rounded_gradients(
            self.objective, self.margins, self.labels, self.weights, self.grid
        )
        p = self.parameters
        self.chosen = chosen_rows(p.seed, round_number, self.rows, p.subsample)

    def distinct(self) -> tuple[np.ndarray, ...]:
        return self.buckets.lower

    def sketches(self, output: int | None = None) -> tuple[Sketch, ...]:
        weights = self.hessian.sum(axis=1) if output is None else self.hessian[:, output]
        return self.buckets.sketches(weights, self.chosen)

    def atoms(self, edges: BinEdges) -> tuple[Atoms, np.ndarray]:
        chosen = self.chosen
        bins = self.buckets.bins(edges)[chosen]
        return aggregate(bins, edges, self.weight[chosen], self.gradient[chosen], self.hessian[chosen])

    def histograms(self, edges: BinEdges, output: int, growth: Growth) -> Histograms:
        """What the node answers to one level of one tree."""
        chosen = self.chosen
        if growth.depth == 0:
            self.position[output] = np.zeros(np.count_nonzero(chosen), dtype=np.int32)
            self.bins = self.buckets.bins(edges)[chosen]
        else:
            self.position[output] = growth.tree.step(self.values[chosen], self.position[output])
        return histograms(
            self.bins,
            edges,
            self.position[output],
            growth.wanted,
            self.gradient[chosen, output],
            self.hessian[chosen, output],
        )

    def update(self, trees: Sequence[Tree]) -> None:
        self.margins = Forest.of_rounds([trees]).margins(self.values, self.margins)


@dataclass
class Federation:
    """The server's loop over rounds."""

    parameters: BoostingParameters
    nodes: list[Node]
    statistics: str = "atoms"
    forest: Forest = field(default_factory=lambda: Forest.of_rounds([]))
    edges: list[BinEdges] = field(default_factory=list)

    def setup(self) -> None:
        p = self.parameters
        self.objective = make_objective(p)
        sums = reduce(lambda a, b: a + b, [node.setup() for node in self.nodes])
        self.centres = sums.centres()
        self.base = sums.base_margins(self.objective, p)
        self.grid = sums.grid(self.objective)
        for node in self.nodes:
            node.begin(self.centres, self.base, self.grid)

    def make_edges(self) -> list[BinEdges]:
        p = self.parameters
        if p.bin_source == "exact":
            return [exact_edges(reduce(merge_distinct, [node.distinct() for node in self.nodes]))]
        mapping = BucketMapping(p.sketch_accuracy)
        outputs: list[int | None] = [None] if p.edges == "shared" else list(range(p.outputs))
        return [
            sketched_edges(
                reduce(merge_sketches, [node.sketches(k) for node in self.nodes]), self.centres, mapping, p.bins
            )
            for k in outputs
        ]

    def boost(self, round_number: int) -> tuple[Tree, ...]:
        p = self.parameters
        for node in self.nodes:
            node.compute_gradients(round_number)
        if p.sketches_in(round_number):
            self.edges = self.make_edges()
        by = self.by_atoms if self.statistics == "atoms" else self.by_histograms
        trees = by(round_number)
        for node in self.nodes:
            node.update(trees)
        self.forest += Forest.of_rounds([trees])
        return tuple(trees)

    def by_histograms(self, round_number: int) -> list[Tree]:
        p = self.parameters
        trees = []
        for k in range(p.outputs):
            edges = self.edges[k if len(self.edges) > 1 else 0]
            growth = plant(edges, p, round_number=round_number, output=k)
            while not growth.finished:
                merged = reduce(operator.add, [node.histograms(edges, k, growth) for node in self.nodes])
                growth = grow_level(growth, merged, edges, p, self.grid)
            trees.append(growth.tree)
        return trees

    def by_atoms(self, round_number: int) -> list[Tree]:
        p = self.parameters
        trees: list[Tree] = []
        for k, edges in enumerate(self.edges):
            parts = [node.atoms(edges)[0] for node in self.nodes]
            self.atoms = parts[0].merge(*parts[1:])
            atoms = self.atoms if len(self.edges) == 1 else self.atoms.output(k)
            trees += grow_trees(atoms, edges, p, self.grid, round_number=round_number, first_output=k)
        return trees

    def run(self, rounds: int) -> Forest:
        self.setup()
        for round_number in range(rounds):
            self.boost(round_number)
        return self.forest


def federation(
    parameters: BoostingParameters,
    values: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    parts: Sequence[np.ndarray] | None = None,
    statistics: str = "atoms",
) -> Federation:
    """A federation over the rows, split into the index arrays `parts` (one node by default)."""
    parts = [np.arange(len(labels))] if parts is None else parts
    nodes = [
        Node(parameters, values[i], labels[i], None if weights is None else weights[i], i.astype(np.uint64))
        for i in parts
    ]
    return Federation(parameters, nodes, statistics)
