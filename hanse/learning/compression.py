"""Smaller forms of float32 arrays, and the memory that makes up for what they leave out.

`bf16` keeps the upper half of each number (8 bits of precision), `int8` one byte and a scale a block of numbers,
`top_k` the numbers that are largest in magnitude. With error feedback (Seide et al., Interspeech 2014; Karimireddy et
al., ICML 2019) what a round leaves out is added to the next round's difference, so that nothing is lost for good.
Rounding is to nearest, half to even: the same input gives the same bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hanse.learning.arrays import Float32

Scheme = Literal["none", "bf16", "int8", "top_k"]


class CompressionOptions(BaseModel):
    """How the differences of a job travel, the same for all nodes; a site may forbid it by its policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scheme: Scheme = "none"
    """`bf16`: half the bytes; `int8`: a quarter; `top_k`: `keep` of the numbers at 8 bytes each."""
    keep: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """Share of an array's numbers that `top_k` sends (at least one)."""
    error_feedback: bool = True
    """Add what was left out to the next round's difference."""
    lossless: bool = False
    """Compress what travels whole by zstd where that makes it at least a twentieth smaller."""

    @property
    def active(self) -> bool:
        """Whether anything is sent in another form than raw."""
        return self.scheme != "none" or self.lossless


def to_bfloat16(values: Float32) -> NDArray[np.uint16]:
    """The upper halves of finite numbers [n], rounded half to even; what would round up to infinity stays finite."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    halves = (rounded >> np.uint32(16)).astype(np.uint16)
    infinite = (halves & 0x7FFF) == 0x7F80
    halves[infinite] -= 1
    return halves


def from_bfloat16(halves: NDArray[np.uint16]) -> Float32:
    """The numbers [n] that the halves stand for."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_int8(values: Float32, block: int) -> tuple[Float32, NDArray[np.int8]]:
    """A scale for each `block` numbers, and the numbers [n] in units of it, -127 to 127."""
    n = len(values)
    blocks = -(-n // block)
    padded = np.zeros((blocks, block), dtype=np.float32)
    padded.reshape(-1)[:n] = values
    scales = np.abs(padded).max(axis=1) / np.float32(127)
    # A scale that underflows would divide by zero: such a block is nothing but zeros.
    divisors = np.where(scales > 0, scales, np.float32(1))
    units = np.clip(np.rint(padded / divisors[:, None]), -127, 127).astype(np.int8)
    return scales, units.reshape(-1)[:n]


def from_int8(scales: Float32, units: NDArray[np.int8], block: int) -> Float32:
    """The numbers [n] that scales [ceil(n / block)] and units [n] stand for."""
    values = units.astype(np.float32)
    whole = len(values) // block * block
    values[:whole].reshape(-1, block)[:] *= scales[: whole // block, None]
    values[whole:] *= scales[-1] if whole < len(values) else np.float32(1)
    return values


def largest(values: Float32, count: int) -> NDArray[np.uint32]:
    """The places [count] of the numbers that are largest in magnitude, ascending; of equals, those that come first."""
    size = np.abs(values)
    threshold = np.partition(size, len(size) - count)[len(size) - count]
    above = np.flatnonzero(size > threshold)
    equal = np.flatnonzero(size == threshold)[: count - len(above)]
    return np.sort(np.concatenate([above, equal])).astype(np.uint32)
