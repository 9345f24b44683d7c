"""What Fed-GAME's server trains, as plain arrays: the networks that belong to nobody, a bias a node, Adam's moments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.learning import game_draws
from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.game_options import GameOptions

ENCODER, OFFSET, EXPERTS, GATES, NOISE, BIAS = "encoder", "offset", "experts", "gates", "noise", "bias"
SHARED = (ENCODER, OFFSET, EXPERTS, GATES, NOISE)
"""The networks that belong to nobody; `bias` has one row a node."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """An array that Adam trains: its value, its two moments, and how many steps it has had (`bias`: each row)."""

    value: Float32
    first: Float32
    second: Float32
    steps: Int64

    @classmethod
    def fresh(cls, value: Float64, *, rows: bool = False) -> Trained:
        """Before the first step."""
        zeros = np.zeros(value.shape, dtype=np.float32)
        steps = np.zeros(len(value) if rows else (), dtype=np.int64)
        return cls(value=value.astype(np.float32), first=zeros, second=zeros, steps=steps)

    def rows(self, places: Int64) -> Trained:
        """Some rows of it; a place of -1 is a row of zeros that nothing has trained."""

        def taken(array: NDArray[Any]) -> NDArray[Any]:
            padded = np.concatenate([array, np.zeros((1, *array.shape[1:]), dtype=array.dtype)])
            return padded[places]

        return self.each(taken)

    def each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Trained:
        """The same with every array changed."""
        return Trained(**{field.name: change(getattr(self, field.name)) for field in dataclasses.fields(self)})


Networks = Mapping[str, Trained]


def fresh_networks(inputs: int, nodes: int, options: GameOptions, seed: int) -> Networks:
    """Networks before the first round: encoder and experts from the seed, gates and biases at zero."""
    e, experts = options.embedding, options.experts

    def drawn(shape: tuple[int, int], bound: float, place: int) -> Float64:
        numbers = game_draws.uniform(shape, seed, game_draws.NETWORKS, place)
        return bound * (2.0 * numbers - 1.0)

    return {
        # Differences are of mean square 1, and so are the embeddings that this gives.
        ENCODER: Trained.fresh(drawn((e, inputs), (3.0 / inputs) ** 0.5, 0)),
        OFFSET: Trained.fresh(np.zeros(e)),
        EXPERTS: Trained.fresh(drawn((experts, 2 * e), (6.0 / (2 * e + 1)) ** 0.5, 1)),
        GATES: Trained.fresh(np.zeros((experts, e))),
        NOISE: Trained.fresh(np.zeros((experts, e))),
        BIAS: Trained.fresh(np.zeros((nodes, experts)), rows=True),
    }
