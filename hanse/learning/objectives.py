"""Objectives: gradients, hessians, base margins and predictions, as XGBoost computes them.

Formulas and float32 arithmetic follow XGBoost 3.2, including the factor 2 and the floor 1e-16 of the
softmax hessian, which matter for `lambda` and `min_child_weight`. Margins are float32 [n, K], labels
float32 [n] (class numbers, or the target), instance weights float32 [n] or none.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hanse.errors import SiteError
from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.fixed_point import Grid, encode
from hanse.learning.parameters import BoostingParameters

_HESSIAN_FLOOR = np.float32(1e-16)
# XGBoost's kRtEps: keeps the logarithm of an empty class finite.
_PRIOR_FLOOR = 1e-6


class Objective(Protocol):
    """What every objective offers. `outputs` is K, the number of trees per round."""

    name: str
    outputs: int
    # Number of classes whose weights are counted before the first round; 0 for a numeric target.
    classes: int

    def base_margins(self, priors: Float64, mean_target: float) -> Float32:
        """Where margins start, float32 [K]; `priors` float64 [classes] add up to 1."""
        ...

    def gradients(self, margins: Float32, labels: Float32, weights: Float32 | None) -> tuple[Float32, Float32]:
        """Gradient and hessian of the loss of each row, each float32 [n, K]."""
        ...

    def predictions(self, margins: Float32) -> Float32:
        """Margins [n, K] as probabilities [n, classes], or as values [n, 1]."""
        ...

    def losses(self, margins: Float32, labels: Float32) -> Float64:
        """The unweighted loss of each row, float64 [n]: log-loss or squared error."""
        ...


class Logistic:
    """`binary:logistic`: g = w (p - y), h = max(w p (1 - p), 1e-16), p = 1 / (1 + e^-margin)."""

    name = "binary:logistic"
    outputs = 1
    classes = 2

    def base_margins(self, priors: Float64, mean_target: float) -> Float32:
        """The logit of the weighted share of class 1, kept within [1e-6, 1 - 1e-6]."""
        share = np.float32(np.clip(priors[1], _PRIOR_FLOOR, 1 - _PRIOR_FLOOR))
        return np.array([-np.log(np.float32(1) / share - np.float32(1))], dtype=np.float32)

    def gradients(self, margins: Float32, labels: Float32, weights: Float32 | None) -> tuple[Float32, Float32]:
        """See the class; float32 [n, 1] each."""
        p = _sigmoid(margins)
        gradient = p - labels[:, None]
        hessian: Float32 = p * (np.float32(1) - p)
        return _weighted(gradient, hessian, weights)

    def predictions(self, margins: Float32) -> Float32:
        """Probabilities [n, 2] of class 0 and class 1."""
        p = _sigmoid(margins)[:, 0]
        result: Float32 = np.stack([np.float32(1) - p, p], axis=1)
        return result

    def losses(self, margins: Float32, labels: Float32) -> Float64:
        """-log of the probability of the row's own class, computed from the margin in float64."""
        m = margins[:, 0].astype(np.float64)
        result: Float64 = np.logaddexp(0.0, np.where(labels > 0.5, -m, m))
        return result


class Softmax:
    """`multi:softprob`: g_k = w (p_k - 1[y = k]), h_k = max(2 w p_k (1 - p_k), 1e-16)."""

    name = "multi:softprob"

    def __init__(self, classes: int) -> None:
        self.outputs = classes
        self.classes = classes

    def base_margins(self, priors: Float64, mean_target: float) -> Float32:
        """log(prior_k + 1e-6) less their mean."""
        logs: Float64 = np.log(priors + _PRIOR_FLOOR)
        centred: Float64 = logs - logs.mean()
        return centred.astype(np.float32)

    def gradients(self, margins: Float32, labels: Float32, weights: Float32 | None) -> tuple[Float32, Float32]:
        """See the class; float32 [n, K] each."""
        p = _softmax(margins)
        gradient = p.copy()
        rows = np.arange(len(labels))
        own = labels.astype(np.int64)
        gradient[rows, own] = p[rows, own] - np.float32(1)
        hessian = np.float32(2) * p * (np.float32(1) - p)
        return _weighted(gradient, hessian, weights)

    def predictions(self, margins: Float32) -> Float32:
        """Probabilities [n, K]."""
        return _softmax(margins)

    def losses(self, margins: Float32, labels: Float32) -> Float64:
        """-log of the probability of the row's own class, computed from the margins in float64."""
        m = margins.astype(np.float64)
        m -= m.max(axis=1, keepdims=True)
        own = m[np.arange(len(labels)), labels.astype(np.int64)]
        result: Float64 = np.log(np.exp(m).sum(axis=1)) - own
        return result


class SquaredError:
    """`reg:squarederror`: g = w (prediction - y), h = w."""

    name = "reg:squarederror"
    outputs = 1
    classes = 0

    def base_margins(self, priors: Float64, mean_target: float) -> Float32:
        """The weighted mean of the target."""
        return np.array([mean_target], dtype=np.float32)

    def gradients(self, margins: Float32, labels: Float32, weights: Float32 | None) -> tuple[Float32, Float32]:
        """See the class; float32 [n, 1] each."""
        gradient = margins - labels[:, None]
        return _weighted(gradient, np.ones_like(gradient), weights)

    def predictions(self, margins: Float32) -> Float32:
        """The margins themselves, [n, 1]."""
        return margins

    def losses(self, margins: Float32, labels: Float32) -> Float64:
        """Squared errors."""
        result: Float64 = np.square(margins[:, 0].astype(np.float64) - labels.astype(np.float64))
        return result


def make_objective(parameters: BoostingParameters) -> Objective:
    """The objective that the parameters name."""
    if parameters.objective == "multi:softprob":
        return Softmax(parameters.num_class)
    return Logistic() if parameters.objective == "binary:logistic" else SquaredError()


def half_base_margins(objective: Objective) -> Float32:
    """`base_score: 0.5` as margins [K]: a probability for the logistic objective, the value itself otherwise."""
    return np.full(objective.outputs, 0.0 if objective.name == "binary:logistic" else 0.5, dtype=np.float32)


def rounded_gradients(
    objective: Objective, margins: Float32, labels: Float32, weights: Float32 | None, grid: Grid
) -> tuple[Int64, Int64]:
    """Gradients and hessians as integers [n, K] on the job's grid, each row rounded once.

    Hessian integers are at least 1, so that confident rows late in boosting keep a weight in the sketches.
    Raises `MethodError` when a value is not finite or too large for 64-bit sums.
    """
    gradient, hessian = objective.gradients(np.ascontiguousarray(margins), labels, weights)
    return (
        encode(gradient, grid.gradient, name="gradient"),
        np.maximum(encode(hessian, grid.hessian, name="hessian"), 1),
    )


def check_labels(objective: Objective, labels: Float32, weights: Float32 | None) -> None:
    """Refuse labels that are no class numbers in range (or no finite target) and weights that are not positive.

    A class that no row of a node has is fine. Raises `SiteError` with the first offending row's number.
    """
    with np.errstate(invalid="ignore"):
        if objective.classes:
            bad = ~((labels >= 0) & (labels < objective.classes) & (labels == np.floor(labels)))
            wanted = f"a whole number from 0 to {objective.classes - 1}"
        else:
            bad = ~(np.abs(labels) < 1e18)
            wanted = "a finite number below 1e18 in magnitude"
    if bad.any():
        row = int(np.argmax(bad))
        raise SiteError(
            f"The label of row {row} is {labels[row]!s}, which is not {wanted}.",
            code="LABEL_OUT_OF_RANGE",
            remedy="Correct the target column, or the job's objective and num_class.",
        )
    if weights is not None:
        with np.errstate(invalid="ignore"):
            bad = ~((weights > 0) & (weights < 1e18))
        if bad.any():
            row = int(np.argmax(bad))
            raise SiteError(
                f"The instance weight of row {row} is {weights[row]!s}, which is not a positive finite number.",
                code="WEIGHT_OUT_OF_RANGE",
                remedy="Leave rows without weight out of the dataset.",
            )


def _weighted(gradient: Float32, hessian: Float32, weights: Float32 | None) -> tuple[Float32, Float32]:
    if weights is not None:
        gradient = gradient * weights[:, None]
        hessian = hessian * weights[:, None]
    return gradient, np.maximum(hessian, _HESSIAN_FLOOR)


def _sigmoid(margins: Float32) -> Float32:
    exponent = np.minimum(-margins, np.float32(88.7))
    one = np.float32(1)
    result: Float32 = one / (np.exp(exponent) + one + _HESSIAN_FLOOR)
    return result


def _softmax(margins: Float32) -> Float32:
    """Row by row the same arithmetic in the same order, whatever the number of rows beside it."""
    powers = np.exp(margins - margins.max(axis=1, keepdims=True))
    total = np.zeros(len(margins), dtype=np.float64)
    for k in range(margins.shape[1]):
        total += powers[:, k]
    result: Float32 = powers / total.astype(np.float32)[:, None]
    return result
