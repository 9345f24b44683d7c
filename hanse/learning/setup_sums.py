"""Sums that all nodes send once, before the first round: they fix centres, base margins and the grid.

All of them are exact integer sums over rows, so they depend neither on the partition of the rows into nodes
nor on the order of arrival, and they may be summed under a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np

from hanse.errors import MethodError, RejectedContribution
from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.exact_sum import LIMBS, exact_sum, exact_sum_float64, exact_total
from hanse.learning.fixed_point import GRID_EXPONENT, Grid, add, power_of_two_at_least
from hanse.learning.objectives import Objective, half_base_margins
from hanse.learning.parameters import BoostingParameters


@dataclass(frozen=True, kw_only=True)
class SetupSums:
    """A node's sums, or those of several nodes added up. Every array is int64."""

    rows: Int64
    """[1] number of rows."""
    feature_counts: Int64
    """[F] rows in which the feature is present."""
    feature_sums: Int64
    """[F, LIMBS] exact sums of the present values."""
    weight_sum: Int64
    """[LIMBS] exact sum of the instance weights."""
    class_weights: Int64
    """[classes, LIMBS] exact weight sums per class; [0, LIMBS] for a numeric target."""
    target_sum: Int64
    """[LIMBS] exact weighted sum of a numeric target, else zeros."""
    target_squares: Int64
    """[LIMBS] exact weighted sum of its squares, else zeros."""

    @classmethod
    def of(cls, objective: Objective, values: Float32, labels: Float32, weights: Float32 | None) -> SetupSums:
        """The sums over the rows `values` [n, F], `labels` [n] and `weights` [n] (1 when none)."""
        w = np.ones(len(labels), dtype=np.float32) if weights is None else weights
        target = np.zeros((2, LIMBS), dtype=np.int64)
        if not objective.classes:
            y = labels.astype(np.float64)
            target = np.stack([exact_sum_float64(w * y), exact_sum_float64(w * y * y)])
        by_class = [exact_sum(w[labels == k]) for k in range(objective.classes)]
        by_feature = [exact_sum(column) for column in values.T]
        return cls(
            rows=np.array([len(labels)], dtype=np.int64),
            feature_counts=np.count_nonzero(~np.isnan(values), axis=0).astype(np.int64),
            feature_sums=np.stack(by_feature) if by_feature else np.zeros((0, LIMBS), dtype=np.int64),
            weight_sum=exact_sum(w),
            class_weights=np.stack(by_class) if by_class else np.zeros((0, LIMBS), dtype=np.int64),
            target_sum=target[0],
            target_squares=target[1],
        )

    def arrays(self) -> dict[str, Int64]:
        """The sums as named arrays, for a payload."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, features: int, objective: Objective) -> SetupSums:
        """The inverse of `arrays`. Raises `RejectedContribution` unless names, types and shapes are right."""
        shapes = {
            "rows": (1,),
            "feature_counts": (features,),
            "feature_sums": (features, LIMBS),
            "weight_sum": (LIMBS,),
            "class_weights": (objective.classes, LIMBS),
            "target_sum": (LIMBS,),
            "target_squares": (LIMBS,),
        }
        for name, shape in shapes.items():
            array = arrays.get(name)
            if array is None or array.dtype != np.int64 or array.shape != shape:
                found = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
                raise RejectedContribution(f"The setup array {name!r} is {found}, not int64 of shape {shape}.")
        if arrays["rows"][0] < 0 or np.any(arrays["feature_counts"] < 0):
            raise RejectedContribution("The setup counts are negative.")
        weights = [exact_total(limbs) for limbs in arrays["class_weights"]]
        if any(weight < 0 for weight in weights) or (weights and sum(weights) != exact_total(arrays["weight_sum"])):
            raise RejectedContribution("The weights of the classes are negative or do not add up.")
        return cls(**{name: np.asarray(arrays[name]) for name in shapes})

    def __add__(self, other: SetupSums) -> SetupSums:
        mine, theirs = self.arrays(), other.arrays()
        return SetupSums(**{name: add(mine[name], theirs[name], name=name) for name in mine})

    def centres(self) -> Float64:
        """The mean of each feature, float64 [F], correctly rounded; 0 where no row has the feature.

        DDSketch's accuracy is relative to zero, so a feature of 9.81 ± 0.02 would fall into two buckets;
        values are sketched by their distance from this centre instead (our choice).
        """
        return np.array(
            [
                float(exact_total(limbs) / int(count)) if count else 0.0
                for limbs, count in zip(self.feature_sums, self.feature_counts, strict=True)
            ],
            dtype=np.float64,
        )

    def base_margins(self, objective: Objective, parameters: BoostingParameters) -> Float32:
        """Where margins start, float32 [K], as XGBoost 3.2 estimates it (or at 0.5)."""
        if parameters.base_score == "0.5":
            return half_base_margins(objective)
        weight = self._weight()
        priors = np.array([float(exact_total(limbs) / weight) for limbs in self.class_weights])
        return objective.base_margins(priors, float(exact_total(self.target_sum) / weight))

    def grid(self, objective: Objective) -> Grid:
        """The job's fixed-point units.

        Without weights, classification keeps 2^-20. Otherwise units grow or shrink by powers of two with the
        mean instance weight and, for a numeric target, gradients also with its standard deviation.
        """
        weight = self._weight()
        shift = power_of_two_at_least(float(weight / int(self.rows[0])))
        hessian = GRID_EXPONENT + shift
        if objective.classes:
            return Grid(gradient=hessian, hessian=hessian)
        mean = exact_total(self.target_sum) / weight
        variance = float(exact_total(self.target_squares) / weight - mean * mean)
        spread = float(np.sqrt(max(variance, 0.0)))
        return Grid(gradient=hessian + power_of_two_at_least(spread), hessian=hessian)

    def _weight(self) -> Fraction:
        weight = exact_total(self.weight_sum)
        if weight <= 0 or self.rows[0] <= 0:
            raise MethodError("No node has a row with a positive weight.", code="NO_ROWS", remedy="Check the datasets.")
        return weight
