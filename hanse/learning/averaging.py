"""Weighted sums of model arrays over nodes: rounded once to integers, then only integers are added.

Whatever the order of arrival, the sums have the same bits, and they could be taken under a mask. A number `x` of a
node with the integer weight `w` enters as `round(w * x * 2**f)`, half to even, in one int64: the product of a float32
and a weight below 2^29 is exact in float64, so that rounding happens once, after weighting, and the mean over nodes is
off by at most 2^-(f+1) divided by the mean weight. `f` is chosen by what the array holds and how nodes are weighted
(our choice; with weights of 1 it is the usual 40 bits):

    weights          what                 f    the sum of |w x| over nodes stays below
    uniform (1)      anything            40    2^22
    examples         differences         32    2^30
    examples         absolute values     24    2^38

One contribution may use up to its share of that room, 1/n of it with n nodes in the job, so that whether it fits never
depends on the others. Memory: 8 bytes a number, whatever the number of nodes, and blocks that fit the processor's
cache. Speed: 25 million numbers take about 0.04 s on one core.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from hanse.errors import MethodError, RejectedContribution
from hanse.learning.arrays import Float32, Float64, Int64

BLOCK = 16_384
"""Numbers in a block: its float32, float64 and int64 forms fit a second-level cache together."""
UNIFORM_BITS = 40
DIFFERENCE_BITS = 32
ABSOLUTE_BITS = 24

_ROOM = 2**62
# Adding 1.5 * 2^52 to a float64 below 2^51 leaves its nearest integer (half to even) in the low bits of the sum.
_ANCHOR = 1.5 * 2.0**52
_ANCHOR_BITS = int(np.array(_ANCHOR).view(np.int64))
_FAST = 2.0**50

Update = Callable[[slice, Float64], NDArray[np.float64]]
"""What becomes of a block of means: told its place in the flat array, and free to overwrite what it is given."""


class WeightedSum:
    """Sums of named arrays, and the sum of the weights. `add` takes a contribution whole or not at all."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], fraction_bits: Mapping[str, int], *, contributors: int
    ) -> None:
        """`contributors`: how many contributions there may be at most; each has its share of the room."""
        self._shapes = dict(shapes)
        self._bits = dict(fraction_bits)
        self._contributors = max(contributors, 1)
        self._share = float(_ROOM // self._contributors)
        sizes = {name: int(np.prod(shape, dtype=np.int64)) for name, shape in self._shapes.items()}
        room, start = _room(sum(sizes.values())), 0
        self._sums: dict[str, Int64] = {}
        for name, size in sizes.items():
            self._sums[name] = room[start : start + size]
            start += size
        # How often the anchor was added, block by block.
        self._anchors = {name: np.zeros(-(-size // BLOCK), dtype=np.int64) for name, size in sizes.items()}
        self._wide: Float64 = np.empty(BLOCK)
        self._units: Int64 = np.empty(BLOCK, dtype=np.int64)
        self.weight = 0
        self.count = 0
        self.squares: dict[str, float] = {}
        """The sum of squares of each array of the contribution that was added last, as it was given."""

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays, in the order given."""
        return tuple(self._shapes)

    def add(self, arrays: Mapping[str, Float32], weight: int, *, factors: Mapping[str, float] | None = None) -> None:
        """Add `weight * arrays[name]` (times `factors[name]`, where there is one) to each sum, and `weight` to theirs.

        `arrays` holds every name, float32 of its shape; each is asked for once (twice when the contribution is
        rejected), so that it may be decoded on the way.

        Raises:
            RejectedContribution: a number is not finite or too large; the sentence names the array and the value.
                The sums are as before.
            MethodError: more contributions than were announced.
        """
        if self.count >= self._contributors:
            raise MethodError(f"{self._contributors} contributions were announced, and one more came.")
        scales = {name: float(weight) * (factors or {}).get(name, 1.0) for name in self._shapes}
        squares: dict[str, float] = {}
        try:
            for name, scale in scales.items():
                squares[name] = self._accumulate(name, arrays[name], scale)
        except Exception:
            for name in squares:
                self._withdraw(name, arrays[name].reshape(-1), scales[name], len(self._anchors[name]))
            raise
        self.weight += weight
        self.count += 1
        self.squares = squares

    def means(
        self, name: str, update: Update | None = None, dtype: np.dtype[np.floating] | None = None
    ) -> NDArray[np.floating]:
        """The mean of an array, passed block by block through `update`; the sum is used up.

        The result (of the array's shape; float32 unless `dtype` says otherwise) lies in the memory of the sum.

        Raises:
            MethodError: nothing was added.
        """
        if not self.weight:
            raise MethodError("there is nothing to average: no contribution has any weight.")
        sums, anchors = self._sums.pop(name), self._anchors.pop(name)
        unit = 2.0 ** -self._bits[name]
        result = sums.view(dtype or np.dtype(np.float32))[: len(sums)]
        for place, count in enumerate(anchors):
            block = slice(place * BLOCK, min((place + 1) * BLOCK, len(sums)))
            wide = self._wide[: block.stop - block.start]
            if count:
                np.subtract(sums[block], _wrapped(int(count) * _ANCHOR_BITS), out=sums[block])
            np.copyto(wide, sums[block], casting="same_kind")
            np.multiply(wide, unit, out=wide)
            np.divide(wide, float(self.weight), out=wide)
            # What is written here lies before what is read next: a result is never wider than a sum.
            result[block] = update(block, wide) if update is not None else wide
        return result.reshape(self._shapes[name])

    def _accumulate(self, name: str, array: Float32, scale: float) -> float:
        values, sums, anchors = array.reshape(-1), self._sums[name], self._anchors[name]
        scale *= 2.0 ** self._bits[name]
        squares = 0.0
        for place in range(len(anchors)):
            start = place * BLOCK
            block = values[start : start + BLOCK]
            top = max(float(block.max()), -float(block.min()))  # NaN if there is any
            if not top * abs(scale) <= self._share:
                self._withdraw(name, values, scale / 2.0 ** self._bits[name], place)
                raise self._refusal(name, block, abs(scale))
            squares += self._units_of(block, scale, top, anchors, place, 1)
            np.add(sums[start : start + BLOCK], self._units[: len(block)], out=sums[start : start + BLOCK])
        return squares

    def _withdraw(self, name: str, values: Float32, scale: float, blocks: int) -> None:
        """Take the first blocks of a contribution out again; integers leave no trace."""
        sums, anchors = self._sums[name], self._anchors[name]
        scale *= 2.0 ** self._bits[name]
        for place in range(blocks):
            start = place * BLOCK
            block = values[start : start + BLOCK]
            top = max(float(block.max()), -float(block.min()))
            self._units_of(block, scale, top, anchors, place, -1)
            np.subtract(sums[start : start + BLOCK], self._units[: len(block)], out=sums[start : start + BLOCK])

    def _units_of(self, block: Float32, scale: float, top: float, anchors: Int64, place: int, sign: int) -> float:
        """The block in integer units, in `self._units`; with the anchor in them where that is exact and fast.

        Returns the block's sum of squares.
        """
        wide = self._wide[: len(block)]
        if top * abs(scale) < _FAST:
            wide = self._units.view(np.float64)[: len(block)]
            np.copyto(wide, block)
            squares = float(np.dot(wide, wide))
            np.multiply(wide, scale, out=wide)
            np.add(wide, _ANCHOR, out=wide)
            anchors[place] += sign
        else:
            np.copyto(wide, block)
            squares = float(np.dot(wide, wide))
            np.multiply(wide, scale, out=wide)
            np.rint(wide, out=wide)
            np.copyto(self._units[: len(block)], wide, casting="unsafe")
        return squares

    def _refusal(self, name: str, block: Float32, scale: float) -> RejectedContribution:
        odd = block[~np.isfinite(block)]
        if odd.size:
            return RejectedContribution(
                f"the array '{name}' holds {float(odd[0])}.",
                remedy="Look for a loss that is not finite at the node: lower the learning rate or clip gradients.",
                code="NOT_FINITE",
            )
        largest = float(np.abs(block).max())
        return RejectedContribution(
            f"the array '{name}' holds {largest:.6g} in magnitude; with this weight at most "
            f"{self._share / scale:.6g} fits into the sum over {self._contributors} nodes.",
            remedy="Look for a model that diverged at the node, or weight nodes uniformly.",
            code="OUT_OF_RANGE",
        )


def _room(numbers: int) -> Int64:
    """Zeros [numbers] in memory of their own, which goes back to the system when the last view of it is gone."""
    if not numbers:
        return np.zeros(0, dtype=np.int64)
    memory = mmap.mmap(-1, 8 * numbers, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.int64)


def squared_norm(arrays: Mapping[str, Float32]) -> float:
    """The sum of squares over all arrays, in float64, block by block; NaN or infinite where a number is."""
    wide, total = np.empty(BLOCK), 0.0
    for array in arrays.values():
        values = array.reshape(-1)
        for start in range(0, len(values), BLOCK):
            block = values[start : start + BLOCK]
            copied = wide[: len(block)]
            np.copyto(copied, block)
            total += float(np.dot(copied, copied))
    return total


def clip_factor(norm: float, limit: float | None) -> float:
    """By what a difference of that norm is multiplied so that it is no longer than `limit` (None: no limit)."""
    if limit is None or not norm > limit:
        return 1.0
    # On a grid of 2^-24 and rounded down, so that a norm's last bits, which depend on the machine, change nothing.
    return float(np.floor(limit / norm * 2.0**24)) * 2.0**-24 or limit / norm


def _wrapped(value: int) -> np.int64:
    """An integer modulo 2^64, as the signed number with those bits."""
    return np.int64((value + 2**63) % 2**64 - 2**63)
