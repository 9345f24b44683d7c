"""Pictures of a boosting round: which features matter, how full the bins are, and a tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges
from hanse.learning.histograms import Histograms
from hanse.learning.trees import LEAF, Forest
from hanse.method import Picture
from hanse.payload.kinds import document_payload
from hanse_aggregator.plugins.boosting_state import BoostingState

TABLE_ROWS = 50
MATRIX_ROWS = 30
MATRIX_COLUMNS = 64
PICTURE = "picture"


def importance_and_tree(names: tuple[str, ...], state: BoostingState, forest: Forest) -> tuple[Picture, ...]:
    """The pictures of the round that grew `forest`, which `state` counts already."""
    return _importance(names, state, _order(state)[:TABLE_ROWS]), _tree(names, forest)


def occupancy_by_atoms(names: tuple[str, ...], state: BoostingState, atoms: Atoms, edges: BinEdges) -> Picture:
    """How full the bins of the most important features are, by the weight of the atoms."""
    shown = _order(state)[:MATRIX_ROWS]
    weight = atoms.weight.astype(np.float64)
    by_bin: list[NDArray[np.float64]] = [
        np.bincount(atoms.ids[:, f], weight, int(edges.bins[f]) + 1).astype(np.float64) for f in shown.tolist()
    ]
    return _occupancy(names, shown, by_bin, edges, "weight")


def occupancy_by_histograms(names: tuple[str, ...], state: BoostingState, root: Histograms, edges: BinEdges) -> Picture:
    """How full the bins of the most important features are, by the hessians of the first tree's root."""
    shown = _order(state)[:MATRIX_ROWS]
    hessian, total = root.sums[0, 1].astype(np.float64), float(root.totals[0, 1])
    by_bin = []
    for f in shown.tolist():
        own = hessian[edges.offsets[f] : edges.offsets[f + 1]]
        by_bin.append(np.append(total - own.sum(), own))
    return _occupancy(names, shown, by_bin, edges, "hessian")


def _order(state: BoostingState) -> NDArray[np.int64]:
    """Features by gain, the most important first."""
    return np.lexsort((np.arange(len(state.gains)), -state.gains))


def _importance(names: tuple[str, ...], state: BoostingState, shown: NDArray[np.int64]) -> Picture:
    total = float(state.gains.sum())
    gain, splits = state.gains[shown], state.splits[shown]
    document = {"label_column": "feature", "labels": [names[f] for f in shown], "features": len(names)}
    arrays = {
        "share_of_gain": gain / total if total else gain,
        "gain": gain,
        "splits": splits,
    }
    return Picture(
        name="feature_importance",
        kind="table",
        title="Features by the loss that their splits have saved",
        payload=document_payload(PICTURE, document, arrays),
    )


def _occupancy(
    names: tuple[str, ...], shown: NDArray[np.int64], by_bin: list[NDArray[np.float64]], edges: BinEdges, what: str
) -> Picture:
    """Share of each shown feature's weight by bin (missing first), neighbouring bins joined to at most 64 columns."""
    columns = min(MATRIX_COLUMNS, edges.widest)
    values = np.zeros((len(shown), columns), dtype=np.float64)
    missing = np.zeros(len(shown), dtype=np.float64)
    for row, weights in enumerate(by_bin):
        share = weights / (float(weights.sum()) or 1.0)
        missing[row] = share[0]
        place = np.arange(len(share) - 1) * columns // edges.widest
        values[row] = np.bincount(place, share[1:], columns)
    document = {
        "rows": [names[f] for f in shown],
        "columns": [str(i * edges.widest // columns) for i in range(columns)],
        "row_title": "feature",
        "column_title": "bin (first of those joined)",
    }
    return Picture(
        name="bin_occupancy",
        kind="matrix",
        title=f"Share of the {what} in each bin",
        payload=document_payload(PICTURE, document, {"values": values.astype(np.float32), "missing": missing}),
    )


def _tree(names: tuple[str, ...], forest: Forest) -> Picture:
    """The tree of this round that saved the most loss."""
    chosen = int(np.argmax([float(tree.gain.sum()) for tree in forest.trees]))
    tree = forest.trees[chosen]
    split = tree.left != LEAF
    used = np.unique(tree.feature[split])
    place = np.zeros(len(names), dtype=np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    arrays = {
        "left": tree.left,
        "right": tree.right,
        "feature": np.where(split, place[tree.feature], -1).astype(np.int32),
        "threshold": tree.threshold,
        "default_left": tree.default_left,
        "value": tree.value,
        "gain": tree.gain,
    }
    document = {"features": [names[f] for f in used], "output": int(forest.outputs[chosen])}
    return Picture(
        name="tree",
        kind="tree",
        title=f"The round's most useful tree (output {int(forest.outputs[chosen])})",
        payload=document_payload(PICTURE, document, arrays),
    )
