"""From attention to personalised differences (Fed-GAME; `docs/fedgame.md` has the equations).

Differences are rows [n, d], one a node, in order of the nodes' names; a row of attention [n, m] says how much each of m
peers counts for a node, and sums to 1, or to 0 for a node without peers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hanse.learning.arrays import Bool, Float32, Float64, Int64
from hanse.learning.game_options import GameOptions

TINY = 1e-12
"""A difference shorter than this says nothing: its node neither counts for others nor receives an update."""

_COLUMNS = 8_192


def norms(rows: Float32) -> Float64:
    """The Euclidean norm of each row [n], in float64."""
    total = np.zeros(len(rows))
    for start in range(0, rows.shape[1], _COLUMNS):
        block = rows[:, start : start + _COLUMNS].astype(np.float64)
        total += np.einsum("ij,ij->i", block, block)
    root: Float64 = np.sqrt(total)
    return root


def clip_factors(lengths: Float64, clip: float, *, median: float | None = None) -> Float64:
    """By what rows of these norms [n] are multiplied so that none is longer than `clip` times the median norm.

    The median is that of the rows themselves unless it is given. Factors lie on a grid of 2^-24, so that a norm's last
    bits, which depend on the machine, change nothing.
    """
    factors = np.ones(len(lengths))
    if clip > 0 and len(lengths):
        limit = clip * (float(np.median(lengths)) if median is None else median)
        long = lengths > limit
        factors[long] = np.floor(limit / lengths[long] * 2.0**24) * 2.0**-24
    return factors


def scale_of(lengths: Float64, d: int) -> float:
    """The root mean square over all nodes and coordinates of rows with these norms; one scalar a round."""
    mean_square = float(np.mean(np.square(lengths))) / d if len(lengths) else 0.0
    return math.sqrt(mean_square) + TINY


def products(rows: Float32, factors: Float64) -> Float64:
    """Inner products [n, n] of rows times their factors [n], in blocks of columns."""
    total = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], _COLUMNS):
        block = rows[:, start : start + _COLUMNS].astype(np.float64) * factors[:, None]
        total += block @ block.T
    return total


def allowed_peers(nodes: Sequence[str], peers: Sequence[str], options: GameOptions, groups: Mapping[str, str]) -> Bool:
    """Who may count for whom [n, m], by the aggregator; never a node for itself, unless `self_loop`."""
    allowed = np.ones((len(nodes), len(peers)), dtype=np.bool_)
    if options.aggregator == "own":
        return ~allowed
    if options.aggregator == "same_group":
        allowed = same_group(nodes, peers, groups)
    elif options.aggregator in ("graphsage", "gat"):
        allowed = neighbours(nodes, peers, options.graph)
    place = {peer: number for number, peer in enumerate(peers)}
    for row, node in enumerate(nodes):
        if node in place:
            allowed[row, place[node]] = options.self_loop
    return allowed


def same_group(nodes: Sequence[str], peers: Sequence[str], groups: Mapping[str, str]) -> Bool:
    """Which pairs are of one group [n, m]; a node without a group is in none."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups.values()))}

    def ids(names: Sequence[str], nobody: int) -> Int64:
        return np.array([numbers[groups[name]] if name in groups else nobody for name in names], dtype=np.int64)

    pairs: Bool = ids(nodes, -1)[:, None] == ids(peers, -2)[None, :]
    return pairs


def neighbours(nodes: Sequence[str], peers: Sequence[str], graph: Mapping[str, Sequence[str]]) -> Bool:
    """Which peers are neighbours of which node in a graph [n, m]."""
    place = {peer: number for number, peer in enumerate(peers)}
    found = np.zeros((len(nodes), len(peers)), dtype=np.bool_)
    for row, node in enumerate(nodes):
        found[row, [place[peer] for peer in graph.get(node, ()) if peer in place]] = True
    return found


def even_attention(allowed: Bool) -> Float64:
    """All that may count [n, m], count alike."""
    counts = allowed.sum(axis=1, keepdims=True)
    even: Float64 = allowed / np.maximum(counts, 1)
    return even


def capped(attention: Float64, cap: float) -> Float64:
    """Attention [n, m] of which no peer holds more than `cap`; what is over goes to a node's other peers in proportion.

    Peers are those with any attention. A node with fewer than 1/cap of them shares its attention evenly among them.
    """
    if cap >= 1:
        return attention
    peers = attention > 0
    limit = np.maximum(cap, 1.0 / np.maximum(peers.sum(axis=1, keepdims=True), 1))
    result, full = attention.copy(), np.zeros(attention.shape, dtype=np.bool_)
    for _ in range(attention.shape[1]):
        over = (result > limit + TINY) & ~full
        if not over.any():
            break
        full |= over
        free = peers & ~full
        room = np.maximum(1.0 - (full * limit).sum(axis=1, keepdims=True), 0.0)
        mass = (attention * free).sum(axis=1, keepdims=True)
        portions = attention * free / np.where(mass > 0, mass, 1.0)
        changed = full.sum(axis=1, keepdims=True) > 0
        result = np.where(changed, np.where(full, limit, portions * room), result)
    return result


def mixed(own: Float32, peers: Float32, factors: Float64, attention: Float64, options: GameOptions) -> Float32:
    """The personalised differences [n, d] of nodes with these own ones.

    Convex: `own_weight * own + (1 - own_weight) * attention @ peers`; sum: `own + gamma * attention @ peers`. A node
    without peers keeps its own. Peers [m, d] count times their factors [m]; a node's own difference is never clipped.
    """
    result = np.empty_like(own)
    keep, give = shares(attention, options)
    weights = give * factors[None, :]
    for start in range(0, own.shape[1], _COLUMNS):
        place = slice(start, start + _COLUMNS)
        mine = own[:, place].astype(np.float64)
        result[:, place] = keep[:, None] * mine + weights @ peers[:, place].astype(np.float64)
    return result


def shares(attention: Float64, options: GameOptions) -> tuple[Float64, Float64]:
    """How much a node's own difference counts [n], and how much each peer's [n, m]."""
    alone = attention.sum(axis=1) == 0
    if options.combine == "convex":
        return np.where(alone, 1.0, options.own_weight), (1.0 - options.own_weight) * attention
    return np.ones(len(attention)), options.gamma * attention


def evenness(attention: Float64) -> Float64:
    """The entropy of each row of attention [n] over that of even attention to as many peers; NaN below two peers."""
    peers = (attention > 0).sum(axis=1)
    logs = np.log(np.where(attention > 0, attention, 1.0))
    entropy = -(attention * logs).sum(axis=1)
    result: Float64 = np.where(peers >= 2, entropy / np.log(np.maximum(peers, 2)), np.nan)
    return result


def within_groups(attention: Float64, together: Bool) -> float | None:
    """The mean share of attention [n, n] that stays within groups, over nodes with attention and a group."""
    counted = np.asarray(attention.sum(axis=1) > 0, dtype=np.bool_) & np.diagonal(together)
    if not counted.any():
        return None
    kept: Float64 = (attention * together).sum(axis=1)
    return float(kept[counted].mean())
