"""Evaluation sums as payloads: named ratios, confusion matrices and rankings that add up exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.payload.payload import Payload
from hanse.v1 import payload_pb2

# No entry may be larger, so that a thousand nodes stay within 64 bits.
MAX_ENTRY = 2**52
MAX_METRICS = 1_000
RATIO_FRACTION_BITS = 30
_WIDEST_FRACTION = 256


@dataclass(frozen=True, eq=False)
class RatioSum:
    """A sum and the count behind it: `array` int64 [2]; the value is `sum * 2**-fraction_bits / count`."""

    form: ClassVar[int] = payload_pb2.MetricSpec.FORM_RATIO
    array: NDArray[np.int64]
    fraction_bits: int = RATIO_FRACTION_BITS

    @classmethod
    def of(cls, values: NDArray[np.floating], fraction_bits: int = RATIO_FRACTION_BITS) -> RatioSum:
        """The sum and the count of values [n], each rounded once to the grid, half to even.

        Raises:
            InvalidPayload: a value that is not finite, or a sum above 2^52 units.
        """
        units = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), fraction_bits))
        if not np.all(np.isfinite(units)) or float(np.abs(units).sum()) > MAX_ENTRY:
            raise InvalidPayload("a metric has a value that is not finite, or its sum is too large.")
        return cls(np.array([units.astype(np.int64).sum(), len(units)], dtype=np.int64), fraction_bits)

    @property
    def count(self) -> int:
        """How many values were added."""
        return int(self.array[1])

    @property
    def mean(self) -> float:
        """Sum over count; NaN when nothing was counted."""
        return float(np.ldexp(float(self.array[0]), -self.fraction_bits)) / self.count if self.count else float("nan")

    def __add__(self, other: RatioSum) -> RatioSum:
        return RatioSum(self.array + other.array, self.fraction_bits)


@dataclass(frozen=True, eq=False)
class ConfusionSum:
    """Row counts by true class (first axis) and predicted class: `array` int64 [classes, classes]."""

    form: ClassVar[int] = payload_pb2.MetricSpec.FORM_CONFUSION
    array: NDArray[np.int64]
    fraction_bits: int = 0

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.array.sum())

    def __add__(self, other: ConfusionSum) -> ConfusionSum:
        return ConfusionSum(self.array + other.array)


@dataclass(frozen=True, eq=False)
class RankingSum:
    """Row counts by class (0, 1) and by bin of the predicted probability: `array` int64 [2, bins]."""

    form: ClassVar[int] = payload_pb2.MetricSpec.FORM_RANKING
    array: NDArray[np.int64]
    fraction_bits: int = 0

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.array.sum())

    def __add__(self, other: RankingSum) -> RankingSum:
        return RankingSum(self.array + other.array)


MetricSum = RatioSum | ConfusionSum | RankingSum


def metrics_payload(sums: Mapping[str, MetricSum]) -> Payload:
    """Named sums as a `Metrics` payload, in order of name."""
    kind = payload_pb2.Metrics(
        metrics=[
            payload_pb2.MetricSpec(
                name=name,
                form=payload_pb2.MetricSpec.Form.ValueType(sums[name].form),
                fraction_bits=sums[name].fraction_bits,
            )
            for name in sorted(sums)
        ]
    )
    return Payload.build(kind, {name: sums[name].array for name in sorted(sums)})


def read_metrics(payload: Payload) -> dict[str, MetricSum]:
    """The inverse of `metrics_payload`.

    Raises:
        InvalidPayload: another kind, a metric listed twice, without its array or of an unknown form, a wrong
            shape, a negative count, or numbers too large. The sentence names the metric.
    """
    if payload.kind != "metrics":
        raise InvalidPayload(f"metrics were expected, not a payload of kind '{payload.kind}'.")
    specs = payload.header.metrics.metrics
    if len(specs) > MAX_METRICS:
        raise InvalidPayload(f"there are {len(specs)} metrics; at most {MAX_METRICS} are allowed.")
    sums: dict[str, MetricSum] = {}
    for spec in specs:
        name = spec.name
        array = payload.arrays.get(name)
        if not name or name in sums or array is None or array.dtype != np.int64:
            raise InvalidPayload(f"the metric '{name[:80]}' is listed twice, or has no array of int64.")
        if array.size and (int(array.max()) > MAX_ENTRY or int(array.min()) < -MAX_ENTRY):
            raise InvalidPayload(f"the metric '{name[:80]}' holds a number above 2^52.")
        sums[name] = _checked(spec, array)
    return sums


def compatible(sums: Iterable[MetricSum]) -> bool:
    """Whether these sums may be added: same form, shape and fraction bits."""
    return len({(each.form, each.array.shape, each.fraction_bits) for each in sums}) <= 1


def _checked(spec: payload_pb2.MetricSpec, array: NDArray[np.int64]) -> MetricSum:
    name = spec.name[:80]
    if spec.form == payload_pb2.MetricSpec.FORM_RATIO:
        if array.shape != (2,) or array[1] < 0 or abs(spec.fraction_bits) > _WIDEST_FRACTION:
            raise InvalidPayload(f"the metric '{name}' is not a sum and a count.")
        if array[1] == 0 and array[0] != 0:
            raise InvalidPayload(f"the metric '{name}' has a sum over no rows.")
        return RatioSum(array, spec.fraction_bits)
    if spec.form == payload_pb2.MetricSpec.FORM_CONFUSION:
        if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size or np.any(array < 0):
            raise InvalidPayload(f"the metric '{name}' is not a square matrix of counts.")
        if float(array.sum(dtype=np.float64)) > MAX_ENTRY:
            raise InvalidPayload(f"the metric '{name}' counts more than 2^52 rows.")
        return ConfusionSum(array)
    if spec.form == payload_pb2.MetricSpec.FORM_RANKING:
        if array.ndim != 2 or array.shape[0] != 2 or not array.size or np.any(array < 0):
            raise InvalidPayload(f"the metric '{name}' is not two rows of counts.")
        if float(array.sum(dtype=np.float64)) > MAX_ENTRY:
            raise InvalidPayload(f"the metric '{name}' counts more than 2^52 rows.")
        return RankingSum(array)
    raise InvalidPayload(f"the metric '{name}' has the form {spec.form}, which is not known here.")
