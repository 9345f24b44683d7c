"""Fed-GAME's server in plain NumPy, one node and one peer at a time, for comparison. No torch, no shortcuts."""

from __future__ import annotations

import numpy as np

from hanse.learning.arrays import Bool, Float64
from hanse.learning.game_options import GameOptions
from hanse.learning.game_parameters import Networks


def softmax(values: Float64) -> Float64:
    raised = np.exp(values - values.max())
    return raised / raised.sum()


def gate(z: Float64, values: dict[str, Float64], bias: Float64, k: int) -> Float64:
    """Softmax over the k largest logits, 0 elsewhere; of equals, the lowest expert."""
    logits = values["gates"] @ z + bias
    kept = sorted(range(len(logits)), key=lambda m: (-logits[m], m))[:k]
    result = np.zeros(len(logits))
    result[kept] = softmax(logits[kept])
    return result


def attention(
    networks: Networks, rows: Float64, biases: Float64, allowed: Bool, options: GameOptions
) -> tuple[Float64, Float64]:
    """Attention [n, n] and gates [n, experts], noise off."""
    values = {name: each.value.astype(np.float64) for name, each in networks.items()}
    n = len(rows)
    z = [values["encoder"] @ row + values["offset"] for row in rows]
    weights, gates = np.zeros((n, n)), np.zeros((n, options.experts))
    for i in range(n):
        gates[i] = gate(z[i], values, biases[i], options.top_k)
        scores = {}
        for j in np.flatnonzero(allowed[i]):
            both = np.concatenate([z[i], z[j]])
            each = values["experts"] @ both
            scores[int(j)] = float(gates[i] @ np.where(each > 0, each, 0.2 * each)) / options.temperature
        if options.neighbour_top_k:
            kept = sorted(scores, key=lambda j: (-scores[j], j))[: options.neighbour_top_k]
            scores = {j: scores[j] for j in sorted(kept)}
        if scores:
            weights[i, list(scores)] = softmax(np.array(list(scores.values())))
    return weights, gates


def update(own: Float64, peers: Float64, weights: Float64, options: GameOptions) -> Float64:
    """One node's personalised difference."""
    if not weights.any():
        return own
    mean = sum(weight * peer for weight, peer in zip(weights, peers, strict=True))
    if options.combine == "sum":
        return own + options.gamma * mean
    return options.own_weight * own + (1 - options.own_weight) * mean


def meta_loss(weights: Float64, rows: Float64, options: GameOptions) -> float:
    """The mean over nodes of squared error and cosine between what is received and what was sent; no balance term."""
    losses = []
    for i, row in enumerate(rows):
        built = weights[i] @ rows if options.combine == "sum" else update(row, rows, weights[i], options)
        cosine = built @ row / np.linalg.norm(built) / np.linalg.norm(row)
        losses.append(np.mean((built - row) ** 2) + options.cosine_weight * (1 - cosine))
    return float(np.mean(losses))
