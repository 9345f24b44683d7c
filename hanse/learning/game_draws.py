"""Draws of Fed-GAME's server that every replica repeats: initial networks, the gates' noise, the sparse projection.

Made of the raw bits of PCG64 behind a `SeedSequence`, whose streams NumPy keeps for ever (what `Generator` makes of
them it may change).
"""

from __future__ import annotations

import numpy as np

from hanse.learning.arrays import Float32, Float64, Int64, UInt64

NETWORKS, NOISE, PROJECTION = 1, 2, 3
"""What numbers are drawn for."""

_BLOCK = 65_536


def uniform(shape: tuple[int, ...], *words: int) -> Float64:
    """Numbers in [0, 1), a function of the words (seed, purpose, round …) alone."""
    bits = _raw(int(np.prod(shape, dtype=np.int64)), words)
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64).reshape(shape)


def normal(shape: tuple[int, ...], *words: int) -> Float64:
    """Independent standard normal numbers (Box & Muller 1958), a function of the words alone."""
    pairs = uniform((2, *shape), *words)
    return np.asarray(np.sqrt(-2.0 * np.log1p(-pairs[0])) * np.cos(2.0 * np.pi * pairs[1]))


def projected(rows: Float32, width: int, seed: int) -> Float64:
    """Rows [n, d] in `width` numbers: each coordinate is added, with a random sign, to one place [n, width].

    Inner products are kept in expectation (a sparse Johnson-Lindenstrauss transform with one entry a column; Weinberger
    et al., ICML 2009). Rows that are not wider than `width`, or any rows with `width` 0, come back as they are.
    """
    n, d = rows.shape
    if not width or d <= width:
        return rows.astype(np.float64)
    place, sign = _hashes(d, width, seed)
    result = np.zeros((n, width))
    for row in range(n):
        for start in range(0, d, _BLOCK):
            part = slice(start, start + _BLOCK)
            result[row] += np.bincount(place[part], rows[row, part] * sign[part], minlength=width)
    return result


def _hashes(d: int, width: int, seed: int) -> tuple[Int64, Float64]:
    bits = _raw(d, (seed, PROJECTION))
    place = ((bits >> np.uint64(1)) % np.uint64(width)).astype(np.int64)
    return place, np.where(bits & np.uint64(1), 1.0, -1.0)


def _raw(count: int, words: tuple[int, ...]) -> UInt64:
    return np.random.PCG64(np.random.SeedSequence(list(words))).random_raw(count)
