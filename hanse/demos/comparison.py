"""What the federation is measured against: XGBoost on all rows in one place, and XGBoost at each person alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from hanse.demos.activity_data import EXERCISES, FEATURES, SubjectTable
from hanse.learning.metrics import Confusion


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracy and macro-F1 over all held-out rows, and node by node."""

    pooled: Confusion
    per_node: Mapping[str, Confusion]

    def as_json(self) -> dict[str, Any]:
        """Fractions of one."""
        return {
            "accuracy": self.pooled.accuracy,
            "macro_f1": self.pooled.macro_f1,
            "per_node": {
                name: {"accuracy": each.accuracy, "macro_f1": each.macro_f1} for name, each in self.per_node.items()
            },
        }


def score(predicted: Mapping[str, NDArray[np.int64]], tables: Mapping[str, SubjectTable]) -> Score:
    """Count predictions (class numbers of the held-out rows, by node) against the truth."""
    per_node = {
        name: Confusion.of(table.exercise[table.held_out], predicted[name], len(EXERCISES))
        for name, table in tables.items()
    }
    first, *others = per_node.values()
    pooled = first
    for each in others:
        pooled = pooled + each
    return Score(pooled=pooled, per_node=per_node)


def predict(booster: xgboost.Booster, table: SubjectTable) -> NDArray[np.int64]:
    """The class of each held-out row."""
    rows = xgboost.DMatrix(table.features[table.held_out], feature_names=list(FEATURES))
    probabilities: NDArray[np.float32] = booster.predict(rows)
    classes: NDArray[np.int64] = probabilities.argmax(axis=1).astype(np.int64)
    return classes


def load_booster(path: Path) -> xgboost.Booster:
    """A model file, read by XGBoost alone."""
    booster = xgboost.Booster()
    booster.load_model(path)
    return booster


def train(parameters: Mapping[str, Any], rounds: int, tables: Sequence[SubjectTable]) -> xgboost.Booster:
    """Plain XGBoost on the training rows of these people together.

    `parameters` are the job's `method_config`; what XGBoost calls otherwise is translated.
    """
    translated = {
        key: parameters[key] for key in ("objective", "num_class", "eta", "max_depth", "lambda", "min_child_weight")
    }
    translated |= {"tree_method": "hist", "max_bin": parameters["bins"], "nthread": 2, "seed": 0, "verbosity": 0}
    rows = np.concatenate([table.features[~table.held_out] for table in tables])
    labels = np.concatenate([table.exercise[~table.held_out] for table in tables])
    data = xgboost.DMatrix(rows, label=labels, feature_names=list(FEATURES))
    return xgboost.train(translated, data, num_boost_round=rounds)


def central_score(parameters: Mapping[str, Any], rounds: int, tables: Mapping[str, SubjectTable]) -> Score:
    """One model on everybody's rows in one place: what nobody could do in earnest."""
    booster = train(parameters, rounds, list(tables.values()))
    return score({name: predict(booster, table) for name, table in tables.items()}, tables)


def local_score(parameters: Mapping[str, Any], rounds: int, tables: Mapping[str, SubjectTable]) -> Score:
    """A model a person, on that person's rows alone."""
    predicted = {name: predict(train(parameters, rounds, [table]), table) for name, table in tables.items()}
    return score(predicted, tables)
