"""Draws of rows and columns that everybody can repeat: a pseudo-random function of seed, round and number.

Nothing is drawn from a generator with a state, so a draw depends on its own number alone, and on no library's
version. The function is the finaliser of SplitMix64 (Steele, Lea & Flood 2014); it spreads draws evenly and
keeps nothing secret.
"""

from __future__ import annotations

import numpy as np

from hanse.learning.arrays import Bool, Int64, UInt64

_ROWS, _COLUMNS = 1, 2


def chosen_rows(seed: int, round_number: int, rows: UInt64, share: float) -> Bool:
    """Which rows take part in a round, bool [n]; `rows` uint64 [n] are numbers that stay with the rows."""
    if share >= 1.0:
        return np.ones(len(rows), dtype=np.bool_)
    return _hash(seed, _ROWS, round_number, rows) < np.uint64(int(share * 2.0**64))


def chosen_columns(seed: int, round_number: int, output: int, features: int, share: float) -> Int64:
    """The columns offered to the tree of one output in a round: max(1, floor(share * features)), ascending."""
    count = max(1, int(share * features))
    ranks = _hash(seed, _COLUMNS, (round_number << 16) + output, np.arange(features, dtype=np.uint64))
    return np.sort(np.argsort(ranks, kind="stable")[:count]).astype(np.int64)


def _hash(seed: int, purpose: int, number: int, items: UInt64) -> UInt64:
    state = np.full(1, seed, dtype=np.uint64)
    for word in (purpose, number):
        state = _mix(state ^ np.uint64(word))
    return _mix(items ^ state)


def _mix(words: UInt64) -> UInt64:
    z = words + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
