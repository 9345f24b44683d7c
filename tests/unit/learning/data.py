"""Made data with known structure, and the reference: XGBoost on the raw rows with the same rounded gradients."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import xgboost

from hanse.learning.fixed_point import decode
from hanse.learning.objectives import rounded_gradients
from hanse.learning.parameters import BoostingParameters
from tests.unit.learning.federation import Federation

OBJECTIVES = ("binary:logistic", "multi:softprob", "reg:squarederror")


@dataclass(frozen=True)
class Table:
    values: np.ndarray
    labels: np.ndarray


def table(objective: str, rows: int, *, missing: float = 0.0, features: int = 5, seed: int = 1) -> Table:
    """Values on a coarse grid, so that they repeat; three classes for `multi:softprob`."""
    rng = np.random.default_rng(seed)
    values = np.round(rng.normal(size=(rows, features)) * 7) / 7
    signal = values[:, 0] + values[:, 1] * values[:, 2] + 0.3 * rng.normal(size=rows)
    values[rng.random(values.shape) < missing] = np.nan
    labels = {
        "binary:logistic": signal > 0,
        "multi:softprob": np.digitize(signal, [-0.5, 0.5]),
        "reg:squarederror": signal * 20 + 100,
    }[objective]
    return Table(values.astype(np.float32), labels.astype(np.float32))


def exact_parameters(objective: str, **settings: object) -> BoostingParameters:
    classes = {"num_class": 3} if objective == "multi:softprob" else {}
    return BoostingParameters(objective=objective, bin_source="exact", **{"max_depth": 4, **classes, **settings})


def random_parts(rng: np.random.Generator, rows: int, nodes: int) -> list[np.ndarray]:
    """A random assignment of rows to nodes; some nodes may be small, none is empty."""
    while True:
        owner = rng.integers(0, nodes, size=rows)
        parts = [np.flatnonzero(owner == node) for node in range(nodes)]
        if all(len(part) for part in parts):
            return [rng.permutation(part) for part in parts]


@dataclass(frozen=True)
class ReferenceTree:
    left: np.ndarray
    right: np.ndarray
    feature: np.ndarray
    condition: np.ndarray
    default_left: np.ndarray
    gain: np.ndarray


def reference_trees(model: dict) -> list[ReferenceTree]:
    """The trees of XGBoost's JSON model."""
    names = ("left_children", "right_children", "split_indices", "split_conditions", "default_left", "loss_changes")
    trees = model["learner"]["gradient_booster"]["model"]["trees"]
    return [ReferenceTree(*(np.array(tree[name]) for name in names)) for tree in trees]


class Reference:
    """XGBoost fed round by round, through `Booster.boost`, with the federation's own rounded gradients."""

    def __init__(self, federation: Federation, data: Table, tree_method: str = "hist") -> None:
        self.federation = federation
        self.data = data
        p = federation.parameters
        self.matrix = xgboost.DMatrix(data.values, nthread=1)
        several = {"objective": "multi:softprob", "num_class": p.outputs}
        settings = {
            "tree_method": tree_method,
            "max_bin": 4096,
            "nthread": 1,
            "base_score": 0.0,
            "eta": p.eta,
            "max_depth": p.max_depth,
            "max_leaves": p.max_leaves,
            "lambda": p.reg_lambda,
            "alpha": p.reg_alpha,
            "gamma": p.gamma,
            "min_child_weight": p.min_child_weight,
            "max_delta_step": p.max_delta_step,
            **(several if p.outputs > 1 else {"objective": "reg:squarederror"}),
        }
        if tree_method == "exact":
            del settings["max_bin"]
        self.booster = xgboost.Booster(settings, [self.matrix])
        self.margins = np.tile(federation.base, (len(data.labels), 1))

    def boost(self, round_number: int, weights: np.ndarray | None = None) -> list[ReferenceTree]:
        """Grow one round and return its trees."""
        f = self.federation
        gradient, hessian = rounded_gradients(f.objective, self.margins, self.data.labels, weights, f.grid)
        self.booster.boost(
            self.matrix,
            round_number,
            grad=decode(gradient, f.grid.gradient).astype(np.float32),
            hess=decode(hessian, f.grid.hessian).astype(np.float32),
        )
        # base_score is zero here, so margins are the base margins plus the trees.
        grown = self.booster.predict(self.matrix, output_margin=True, iteration_range=(round_number, round_number + 1))
        self.margins = self.margins + grown.reshape(self.margins.shape)
        model = json.loads(bytes(self.booster.save_raw("json")))
        return reference_trees(model)[-f.parameters.outputs :]


def assert_same_tree(tree, reference: ReferenceTree, *, thresholds: bool = True) -> None:
    """Same structure, features and default directions; same thresholds where the last cut is not involved."""
    np.testing.assert_array_equal(tree.left, reference.left)
    np.testing.assert_array_equal(tree.right, reference.right)
    split = tree.left != -1
    np.testing.assert_array_equal(tree.feature[split], reference.feature[split])
    np.testing.assert_allclose(tree.gain[split], reference.gain[split], rtol=1e-6)
    if thresholds:
        np.testing.assert_array_equal(tree.default_left[split], reference.default_left[split].astype(bool))
        inner = split & (tree.threshold != np.finfo(np.float32).max)
        np.testing.assert_array_equal(tree.threshold[inner], reference.condition[inner].astype(np.float32))
    np.testing.assert_allclose(tree.value[~split], reference.condition[~split], rtol=1e-6, atol=1e-9)
