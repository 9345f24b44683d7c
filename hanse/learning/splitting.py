"""Growing trees from atoms: XGBoost's own split search, on bin ids instead of rows.

Rows of an atom are in the same bin of every feature, so a tree over the bins sees nothing but sums per atom.
The atoms are given to XGBoost as rows whose values are bin ids; each id is a bin of its own, and the trees
are those that XGBoost grows on the raw rows with the same bins and the same gradients. Bin ids in the trees
are then replaced by the cuts they stand for.

XGBoost reads float32 gradients, which hold integers of 24 bits. A larger sum is handed over in parts of 24
bits, as further rows with the same bins; XGBoost adds rows in float64, so what it sees is the exact sum.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hanse.errors import MethodError
from hanse.learning.arrays import FLOAT32_MAX, Float32, Int32, Int64
from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges
from hanse.learning.drawing import chosen_columns
from hanse.learning.fixed_point import Grid
from hanse.learning.parameters import BoostingParameters
from hanse.learning.trees import LEAF, Tree

_PART_BITS = 24


def grow_trees(
    atoms: Atoms,
    edges: BinEdges,
    parameters: BoostingParameters,
    grid: Grid,
    *,
    round_number: int,
    first_output: int = 0,
) -> tuple[Tree, ...]:
    """Grow one tree per output of the atoms, all from the same gradients.

    `first_output` is the class of the atoms' first output, for atoms that carry one class only (edges per
    class). The same atoms give the same bits on every run. Raises `MethodError` if there are no atoms.
    """
    if not len(atoms):
        raise MethodError("There are no atoms to grow trees from.", code="NO_ROWS", remedy="Check the datasets.")
    outputs = atoms.gradient.shape[1]
    if parameters.colsample_bytree >= 1.0:
        columns = np.arange(edges.features, dtype=np.int64)
        return _grow(atoms, columns, edges, parameters, grid)
    trees: list[Tree] = []
    for k in range(outputs):
        columns = chosen_columns(
            parameters.seed, round_number, first_output + k, edges.features, parameters.colsample_bytree
        )
        trees += _grow(atoms.output(k), columns, edges, parameters, grid)
    return tuple(trees)


def _grow(
    atoms: Atoms, columns: Int64, edges: BinEdges, parameters: BoostingParameters, grid: Grid
) -> tuple[Tree, ...]:
    import xgboost

    bins = atoms.bins[:, columns]
    values = bins.astype(np.float32)
    values[bins < 0] = np.nan
    rows, gradient, hessian = _float32_parts(atoms, grid)
    data = xgboost.DMatrix(values[rows], nthread=1)
    outputs = gradient.shape[1]
    # More bins than ids, so that every id is a bin; up to 256 cost nothing extra.
    settings: dict[str, Any] = {"max_bin": max(edges.widest + 1, 256), **_settings(parameters, outputs)}
    booster = xgboost.Booster(settings, [data])
    booster.boost(data, 0, grad=gradient, hess=hessian)
    model = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]
    highest = bins.max(axis=0)
    return tuple(_translated(tree, columns, highest, edges) for tree in model["trees"])


def _settings(parameters: BoostingParameters, outputs: int) -> dict[str, Any]:
    several = {"objective": "multi:softprob", "num_class": outputs}
    return {
        "tree_method": "hist",
        "nthread": 1,
        "verbosity": 1,
        "base_score": 0.0,
        "eta": parameters.eta,
        "max_depth": parameters.max_depth,
        "max_leaves": parameters.max_leaves,
        "lambda": parameters.reg_lambda,
        "alpha": parameters.reg_alpha,
        "gamma": parameters.gamma,
        "min_child_weight": parameters.min_child_weight,
        "max_delta_step": parameters.max_delta_step,
        **(several if outputs > 1 else {"objective": "reg:squarederror"}),
    }


def _float32_parts(atoms: Atoms, grid: Grid) -> tuple[Int64, Float32, Float32]:
    """Atom numbers [m] and their gradients and hessians float32 [m, K]; parts of an atom add up exactly."""
    sign, magnitude = np.sign(atoms.gradient), np.abs(atoms.gradient)
    rows, gradients, hessians = [], [], []
    for part in range(3):
        shift = part * _PART_BITS
        g = (magnitude >> shift) & ((1 << _PART_BITS) - 1)
        h = (atoms.hessian >> shift) & ((1 << _PART_BITS) - 1)
        used = np.flatnonzero((g != 0).any(axis=1) | (h != 0).any(axis=1)) if part else np.arange(len(atoms))
        rows.append(used)
        gradients.append(np.ldexp((sign * g)[used].astype(np.float32), shift + grid.gradient))
        hessians.append(np.ldexp(h[used].astype(np.float32), shift + grid.hessian))
    return (
        np.concatenate(rows).astype(np.int64),
        np.concatenate(gradients).astype(np.float32),
        np.concatenate(hessians).astype(np.float32),
    )


def _translated(tree: dict[str, Any], columns: Int64, highest: Int32, edges: BinEdges) -> Tree:
    """A tree over bin ids as a tree over raw values.

    An id `b` as a threshold means the lower edge of bin `b`. XGBoost's last cut lies above the highest id that
    occurs; it separates present from missing values and becomes the largest float32.
    """
    if tree["tree_param"]["num_deleted"] != "0":
        raise MethodError("XGBoost returned a tree with deleted nodes.", code="UNEXPECTED_TREE")
    left = np.array(tree["left_children"], dtype=np.int32)
    condition = np.array(tree["split_conditions"], dtype=np.float32)
    split = left != LEAF
    column = np.where(split, np.array(tree["split_indices"], dtype=np.int64), 0)
    last = condition > highest[column]
    bin_id = np.where(split & ~last, condition, 1).astype(np.int64)
    if np.any(bin_id < 1):
        raise MethodError("XGBoost returned a threshold below the first bin.", code="UNEXPECTED_TREE")
    feature = columns[column]
    cut = edges.cuts[np.minimum(edges.offsets[feature] + bin_id - 1, len(edges.cuts) - 1)]
    threshold = np.where(last, FLOAT32_MAX, cut)
    return Tree(
        left=left,
        right=np.array(tree["right_children"], dtype=np.int32),
        feature=np.where(split, feature, 0).astype(np.int32),
        threshold=np.where(split, threshold, 0).astype(np.float32),
        default_left=np.array(tree["default_left"], dtype=np.int64).astype(np.bool_) & split,
        value=np.where(split, 0, condition).astype(np.float32),
        gain=np.where(split, np.array(tree["loss_changes"], dtype=np.float32), 0).astype(np.float32),
    )
