"""What Fed-GAME's second stream remembers from round to round: it travels in the aggregation state.

Of every node that ever contributed, the selective arrays of its last difference and the bias of its gate; the server's
networks with Adam's moments; where it is needed, the models that the differences were measured against. The size grows
with the number of nodes, never with the rounds.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.arrays import Float32, Float64, Int64
from hanse.learning.game import Played, Rows, shifts
from hanse.learning.game_mixing import shares
from hanse.learning.game_options import GameOptions
from hanse.learning.game_parameters import BIAS, SHARED, Networks, Trained
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.documents import text_array
from hanse.payload.models import delta_payload
from hanse_aggregator.plugins.averaging_round import Arrays, is_averaged

_NODES, _ROUNDS, _VALUES = "game.nodes", "game.rounds", "game.values"
_BASES, _BASE_ROUNDS = "game.bases", "game.base_rounds"
_UPDATES, _UPDATED = "game.updates", "game.updated"
_NETWORK = "game.network."
_PARTS = tuple(part.name for part in dataclasses.fields(Trained))


@dataclass(frozen=True, kw_only=True)
class Selective:
    """The arrays that are scored between nodes, as one flat vector; `size` numbers in all."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, shared: Arrays, roles: Mapping[str, Role]) -> Selective:
        """Those of a model state whose role is `selective`, in its order; counters are not among them."""
        chosen = (name for name, array in shared.items() if roles[name] is Role.SELECTIVE and is_averaged(array))
        return cls(shapes={name: shared[name].shape for name in chosen})

    @property
    def size(self) -> int:
        """How many numbers."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def flat(self, arrays: Mapping[str, NDArray[Any]]) -> Float32:
        """The arrays as one vector [size], a copy."""
        return np.concatenate([np.asarray(arrays[name], dtype=np.float32).reshape(-1) for name in self.shapes])

    def payload(self, values: Float32, base: bytes) -> Payload:
        """What a single node receives: a difference of just these arrays from the model state with the digest `base`.

        There is nothing else in it: no name and no count of another node.
        """
        arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for name, shape in self.shapes.items():
            arrays[name] = values[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        return delta_payload(base, 1, arrays)


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """The stream's state.

    `nodes`, in order of name; `rounds` int64 [n] and `values` float32 [n, d]: of each node's last difference;
    `networks`: None before any was trained, the rows of `bias` being those of `nodes`; `bases`: the selective arrays
    [d] of the models of the rounds named; `updates`: what nodes are to receive after the evaluation.
    """

    nodes: tuple[str, ...] = ()
    rounds: Int64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values: Float32 = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    networks: Networks | None = None
    bases: Mapping[int, Float32] = field(default_factory=dict)
    updates: Mapping[str, Float32] = field(default_factory=dict)

    @classmethod
    def from_arrays(cls, arrays: Arrays, size: int) -> Self:
        """The inverse of `to_arrays`; nothing at all is the memory before the first round.

        Raises:
            InvalidPayload: the arrays do not hold differences of `size` numbers.
        """
        if _VALUES not in arrays:
            return cls(values=np.zeros((0, size), dtype=np.float32))
        values, rounds = arrays[_VALUES], arrays[_ROUNDS]
        nodes = tuple(str(node) for node in json.loads(arrays[_NODES].tobytes()))
        if values.shape != (len(nodes), size) or rounds.shape != (len(nodes),):
            raise InvalidPayload(
                f"the aggregation state holds differences of shape {values.shape}, not {(len(nodes), size)}.",
                remedy="Start a new job: its model was configured in another way before.",
                code="STATE_MISMATCH",
            )
        names = [name for name in (*SHARED, BIAS) if f"{_NETWORK}{name}.value" in arrays]
        networks = {name: Trained(**{part: arrays[f"{_NETWORK}{name}.{part}"] for part in _PARTS}) for name in names}
        base_rounds = [int(number) for number in arrays.get(_BASE_ROUNDS, np.zeros(0))]
        updated = arrays.get(_UPDATED, np.zeros(0, dtype=np.int64))
        return cls(
            nodes=nodes,
            rounds=rounds,
            values=values,
            networks=networks or None,
            bases={number: arrays[_BASES][place] for place, number in enumerate(base_rounds)},
            updates={nodes[int(place)]: arrays[_UPDATES][row] for row, place in enumerate(updated)},
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The memory as named arrays for the aggregation state."""
        arrays: dict[str, NDArray[Any]] = {
            _NODES: text_array(self.nodes),
            _ROUNDS: self.rounds,
            _VALUES: self.values,
        }
        for name, trained in (self.networks or {}).items():
            arrays |= {f"{_NETWORK}{name}.{part}": getattr(trained, part) for part in _PARTS}
        if self.bases:
            arrays[_BASE_ROUNDS] = np.array(list(self.bases), dtype=np.int64)
            arrays[_BASES] = np.stack(list(self.bases.values()))
        if self.updates:
            place = {node: number for number, node in enumerate(self.nodes)}
            arrays[_UPDATED] = np.array([place[node] for node in self.updates], dtype=np.int64)
            arrays[_UPDATES] = np.stack(list(self.updates.values()))
        return arrays

    def after(self, arrived: Mapping[str, Float32], round_number: int, base: Float32 | None) -> Memory:
        """With the differences [d] of a round, by node, measured against the selective arrays `base` (None: not kept).

        A node that is new has a gate without bias.
        """
        before = {node: place for place, node in enumerate(self.nodes)}
        nodes = tuple(sorted({*self.nodes, *arrived}))
        rounds = [round_number if node in arrived else int(self.rounds[before[node]]) for node in nodes]
        rows = [arrived[node] if node in arrived else self.values[before[node]] for node in nodes]
        networks = self.networks
        if networks is not None:
            places = np.array([before.get(node, -1) for node in nodes], dtype=np.int64)
            networks = {**networks, BIAS: networks[BIAS].rows(places)}
        bases: dict[int, Float32] = {}
        if base is not None:
            bases = {number: array for number, array in self.bases.items() if number in rounds}
            bases[round_number] = base
        return Memory(
            nodes=nodes,
            rounds=np.array(rounds, dtype=np.int64),
            values=np.stack(rows),
            networks=networks,
            bases=bases,
        )

    def rows(self, round_number: int, groups: Mapping[str, str]) -> Rows:
        """The differences as the mathematics takes them, at the end of a round."""
        return Rows(nodes=self.nodes, values=self.values, age=round_number - self.rounds, groups=groups)

    def learned(self, played: Played, updates: Mapping[str, Float32]) -> Memory:
        """With the networks as a round has left them, and what nodes are to receive later."""
        networks = self.networks
        if played.networks is not None:
            bias = played.networks[BIAS]
            everyone = networks[BIAS] if networks is not None else bias.rows(np.full(len(self.nodes), -1))
            networks = {**played.networks, BIAS: _replaced(everyone, played.places, bias)}
        return dataclasses.replace(self, networks=networks, updates=updates)

    def anchored(
        self,
        updates: Float32,
        attention: Float64,
        options: GameOptions,
        *,
        own: tuple[str, ...] | None,
        peers: tuple[str, ...],
        new: Float32,
    ) -> Float32:
        """Updates [n, d] as they are to be added to the model that comes now, by `delta_anchor`.

        With `old`, each difference starts from the model that it was measured against; what `combine: sum` adds to a
        node's own stays a difference.

        Args:
            updates: as mixed.
            attention: by which they were mixed [n, m].
            options: the job's.
            own: the nodes whose updates they are; None: nodes whose differences were measured against `new` itself.
            peers: the nodes [m] that attention is over.
            new: the selective arrays of the model that comes now [d].
        """
        if not self.bases or not len(updates):
            return updates
        keep, give = shares(attention, options)
        if options.combine == "sum":
            give = np.zeros_like(give)
        mine = [-1] * len(updates) if own is None else self._base_places(own)
        bases = np.stack(list(self.bases.values()))
        return (updates + shifts(keep, give, mine, self._base_places(peers), bases, new)).astype(np.float32)

    def _base_places(self, nodes: tuple[str, ...]) -> list[int]:
        """For each node, which of `bases` its last difference was measured against."""
        order = {number: place for place, number in enumerate(self.bases)}
        place = {node: number for number, node in enumerate(self.nodes)}
        return [order[int(self.rounds[place[node]])] for node in nodes]


def _replaced(everyone: Trained, places: Int64, some: Trained) -> Trained:
    changed = {}
    for part in _PARTS:
        array = np.array(getattr(everyone, part))
        array[places] = getattr(some, part)
        changed[part] = array
    return Trained(**changed)
