"""What a researcher may set for Fed-GAME's second stream: how each node's difference meets those of its peers.

The job file's `method_config.game`. Source: Li et al., Fed-GAME, arXiv 2603.01363 (2026), of which no code is public:
what the paper does not fix is our choice, and `docs/fedgame.md` says which is which. This module needs no torch.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from hanse.settings import Settings

__all__ = ["AggregatorName", "GameOptions"]

AggregatorName = Literal["game", "uniform", "own", "same_group", "graphsage", "gat"]

LEARNED: frozenset[AggregatorName] = frozenset({"game", "gat"})
"""The aggregators with networks that the server trains."""


class GameOptions(Settings):
    """The personalised stream; the same for every node of a job."""

    aggregator: AggregatorName = "game"
    """Who counts how much for whom. `game`: learned experts and gates; `uniform`: all peers alike; `own`: nobody;
    `same_group`: the peers of the node's group alike; `graphsage`: the node's neighbours in `graph` alike; `gat`: one
    learned attention head over those neighbours."""
    embedding: int = Field(32, ge=1, le=4096)
    """Numbers of an encoded difference."""
    experts: int = Field(4, ge=1, le=64)
    """Scoring experts, shared by all nodes. One alone ranks peers alike for every node, as `gat` does (Brody, Alon and
    Yahav, ICLR 2022, call it static attention); it is the gates that make the ranking a node's own."""
    top_k: int = Field(2, ge=1, le=64)
    """Experts that a node's gate keeps; the others count nothing for it."""
    temperature: float = Field(1.0, gt=0)
    """Scores are divided by it before the softmax over peers: the smaller, the fewer peers count."""
    own_weight: float = Field(0.5, ge=0, le=1)
    """The share of a node's own difference in what it receives (`combine: convex`)."""
    combine: Literal["convex", "sum"] = "convex"
    """`convex`: own_weight * own + (1 - own_weight) * peers; `sum`: own + gamma * peers."""
    gamma: float = Field(0.5, ge=0)
    """The weight of the peers with `combine: sum`."""
    self_loop: bool = False
    """Whether a node is among its own peers. Then the meta-loss is least when nobody else counts: for ablation."""
    neighbour_top_k: int = Field(0, ge=0)
    """Only so many peers, those with the highest scores, count for a node; 0: all."""
    delta_anchor: Literal["new", "old"] = "new"
    """From which model a node's personalised difference starts: `new`, the one after this round, which holds the mean
    difference already; `old`, the one that the differences were measured against."""
    max_stale: int = Field(0, ge=0)
    """Up to so many rounds after a node's last contribution its difference still counts for its peers (never for the
    common model), and it receives an update itself."""
    clip: float = Field(3.0, ge=0)
    """A difference counts for peers scaled down to this many times the median norm; 0: as it is."""
    attention_cap: float = Field(1.0, gt=0, le=1)
    """The most that one peer may count for a node, as far as there are peers enough; 1: no cap."""
    meta_steps: int = Field(5, ge=0, le=1000)
    """Steps of Adam on the server's networks each round."""
    meta_rate: float = Field(1e-3, gt=0)
    """Adam's learning rate."""
    meta_noise: bool = True
    """Noise on the gates' logits while the server trains, so that every expert is tried (Shazeer et al. 2017)."""
    cosine_weight: float = Field(1.0, ge=0)
    """The weight of 1 - cosine beside the squared error in the meta-loss."""
    balance_weight: float = Field(0.01, ge=0)
    """The weight of the squared coefficient of variation of the experts' importance in the meta-loss."""
    weight_decay: float = Field(0.01, ge=0)
    """On the server's networks, decoupled (AdamW); with few nodes it keeps them from learning a round's noise."""
    projection: int = Field(4096, ge=0)
    """Longer differences are first brought to so many numbers by a fixed sparse random projection; 0: never."""
    group_by: str = ""
    """A fact of the nodes' dataset descriptions (`city`, say) that names each node's group, for `same_group`; with any
    aggregator the share of attention within groups is then told."""
    groups: dict[str, str] = Field(default_factory=dict)
    """Node to group, written out, instead of `group_by`. A job's configuration is told to all its nodes."""
    graph: dict[str, list[str]] = Field(default_factory=dict)
    """Node to its neighbours, for `graphsage` and `gat`. May be written as a list of pairs, each of which counts both
    ways. A job's configuration is told to all its nodes."""
    pictures_every: int = Field(1, ge=0)
    """Attention, graph and gates go to the ledger after every so many rounds, and after the last; 0: never."""

    @field_validator("graph", mode="before")
    @classmethod
    def _pairs_are_edges(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        graph: dict[str, list[str]] = {}
        for pair in value:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
                raise ValueError(f"an edge is a pair of node names, not {pair!r}")
            for node, other in (pair, reversed(pair)):
                if other not in graph.setdefault(node, []):
                    graph[node].append(other)
        return graph

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}, and there are {self.experts} experts; lower top_k")
        if self.aggregator in ("graphsage", "gat") and not self.graph:
            raise ValueError(f"the aggregator {self.aggregator} needs a graph; list the edges in game.graph")
        if self.groups and self.group_by:
            raise ValueError("groups are either written out (groups) or told by the nodes (group_by), not both")
        if self.aggregator == "same_group" and not (self.groups or self.group_by):
            raise ValueError("the aggregator same_group needs groups; set game.group_by or game.groups")
        if self.neighbour_top_k and self.aggregator not in LEARNED:
            raise ValueError(
                f"neighbour_top_k keeps the best scores, and the aggregator {self.aggregator} scores nobody"
            )
        return self
