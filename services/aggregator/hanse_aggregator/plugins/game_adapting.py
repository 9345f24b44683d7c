"""The phase in which nodes that never train send one difference, and learn from those that do.

An unseen node fine-tunes the round's model at home and contributes the selective arrays of the difference. The server's
networks are frozen, and nothing of it enters them, the common model or anybody else's update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from hanse.errors import RejectedContribution
from hanse.learning.arrays import Float32
from hanse.learning.averaging import squared_norm
from hanse.learning.compression import CompressionOptions
from hanse.learning.game import Rows, adapt
from hanse.learning.game_mixing import TINY, norms
from hanse.learning.game_options import GameOptions
from hanse.method import Contribution, Outcome, Phase
from hanse.payload import Payload
from hanse.payload.models import Expected, read_delta
from hanse_aggregator.plugins.averaging import aggregation_metric, node_metric, rejected
from hanse_aggregator.plugins.averaging_round import ModelRound
from hanse_aggregator.plugins.game_figures import attention_picture
from hanse_aggregator.plugins.game_memory import Memory, Selective

ADAPT = "adapt"


class AdaptAggregation:
    """Collects differences of unseen nodes; the outcome is the evaluation, with an update for each of them."""

    def __init__(
        self,
        start: ModelRound,
        state: Payload,
        selective: Selective,
        memory: Memory,
        options: GameOptions,
        groups: Mapping[str, str],
        compression: CompressionOptions,
        *,
        then: Callable[[Mapping[str, Float32]], Phase],
    ) -> None:
        """`state` is handed on as it came; `then` makes the evaluation from updates [d] by node."""
        self._start = start
        self._state = state
        self._selective = selective
        self._memory = memory
        self._options = options
        self._groups = groups
        self._then = then
        self._expected = Expected(
            base_digest=start.phase.instruction.digest,
            shared=selective.shapes,
            absolute={},
            compression=compression,
        )
        self._arrived: dict[str, Float32] = {}
        self._bytes: dict[str, int] = {}

    def add(self, contribution: Contribution) -> None:
        """Take the selective arrays of an unseen node's difference.

        Raises:
            RejectedContribution: it cannot be used; the sentence names node, array, value and remedy.
        """
        try:
            if not contribution.unseen:
                raise RejectedContribution(
                    "only nodes that never train adapt.", remedy="This node receives its update with the next round."
                )
            delta = read_delta(contribution.payload, self._expected)
            for name in self._selective.shapes:
                if not math.isfinite(squared_norm({name: delta[name]})):
                    raise RejectedContribution(
                        f"the array '{name}' holds a number that is not finite.",
                        remedy="Look for a loss that is not finite at the node: lower the learning rate.",
                        code="NOT_FINITE",
                    )
        except RejectedContribution as error:
            raise rejected(contribution.node, error) from error
        self._arrived[contribution.node] = self._selective.flat(delta)
        self._bytes[contribution.node] = delta.bytes

    def finish(self) -> Outcome:
        """The evaluation; unseen nodes that did not answer, or whose difference is zero, receive nothing."""
        nodes = tuple(sorted(self._arrived))
        values = np.stack([self._arrived[node] for node in nodes]) if nodes else self._memory.values[:0]
        lengths = norms(values)
        chosen = np.flatnonzero(lengths > TINY)
        unseen = Rows(nodes=nodes, values=values, age=np.zeros(len(nodes), dtype=np.int64), groups=self._groups)
        seen = self._memory.rows(self._start.phase.round, self._groups)
        seen = seen.of(np.flatnonzero(norms(seen.values) > TINY))
        unseen = unseen.of(chosen)
        adapted = adapt(unseen, seen, self._memory.networks, self._options, seed=self._start.phase.job.seed)
        new = self._selective.flat(self._start.shared)
        updates = self._memory.anchored(
            adapted.updates, adapted.attention, self._options, own=None, peers=seen.nodes, new=new
        )
        metrics = [node_metric("adapt_norm", float(lengths[place]), nodes[place]) for place in range(len(nodes))]
        metrics += [node_metric("adapt_bytes", float(size), node) for node, size in sorted(self._bytes.items())]
        metrics.append(aggregation_metric("adapted", float(len(unseen.nodes))))
        title = "How much each node that trains (column) counts for an unseen node (row)"
        picture = attention_picture("unseen_attention", title, unseen.nodes, seen.nodes, adapted.attention)
        return Outcome(
            next_phase=self._then(dict(zip(unseen.nodes, updates, strict=True))),
            state=self._state,
            metrics=tuple(metrics),
            pictures=(picture,) if adapted.attention.any() else (),
        )
