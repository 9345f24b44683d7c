"""Pictures of a boosting round: which features matter, how full the bins are, and a tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges
from hanse.learning.trees import LEAF, Forest
from hanse.method import Picture
from hanse.payload.kinds import document_payload
from hanse_aggregator.plugins.boosting_state import BoostingState

TABLE_ROWS = 50
MATRIX_ROWS = 30
MATRIX_COLUMNS = 64
PICTURE = "picture"


def pictures(
    names: tuple[str, ...], state: BoostingState, atoms: Atoms, edges: BinEdges, forest: Forest
) -> tuple[Picture, ...]:
    """The pictures of the round that grew `forest` from `atoms` over `edges`."""
    order = np.lexsort((np.arange(len(names)), -state.gains))
    return (
        _importance(names, state, order[:TABLE_ROWS]),
        _occupancy(names, atoms, edges, order[:MATRIX_ROWS]),
        _tree(names, forest),
    )


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


def _occupancy(names: tuple[str, ...], atoms: Atoms, edges: BinEdges, shown: NDArray[np.int64]) -> Picture:
    """Share of each feature's weight by bin, neighbouring bins joined to at most 64 columns; missing apart."""
    columns = min(MATRIX_COLUMNS, edges.widest)
    values = np.zeros((len(shown), columns), dtype=np.float64)
    missing = np.zeros(len(shown), dtype=np.float64)
    weight = atoms.weight.astype(np.float64)
    total = float(weight.sum()) or 1.0
    for row, feature in enumerate(shown.tolist()):
        by_bin = np.bincount(atoms.ids[:, feature], weight, int(edges.bins[feature]) + 1) / total
        missing[row] = by_bin[0]
        place = np.arange(len(by_bin) - 1) * columns // edges.widest
        values[row] = np.bincount(place, by_bin[1:], columns)
    document = {
        "rows": [names[f] for f in shown],
        "columns": [str(i * edges.widest // columns) for i in range(columns)],
        "row_title": "feature",
        "column_title": "bin (first of those joined)",
    }
    return Picture(
        name="bin_occupancy",
        kind="matrix",
        title="Share of the weight in each bin",
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
