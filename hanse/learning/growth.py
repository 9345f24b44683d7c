"""Growing one tree level by level from histograms: a state, and the step from one level to the next.

The state is all that the server needs between two exchanges. Nodes are numbered, expanded and given up as in
XGBoost's depth-wise `hist`: in order of their numbers, while the gain exceeds 1e-6 and reaches gamma, the
depth stays below `max_depth` and the leaves below `max_leaves`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hanse.learning.arrays import Bool, Float32, Int32, Int64
from hanse.learning.bin_edges import BinEdges
from hanse.learning.drawing import chosen_columns
from hanse.learning.fixed_point import Grid
from hanse.learning.histograms import Histograms
from hanse.learning.parameters import BoostingParameters
from hanse.learning.split_finder import Regulariser, Splits, find_splits
from hanse.learning.trees import LEAF, Tree

_LEAST_GAIN = np.float32(1e-6)


@dataclass(frozen=True, eq=False)
class Growth:
    """A tree on its way.

    `tree`: the tree so far, complete in itself: open nodes are leaves with their values. `wanted` int32 [R]:
    the nodes whose histograms come next; none when the tree is finished. `siblings` int32 [R]: their siblings,
    -1 for the root. `parents` int64 [R, 2, total bins] and `totals` int64 [m, 2]: histograms of the parents, and
    sums of all nodes. `occupied` bool [total bins]: bins that hold rows at the root. `columns` bool [F].
    """

    tree: Tree
    wanted: Int32
    siblings: Int32
    parents: Int64
    totals: Int64
    occupied: Bool
    columns: Bool
    depth: int = 0

    @property
    def finished(self) -> bool:
        """Whether no more histograms are needed."""
        return not len(self.wanted)


def plant(edges: BinEdges, parameters: BoostingParameters, *, round_number: int, output: int) -> Growth:
    """The state before the first exchange: one open root."""
    columns = np.zeros(edges.features, dtype=np.bool_)
    columns[chosen_columns(parameters.seed, round_number, output, edges.features, parameters.colsample_bytree)] = True
    return Growth(
        tree=Tree.leaf(0.0),
        wanted=np.zeros(1, dtype=np.int32),
        siblings=np.full(1, -1, dtype=np.int32),
        parents=np.zeros((0, 2, len(edges.cuts)), dtype=np.int64),
        totals=np.zeros((1, 2), dtype=np.int64),
        occupied=np.zeros(len(edges.cuts), dtype=np.bool_),
        columns=columns,
    )


def grow_level(
    growth: Growth, merged: Histograms, edges: BinEdges, parameters: BoostingParameters, grid: Grid
) -> Growth:
    """The state after one exchange; `merged` are the histograms of `growth.wanted`, added up over all sites."""
    regulariser = Regulariser(parameters, grid)
    if growth.depth == 0:
        value = regulariser.weight(merged.totals) * np.float32(parameters.eta)
        growth = replace(
            growth,
            tree=Tree.leaf(float(value[0])),
            totals=merged.totals,
            # Every row has a positive integer hessian.
            occupied=merged.sums[0, 1] > 0,
        )
        nodes, sums = growth.wanted, merged.sums
    else:
        nodes = np.concatenate([growth.wanted, growth.siblings])
        sums = np.concatenate([merged.sums, growth.parents - merged.sums])
        order = np.argsort(nodes)
        nodes, sums = nodes[order], sums[order]
    splits = find_splits(sums, growth.totals[nodes], edges, growth.occupied, growth.columns, regulariser)
    chosen = _chosen(growth.tree, splits, parameters)
    return _expanded(growth, nodes[chosen], sums[chosen], _select(splits, chosen), regulariser)


def _chosen(tree: Tree, splits: Splits, parameters: BoostingParameters) -> Int64:
    """Which nodes are expanded, int64 indices; the first ones where `max_leaves` limits them."""
    good = np.flatnonzero((splits.gain > _LEAST_GAIN) & (splits.gain >= np.float32(parameters.gamma)))
    if parameters.max_leaves:
        leaves = int(np.count_nonzero(tree.left == LEAF))
        good = good[: max(parameters.max_leaves - leaves, 0)]
    return good


def _select(splits: Splits, chosen: Int64) -> Splits:
    return Splits(
        splits.gain[chosen],
        splits.feature[chosen],
        splits.threshold[chosen],
        splits.default_left[chosen],
        splits.left[chosen],
        splits.right[chosen],
    )


def _expanded(growth: Growth, nodes: Int32, sums: Int64, splits: Splits, regulariser: Regulariser) -> Growth:
    parameters = regulariser.parameters
    size, count = len(growth.tree), len(nodes)
    left = size + 2 * np.arange(count, dtype=np.int32)
    right = left + 1
    child_sums = np.stack([splits.left, splits.right], axis=1).reshape(-1, 2)
    values: Float32 = regulariser.weight(child_sums) * np.float32(parameters.eta)
    old = growth.tree

    def grown(name: str, at_nodes: np.ndarray, new: np.ndarray) -> np.ndarray:
        column = np.concatenate([getattr(old, name), new]).astype(getattr(old, name).dtype)
        column[nodes] = at_nodes
        return column

    leaf, zero = np.full(2 * count, LEAF), np.zeros(2 * count)
    tree = Tree(
        left=grown("left", left, leaf),
        right=grown("right", right, leaf),
        feature=grown("feature", splits.feature, zero),
        threshold=grown("threshold", splits.threshold, zero),
        default_left=grown("default_left", splits.default_left, zero),
        value=grown("value", np.zeros(count), values),
        gain=grown("gain", splits.gain, zero),
    )
    depth = growth.depth + 1
    full = parameters.max_leaves and np.count_nonzero(tree.left == LEAF) >= parameters.max_leaves
    if depth >= parameters.max_depth or full:
        left, right, sums = left[:0], right[:0], sums[:0]
        splits = _select(splits, np.zeros(0, dtype=np.int64))
    left_smaller = splits.left[:, 1] <= splits.right[:, 1]
    return replace(
        growth,
        tree=tree,
        wanted=np.where(left_smaller, left, right).astype(np.int32),
        siblings=np.where(left_smaller, right, left).astype(np.int32),
        parents=sums,
        totals=np.concatenate([growth.totals, child_sums]),
        depth=depth,
    )
