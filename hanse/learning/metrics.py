"""Evaluation as named sums that add up exactly: per node, pooled, and for unseen nodes.

A node sends sums and counts, never a finished score. Adding the sums of two nodes gives the sums of their
union, so a pooled accuracy is that of all rows together, not the mean of the nodes' accuracies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hanse.errors import RejectedContribution
from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.fixed_point import add, decode, encode
from hanse.learning.objectives import Objective

_EXPONENT = -30
RANKS = 1024


@dataclass(frozen=True, eq=False)
class Ratio:
    """A sum over rows and the number of rows: `array` int64 [2], the sum in units of 2^-30."""

    array: Int64

    @classmethod
    def of(cls, values: Float64) -> Ratio:
        """The sum and the count of `values` float64 [n], each rounded once. Raises `MethodError` on overflow."""
        total = encode(values, _EXPONENT, name="metric").sum()
        return cls(np.array([total, len(values)], dtype=np.int64))

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(add(self.array, other.array, name="metric"))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.array[1])

    @property
    def mean(self) -> float:
        """Sum over count; NaN without rows."""
        return float(decode(self.array[:1], _EXPONENT)[0]) / self.rows if self.rows else float("nan")


@dataclass(frozen=True, eq=False)
class Confusion:
    """Row counts by true class (first axis) and predicted class (second axis): `array` int64 [K, K]."""

    array: Int64

    @classmethod
    def of(cls, labels: np.ndarray, predicted: np.ndarray, classes: int) -> Confusion:
        """Count rows; `labels` and `predicted` are class numbers [n]."""
        cell = labels.astype(np.int64) * classes + predicted.astype(np.int64)
        return cls(np.bincount(cell, minlength=classes * classes).reshape(classes, classes).astype(np.int64))

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(add(self.array, other.array, name="confusion"))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.array.sum())

    @property
    def accuracy(self) -> float:
        """Share of rows whose class was predicted, a fraction of one; NaN without rows."""
        return float(np.trace(self.array) / self.rows) if self.rows else float("nan")

    @property
    def macro_f1(self) -> float:
        """The mean of the classes' F1 scores, over classes that occur as a label or as a prediction.

        A class that occurs only on one side counts with 0. This is scikit-learn's `f1_score(average="macro")`.
        NaN without rows.
        """
        hits = np.diag(self.array).astype(np.float64)
        occurrences = (self.array.sum(axis=0) + self.array.sum(axis=1)).astype(np.float64)
        occurring = occurrences > 0
        return float(np.mean(2 * hits[occurring] / occurrences[occurring])) if self.rows else float("nan")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Row counts by class (0, 1) and by bin of the predicted probability: `array` int64 [2, 1024].

    Bins are 1/1024 wide, so the area under the curve is exact up to pairs whose probabilities share a bin.
    """

    array: Int64

    @classmethod
    def of(cls, labels: Float32, probabilities: Float32) -> Ranking:
        """Count rows; `labels` float32 [n] of 0 and 1, `probabilities` float32 [n] of class 1."""
        place = np.minimum((probabilities * RANKS).astype(np.int64), RANKS - 1)
        counts = np.bincount(labels.astype(np.int64) * RANKS + place, minlength=2 * RANKS)
        return cls(counts.reshape(2, RANKS).astype(np.int64))

    @property
    def auc(self) -> float:
        """Area under the ROC curve; ties count one half; NaN unless both classes occur."""
        negative, positive = self.array.astype(np.float64)
        pairs = negative.sum() * positive.sum()
        above = positive.sum() - np.cumsum(positive)
        return float(np.sum(negative * (above + positive / 2)) / pairs) if pairs else float("nan")


def evaluate(objective: Objective, margins: Float32, labels: Float32) -> dict[str, Int64]:
    """The named sums of a node's rows: `loss` int64 [2]; for classes `confusion` int64 [K, K];
    for `binary:logistic` also `ranking` int64 [2, 1024].

    `margins` float32 [n, K], `labels` float32 [n]. The loss is the log-loss, or the squared error.
    """
    sums = {"loss": Ratio.of(objective.losses(margins, labels)).array}
    if objective.classes:
        predicted = objective.predictions(margins)
        sums["confusion"] = Confusion.of(labels, predicted.argmax(axis=1), objective.classes).array
        if objective.outputs == 1:
            sums["ranking"] = Ranking.of(labels, predicted[:, 1]).array
    return sums


def add_sums(left: Mapping[str, Int64], right: Mapping[str, Int64]) -> dict[str, Int64]:
    """Add named sums. Raises `RejectedContribution` unless both have the same names and shapes."""
    if {name: array.shape for name, array in left.items()} != {name: array.shape for name, array in right.items()}:
        raise RejectedContribution("The evaluation sums of two nodes differ in names or shapes.")
    return {name: add(left[name], right[name], name=name) for name in left}


def scores(sums: Mapping[str, Int64]) -> dict[str, float]:
    """What people read: `rows`, and `accuracy`, `macro_f1`, `log_loss` and for two classes `auc`, or `mse`, `rmse`.

    Accuracy, F1 and AUC are fractions of one.
    """
    loss = Ratio(sums["loss"])
    if "confusion" not in sums:
        return {"rows": loss.rows, "mse": loss.mean, "rmse": float(np.sqrt(loss.mean))}
    confusion = Confusion(sums["confusion"])
    result = {
        "rows": loss.rows,
        "accuracy": confusion.accuracy,
        "macro_f1": confusion.macro_f1,
        "log_loss": loss.mean,
    }
    return result | ({"auc": Ranking(sums["ranking"]).auc} if "ranking" in sums else {})
