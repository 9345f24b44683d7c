"""Averaging that withstands some hostile or broken nodes: median, trimmed mean, Krum, multi-Krum, norm clipping.

These rules need all contributions at once. Each is written to a nameless temporary file as it comes (float32, one after
another) and read back in blocks at the end. Memory: one contribution's largest array while it is written; at the end
64 MiB of blocks, and for `multi_krum` and `norm_clipping` 8 bytes a number for the sum. Disk: the contributions, in the
folder for temporary files (TMPDIR) of the aggregator.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from hanse.errors import PlatformError, RejectedContribution
from hanse.learning.arrays import Float32, Float64
from hanse.learning.averaging import Update, WeightedSum, clip_factor, squared_norm
from hanse.learning.robust import best, coordinate_median, krum_scores, squared_distances, trimmed_mean
from hanse.method import Aggregation, Contribution, MetricValue
from hanse.payload.models import Delta, read_delta
from hanse_aggregator.plugins.averaging import (
    Averaging,
    AveragingAggregation,
    AveragingConfig,
    aggregation_metric,
    node_metric,
    rejected,
)
from hanse_aggregator.plugins.averaging_round import ModelRound

BLOCK_BYTES = 64 * 1024 * 1024
"""All rows of a block together, in float64."""

Rule = Literal["median", "trimmed_mean", "krum", "multi_krum", "norm_clipping"]
_UNWEIGHTED: frozenset[Rule] = frozenset({"median", "trimmed_mean", "krum"})


class RobustConfig(AveragingConfig):
    """The job file's `method_config`: that of averaging, and the rule."""

    weighting: Literal["examples", "uniform"] = "uniform"
    """By examples is for `multi_krum` and `norm_clipping` alone: a hostile node says what it likes."""
    rule: Rule = "median"
    """How contributions become one difference."""
    trim: float = Field(0.1, ge=0, lt=0.5)
    """`trimmed_mean`: the share of the contributions that is left out at either end, rounded down."""
    hostile: int = Field(1, ge=0)
    """`krum` and `multi_krum`: how many hostile nodes f they must withstand; they need 2 f + 3 contributions."""
    keep: int = Field(0, ge=0)
    """`multi_krum`: how many contributions are averaged; 0: all but f."""

    @model_validator(mode="after")
    def _weights_have_an_effect(self) -> Self:
        if self.weighting == "examples" and self.rule in _UNWEIGHTED:
            raise ValueError(f"weighting: examples has no meaning for the rule {self.rule}; use uniform")
        return self


class Robust(Averaging):
    """Averaging that withstands hostile nodes: coordinate median, trimmed mean, Krum, multi-Krum, norm clipping."""

    version: ClassVar[str] = "1"
    Config: ClassVar[type[BaseModel]] = RobustConfig

    def aggregation(self, start: ModelRound) -> Aggregation:
        """The aggregation of a training phase."""
        config = self.config(start.phase.job)
        assert isinstance(config, RobustConfig)
        return RobustAggregation(start, config)


class RobustAggregation(AveragingAggregation):
    """Keeps all contributions on disk; the rule is applied at the end, block by block."""

    config: RobustConfig

    def __init__(self, start: ModelRound, config: RobustConfig) -> None:
        super().__init__(start, config, summing=False)
        self._rows: dict[str, SpooledDelta] = {}
        self._chosen: tuple[str, ...] = ()
        self._sums: WeightedSum | None = None
        self._metrics: tuple[MetricValue, ...] = ()

    def add(self, contribution: Contribution) -> None:
        """Keep a node's difference on disk.

        Raises:
            RejectedContribution: it cannot be used; the sentence names node, array, value and remedy.
            PlatformError: the disk is full.
        """
        node = contribution.node
        try:
            delta = read_delta(contribution.payload, self.expected)
            row = SpooledDelta(delta, self.expected.shapes)
            norm = math.sqrt(squared_norm({name: row[name] for name in self.expected.shared}))
        except RejectedContribution as error:
            raise rejected(node, error) from error
        # Whether a rule clips to a common norm is known at the end alone.
        factor = clip_factor(norm, self.config.clip_norm)
        if factor < 1:
            row.scale(self.expected.shared, factor)
        self._rows[node] = row
        self.note(node, delta, norm, clipped=factor < 1)
        self.taken(contribution, delta)

    def prepare(self) -> None:
        """Choose the rows and, for rules that are sums, add them up."""
        config, nodes = self.config, sorted(self._rows)
        self._chosen = tuple(nodes)
        factors: dict[str, float] = {}
        if config.rule in ("krum", "multi_krum"):
            scores = krum_scores(squared_distances(self._products(nodes)), config.hostile)
            count = 1 if config.rule == "krum" else config.keep or len(nodes) - config.hostile
            self._chosen = tuple(nodes[row] for row in best(scores, count))
            self._metrics = tuple(
                node_metric("krum_score", float(score), node) for node, score in zip(nodes, scores, strict=True)
            )
        elif config.rule == "norm_clipping" and config.clip_norm is None:
            limit = float(np.median([self.norm(node) for node in nodes]))
            factors = {node: clip_factor(self.norm(node), limit) for node in nodes}
            clipped = sum(factor < 1 for factor in factors.values())
            self._metrics = (aggregation_metric("clipped", float(clipped)), aggregation_metric("norm_limit", limit))
        self._metrics = (*self._metrics, aggregation_metric("chosen", float(len(self._chosen))))
        if config.rule in ("multi_krum", "norm_clipping"):
            self._sums = self.new_sums()
            for node in self._chosen:
                row, factor = self._rows[node], factors.get(node, 1.0)
                weight = self.examples(node) if config.weighting == "examples" else 1
                try:
                    self._sums.add(row, weight, factors=dict.fromkeys(self.expected.shared, factor))
                except RejectedContribution as error:
                    raise rejected(node, error) from error

    def means(
        self, name: str, update: Update | None = None, dtype: np.dtype[np.floating] | None = None
    ) -> NDArray[np.floating]:
        """What the rule makes of an array."""
        if self._sums is not None:
            return self._sums.means(name, update, dtype)
        shape = self.expected.shapes[name]
        result = np.empty(math.prod(shape), dtype=dtype or np.float32)
        rows = [self._rows[node][name].reshape(-1) for node in self._chosen]
        width = max(1, BLOCK_BYTES // (8 * len(rows)))
        for start in range(0, len(result), width):
            place = slice(start, start + width)
            block = self._combined(np.stack([row[place] for row in rows]))
            result[place] = update(place, block) if update is not None else block
        return result.reshape(shape)

    def metrics(self) -> tuple[MetricValue, ...]:
        """As of averaging, and whom the rule chose."""
        return (*super().metrics(), *self._metrics)

    def about(self) -> dict[str, str]:
        """Lines of the model's card."""
        return {**super().about(), "rule": self.config.rule}

    def _combined(self, rows: Float32) -> Float64:
        if self.config.rule == "trimmed_mean":
            return trimmed_mean(rows, int(self.config.trim * len(rows)))
        if self.config.rule == "krum":
            only: Float64 = rows[0].astype(np.float64)
            return only
        return coordinate_median(rows)

    def _products(self, nodes: Sequence[str]) -> Float64:
        """Inner products [n, n] of the shared arrays, block by block."""
        products = np.zeros((len(nodes), len(nodes)))
        width = max(1, BLOCK_BYTES // (8 * len(nodes)))
        for name in self.expected.shared:
            rows = [self._rows[node][name].reshape(-1) for node in nodes]
            for start in range(0, len(rows[0]), width):
                block = np.stack([row[start : start + width] for row in rows]).astype(np.float64)
                products += block @ block.T
        return products


class SpooledDelta(Mapping[str, Float32]):
    """A difference in a nameless temporary file that is mapped: views of it cost no memory that cannot be dropped."""

    def __init__(self, delta: Delta, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Write a difference down.

        Raises:
            RejectedContribution: a number is not finite; the sentence names the array.
            PlatformError: the folder for temporary files has no room.
        """
        self._shapes = dict(shapes)
        sizes = {name: math.prod(shape) for name, shape in self._shapes.items()}
        flat = _mapped(sum(sizes.values()))
        self._views: dict[str, Float32] = {}
        start = 0
        for name, size in sizes.items():
            view = flat[start : start + size]
            view[:] = delta[name].reshape(-1)
            if not math.isfinite(squared_norm({name: view})):
                odd = float(view[~np.isfinite(view)][0])
                raise RejectedContribution(
                    f"the array '{name}' holds {odd}.",
                    remedy="Look for a loss that is not finite at the node: lower the learning rate.",
                    code="NOT_FINITE",
                )
            self._views[name] = view.reshape(self._shapes[name])
            start += size

    def scale(self, names: Mapping[str, Any], factor: float) -> None:
        """Multiply these arrays."""
        for name in names:
            self._views[name] *= np.float32(factor)

    def __getitem__(self, name: str) -> Float32:
        return self._views[name]

    def __iter__(self) -> Any:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def _mapped(numbers: int) -> Float32:
    size = max(4 * numbers, 1)
    try:
        with tempfile.TemporaryFile(prefix="hanse-delta-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.float32, count=numbers)
    except OSError as error:
        raise PlatformError(
            f"there is no room for a contribution of {size} bytes in {tempfile.gettempdir()}: {error.strerror}.",
            remedy="Free some space there, or set TMPDIR for the aggregator.",
            code="DISK_FULL",
        ) from error
