"""The form in which tabular records reach a learner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of numbers with a target.

    features: float32 [rows, columns], NaN where a value is missing; feature_names: one a column;
    target: float64 [rows], class numbers for classification (see `class_names`); weight: float32 [rows];
    held_out: bool [rows], True for rows that are kept for evaluation and never trained on.
    """

    features: NDArray[np.float32]
    feature_names: tuple[str, ...]
    target: NDArray[np.float64]
    weight: NDArray[np.float32]
    held_out: NDArray[np.bool_]
    class_names: tuple[str, ...] = ()
