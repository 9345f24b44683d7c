"""Means that a few hostile or broken nodes cannot move far: pure functions over a block of rows, one row a node.

Coordinate median and trimmed mean: Yin, Chen, Ramchandran, Bartlett, ICML 2018. Krum and multi-Krum: Blanchard,
El Mhamdi, Guerraoui, Stainer, NeurIPS 2017. Nothing depends on the order of the rows but ties, which the first row
wins: give them in order of the nodes' names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hanse.errors import MethodError
from hanse.learning.arrays import Float32, Float64


def coordinate_median(rows: Float32) -> Float64:
    """The median of each column of rows [n, k]; of the two in the middle of an even number, the mean."""
    ordered = np.sort(rows, axis=0).astype(np.float64)
    n = len(rows)
    median: Float64 = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return median


def trimmed_mean(rows: Float32, cut: int) -> Float64:
    """The mean of each column of rows [n, k] without its `cut` smallest and its `cut` largest numbers.

    Raises:
        MethodError: nothing would be left.
    """
    n = len(rows)
    if 2 * cut >= n:
        raise MethodError(
            f"{n} contributions cannot lose {cut} at either end.",
            remedy="Lower method_config.trim, or raise selection.minimum_nodes.",
            code="TOO_FEW_CONTRIBUTIONS",
        )
    ordered = np.sort(rows, axis=0)[cut : n - cut].astype(np.float64)
    mean: Float64 = ordered.sum(axis=0) / (n - 2 * cut)
    return mean


def squared_distances(products: Float64) -> Float64:
    """Squared distances [n, n] between rows, from their inner products [n, n]."""
    norms = np.diagonal(products)
    distances: Float64 = np.maximum(norms[:, None] + norms[None, :] - 2 * products, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def krum_scores(distances: Float64, hostile: int) -> Float64:
    """Krum's score of each row: the sum of squared distances [n, n] to its n - f - 2 nearest others.

    Raises:
        MethodError: fewer than 2 f + 3 rows: f hostile ones could then outvote the others.
    """
    n = len(distances)
    if n < 2 * hostile + 3:
        raise MethodError(
            f"Krum with {hostile} hostile nodes needs {2 * hostile + 3} contributions, and {n} came.",
            remedy="Raise selection.minimum_nodes and selection.quorum, or lower method_config.hostile.",
            code="TOO_FEW_CONTRIBUTIONS",
        )
    # The row itself, at distance 0, is among its nearest.
    nearest: Float64 = np.sort(distances, axis=1)[:, : n - hostile - 1]
    scores: Float64 = nearest.sum(axis=1)
    return scores


def best(scores: Float64, count: int) -> NDArray[np.int64]:
    """The rows [count] of the lowest scores, ascending; of equals, those that come first."""
    return np.sort(np.argsort(scores, kind="stable")[:count]).astype(np.int64)
