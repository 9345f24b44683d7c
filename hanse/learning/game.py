"""Fed-GAME's personalised stream: one round from differences to personalised updates, as a pure function.

Rows are the selective arrays' differences, flat, one a node, in order of the nodes' names. A node plays when its
difference is not zero and not older than `max_stale` rounds. Differences count for peers clipped to a multiple of their
median norm, and for the networks divided by their common root mean square as well. torch is imported only where the
aggregator learns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hanse.learning.arrays import Bool, Float32, Float64, Int64
from hanse.learning.game_draws import projected
from hanse.learning.game_mixing import (
    TINY,
    allowed_peers,
    capped,
    clip_factors,
    even_attention,
    mixed,
    norms,
    products,
    scale_of,
)
from hanse.learning.game_options import LEARNED, GameOptions
from hanse.learning.game_parameters import BIAS, Networks, fresh_networks

if TYPE_CHECKING:
    from hanse.learning.game_networks import Losses

__all__ = ["Adapted", "Played", "Rows", "adapt", "play", "shifts"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Differences of nodes.

    `values` float32 [n, d]; `age` int64 [n]: rounds since each was contributed, 0 for those of this round; `groups`:
    node to group, of those that have one.
    """

    nodes: tuple[str, ...]
    values: Float32
    age: Int64
    groups: Mapping[str, str]

    def of(self, places: Int64) -> Rows:
        """Some of them."""
        nodes = tuple(self.nodes[place] for place in places)
        return dataclasses.replace(self, nodes=nodes, values=self.values[places], age=self.age[places])


@dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """What came of a round.

    `places` [k]: which rows played; all else is of these. `updates` float32 [k, d]: the personalised differences;
    `attention` [k, k]; `gates` [k, experts], None where nothing is gated; `networks`: as trained, with the biases of
    those who played; `clipped` [k]: who counted for less than its length.
    """

    places: Int64
    updates: Float32
    attention: Float64
    gates: Float64 | None
    networks: Networks | None
    losses: Losses | None
    clipped: Bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapted:
    """What nodes that never train receive: `updates` [n, d] and their `attention` [n, m] over the nodes that do."""

    updates: Float32
    attention: Float64


def play(rows: Rows, networks: Networks | None, options: GameOptions, *, seed: int, round_number: int) -> Played:
    """One round.

    Args:
        rows: of every node that ever contributed.
        networks: as the last round left them, the rows of `bias` being those of `rows`; None before the first round.
        options: the job's.
        seed: the job's.
        round_number: from 1.
    """
    lengths = norms(rows.values)
    places = np.flatnonzero((lengths > TINY) & (rows.age <= options.max_stale))
    playing, lengths = rows.of(places), lengths[places]
    options = effective(options)
    factors = clip_factors(lengths, options.clip)
    allowed = allowed_peers(playing.nodes, playing.nodes, options, rows.groups)
    attention = even_attention(allowed)
    gates, after, losses = None, None, None
    if options.aggregator in LEARNED:
        from hanse.learning import game_networks

        size = rows.values.shape[1]
        weights = factors / scale_of(lengths * factors, size)
        inputs = projected(playing.values, options.projection, seed) * weights[:, None]
        before = networks or fresh_networks(inputs.shape[1], len(rows.nodes), options, seed)
        after, losses = game_networks.trained_networks(
            {**before, BIAS: before[BIAS].rows(places)},
            inputs,
            products(playing.values, weights),
            allowed,
            playing.age == 0,
            options,
            seed=seed,
            round_number=round_number,
            size=size,
        )
        found = game_networks.attend(after, inputs, after[BIAS].value, inputs, allowed, options)
        attention, gates = found.weights, found.gates
    attention = capped(attention, options.attention_cap)
    return Played(
        places=places,
        updates=mixed(playing.values, playing.values, factors, attention, options),
        attention=attention,
        gates=gates,
        networks=after,
        losses=losses,
        clipped=factors < 1.0,
    )


def adapt(unseen: Rows, seen: Rows, networks: Networks | None, options: GameOptions, *, seed: int) -> Adapted:
    """What nodes that never train receive: frozen networks, gates without a bias of their own.

    Args:
        unseen: their differences from the model as it stands.
        seen: the last differences of the nodes that train, however old.
        networks: as the last round left them; None where nobody has trained any.
        options: the job's.
        seed: the job's.
    """
    options = effective(options)
    lengths = norms(seen.values)
    seen = seen.of(np.flatnonzero(lengths > TINY))
    lengths = lengths[lengths > TINY]
    factors = clip_factors(lengths, options.clip)
    allowed = allowed_peers(unseen.nodes, seen.nodes, options, {**seen.groups, **unseen.groups})
    attention = even_attention(allowed)
    if options.aggregator in LEARNED and networks is not None and len(seen.nodes):
        from hanse.learning import game_networks

        scale = scale_of(lengths * factors, seen.values.shape[1])
        median = float(np.median(lengths))
        own = clip_factors(norms(unseen.values), options.clip, median=median) / scale
        attention = game_networks.attend(
            networks,
            projected(unseen.values, options.projection, seed) * own[:, None],
            np.zeros((len(unseen.nodes), options.experts), dtype=np.float32),
            projected(seen.values, options.projection, seed) * (factors / scale)[:, None],
            allowed,
            options,
        ).weights
    attention = capped(attention, options.attention_cap)
    return Adapted(updates=mixed(unseen.values, seen.values, factors, attention, options), attention=attention)


def effective(options: GameOptions) -> GameOptions:
    """The options in force: the aggregator `gat` is one expert without a choice of experts."""
    if options.aggregator == "gat":
        return options.model_copy(update={"experts": 1, "top_k": 1})
    return options


def shifts(
    keep: Float64, give: Float64, own: Sequence[int], peers: Sequence[int], bases: Float32, new: Float32
) -> Float64:
    """By how much updates change when each difference starts from the model that it was measured against.

    Args:
        keep: how much a node's own difference counts [n].
        give: how much each peer's counts [n, m].
        own: for each node, which row of `bases` its difference was measured against; -1: against `new` itself.
        peers: the same for the peers [m].
        bases: the selective arrays of the models of earlier rounds [r, d].
        new: those of the model that comes now [d].
    """
    counts = np.zeros((len(keep), len(bases)))
    for place in range(len(bases)):
        counts[:, place] = keep * (np.asarray(own) == place) + give[:, np.asarray(peers) == place].sum(axis=1)
    moved: Float64 = counts @ (bases.astype(np.float64) - new.astype(np.float64))
    return moved
