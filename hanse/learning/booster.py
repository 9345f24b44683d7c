"""The model as a real `xgboost.Booster`.

The export is the portable form that XGBoost 2.1 and 3.x read alike: `base_score` is zero and the base margins
are K trees of one leaf each, as iteration 0. (A vector of base scores is read by 3.1 and later only; 2.1
accepts it silently and predicts wrongly.) Hessian sums of nodes say how many rows of the federation went
where, so they are written as zeros; SHAP values, which need them, are not available from the export.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from hanse.errors import InvalidPayload, MethodError
from hanse.learning.arrays import Float32
from hanse.learning.objectives import Objective
from hanse.learning.trees import LEAF, Forest, Tree

_NO_PARENT = 2147483647
_FORMAT_VERSION = [3, 2, 0]


def to_json(forest: Forest, base_margins: Float32, names: Sequence[str], objective: Objective) -> bytes:
    """The model in XGBoost's JSON format.

    `base_margins` float32 [K]; `names` are the F feature names. XGBoost forbids the characters `[`, `]` and `<`
    in names; they become `(`, `)` and `_`. Raises `InvalidPayload` for a tree that is not sound, and
    `MethodError` when rounds are incomplete.
    """
    outputs = objective.outputs
    rounds = len(forest) // outputs
    if not np.array_equal(forest.outputs, np.tile(np.arange(outputs), rounds)):
        raise MethodError(f"A model needs whole rounds of {outputs} trees in class order.")
    for tree in forest.trees:
        tree.check(len(names))
    trees = [Tree.leaf(float(margin)) for margin in base_margins] + list(forest.trees)
    several = outputs > 1
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [outputs * i for i in range(rounds + 2)],
        "tree_info": list(range(outputs)) * (rounds + 1),
        "trees": [_tree_to_json(i, tree, len(names)) for i, tree in enumerate(trees)],
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
    }
    objective_parameters: dict[str, Any] = (
        {"softmax_multiclass_param": {"num_class": str(outputs)}}
        if several
        else {"reg_loss_param": {"scale_pos_weight": "1"}}
    )
    document = {
        "version": _FORMAT_VERSION,
        "learner": {
            "attributes": {},
            "feature_names": [allowed_name(name) for name in names],
            "feature_types": ["float"] * len(names),
            "gradient_booster": {"name": "gbtree", "model": model},
            "learner_model_param": {
                "base_score": _base_score(objective),
                "boost_from_average": "0",
                "num_class": str(outputs) if several else "0",
                "num_feature": str(len(names)),
                "num_target": "1",
            },
            "objective": {"name": objective.name, **objective_parameters},
        },
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def to_booster(forest: Forest, base_margins: Float32, names: Sequence[str], objective: Objective) -> Any:
    """The model as an `xgboost.Booster`; see `to_json`."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(to_json(forest, base_margins, names, objective)))
    return booster


def to_ubjson(forest: Forest, base_margins: Float32, names: Sequence[str], objective: Objective) -> bytes:
    """The model in XGBoost's UBJSON format, as `save_model("model.ubj")` writes it; see `to_json`.

    XGBoost 3.1 and later write the base score as a vector, which 2.1 reads as one half: it is put back to a number.
    """
    image = bytes(to_booster(forest, base_margins, names, objective).save_raw("ubj"))
    key = b"base_scoreSL"
    begin = image.find(key) + len(key)
    length = int.from_bytes(image[begin : begin + 8], "big")
    written = image[begin + 8 : begin + 8 + length].decode("ascii", "replace")
    number = _base_score(objective)
    if image.count(key) != 1 or set(written.strip("[]").split(",")) != {number}:
        raise MethodError(f"XGBoost wrote the base score {written[:80]!r}, not {number}.", code="UNEXPECTED_MODEL")
    return image[:begin] + len(number).to_bytes(8, "big") + number.encode() + image[begin + 8 + length :]


def _base_score(objective: Objective) -> str:
    # For the logistic objective this is a probability: its margin is zero at one half.
    return "5E-1" if objective.name == "binary:logistic" else "0E0"


def _tree_to_json(number: int, tree: Tree, features: int) -> dict[str, Any]:
    size = len(tree)
    zeros = [0] * size
    split = tree.left != LEAF
    parents = np.full(size, _NO_PARENT, dtype=np.int64)
    parents[tree.left[split]] = parents[tree.right[split]] = np.flatnonzero(split)
    return {
        "id": number,
        "tree_param": {
            "num_nodes": str(size),
            "num_feature": str(features),
            "num_deleted": "0",
            "size_leaf_vector": "1",
        },
        "left_children": tree.left.tolist(),
        "right_children": tree.right.tolist(),
        "parents": parents.tolist(),
        "split_indices": tree.feature.tolist(),
        "split_conditions": np.where(split, tree.threshold, tree.value).tolist(),
        "default_left": tree.default_left.astype(np.int64).tolist(),
        "split_type": zeros,
        "loss_changes": tree.gain.tolist(),
        "sum_hessian": [0.0] * size,
        "base_weights": [0.0] * size,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
    }


def from_json(data: bytes) -> tuple[Float32, Forest, tuple[str, ...]]:
    """The inverse of `to_json`: base margins float32 [K], the trees of all rounds, and the feature names as exported.

    Raises `InvalidPayload` unless it is a sound model of that form.
    """
    try:
        learner = json.loads(data)["learner"]
        outputs = max(int(learner["learner_model_param"]["num_class"]), 1)
        names = tuple(str(name) for name in learner["feature_names"])
        model = learner["gradient_booster"]["model"]
        trees = [_tree_from_json(tree) for tree in model["trees"]]
        info = np.array(model["tree_info"], dtype=np.int32)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidPayload(f"the model is not one that was exported here: {error}") from error
    base, grown = trees[:outputs], tuple(trees[outputs:])
    if not np.array_equal(info, np.tile(np.arange(outputs), len(trees) // outputs)) or not grown:
        raise InvalidPayload("the model does not have whole rounds of trees in class order.")
    if any(len(tree) != 1 for tree in base):
        raise InvalidPayload("the model does not begin with its base margins.")
    for tree in grown:
        tree.check(len(names))
    return np.array([tree.value[0] for tree in base], dtype=np.float32), Forest(grown, info[outputs:]), names


def _tree_from_json(tree: dict[str, Any]) -> Tree:
    left = np.array(tree["left_children"], dtype=np.int32)
    condition = np.array(tree["split_conditions"], dtype=np.float32)
    split = left != LEAF
    return Tree(
        left=left,
        right=np.array(tree["right_children"], dtype=np.int32),
        feature=np.array(tree["split_indices"], dtype=np.int32),
        threshold=np.where(split, condition, np.float32(0)).astype(np.float32),
        default_left=np.array(tree["default_left"], dtype=np.int64).astype(np.bool_),
        value=np.where(split, np.float32(0), condition).astype(np.float32),
        gain=np.array(tree["loss_changes"], dtype=np.float32),
    )


def allowed_name(name: str) -> str:
    """A feature name without the characters that XGBoost forbids."""
    return name.translate(str.maketrans("[]<", "()_"))
