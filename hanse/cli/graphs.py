"""The graph that a job has learned: who learns from whom, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hanse.cli.output import fields, printable, table
from hanse.cli.pull import receive
from hanse.errors import InvalidPayload, NotFound
from hanse.payload import Payload
from hanse.payload.documents import read_document
from hanse.v1 import control_pb2

if TYPE_CHECKING:
    from hanse.cli.connection import Control
    from hanse.learning.arrays import Float64

MOST_COLUMNS = 12
"""A matrix with more nodes is not printed; its strongest lines are."""
STRONGEST = 5
_ATTENTION = "attention"


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Weights float64 [n, n] between named nodes: a row learns from its columns."""

    job: control_pb2.Job
    round: int
    title: str
    nodes: tuple[str, ...]
    weights: Float64

    def edges(self) -> list[tuple[str, str, float]]:
        """(node, peer, weight) of every line, the strongest first."""
        order = np.argsort(-self.weights, axis=None, kind="stable")
        pairs = (divmod(int(place), len(self.nodes)) for place in order)
        return [(self.nodes[i], self.nodes[j], float(self.weights[i, j])) for i, j in pairs if self.weights[i, j] > 0]

    def document(self) -> dict[str, Any]:
        """The graph for programs."""
        return {
            "job": self.job.id,
            "round": self.round,
            "title": self.title,
            "nodes": list(self.nodes),
            "weights": [[round(float(weight), 6) for weight in row] for row in self.weights],
            "edges": [
                {"node": node, "learns_from": peer, "weight": round(weight, 6)} for node, peer, weight in self.edges()
            ],
        }


def fetch_graph(control: Control, detail: control_pb2.JobDetail) -> Graph:
    """Download the newest attention matrix of a job, or its newest graph.

    Raises:
        NotFound: the job has made none.
        InvalidPayload: what arrived is no graph.
    """
    candidates = [picture for picture in detail.pictures if picture.name == _ATTENTION and picture.kind == "matrix"]
    candidates += [picture for picture in detail.pictures if picture.kind == "graph"]
    if not candidates:
        raise NotFound(
            f"Job {detail.job.id} has learned no graph.",
            remedy="Methods that learn who counts for whom (fedgame) make one after their first round.",
            code="NO_GRAPH",
        )
    chosen = candidates[0]
    request = control_pb2.PullArtifactRequest(digest=bytes.fromhex(chosen.digest))
    payload = Payload.from_image(receive(control.stream("PullArtifact", request)))
    document = read_document(payload, "picture")
    weights = payload.arrays.get("values" if chosen.kind == "matrix" else "weights")
    nodes = document.get("rows" if chosen.kind == "matrix" else "labels")
    fits = weights is not None and isinstance(nodes, list) and weights.shape == (len(nodes), len(nodes))
    if not fits or weights is None or not isinstance(nodes, list) or not np.isfinite(weights).all():
        raise InvalidPayload(f"The picture '{chosen.name}' of round {chosen.round} is not a graph of nodes.")
    return Graph(
        job=detail.job,
        round=chosen.round,
        title=chosen.title,
        nodes=tuple(str(node) for node in nodes),
        weights=weights.astype(np.float64),
    )


def describe_graph(graph: Graph) -> str:
    """A graph for people: the matrix where it is small, and each node's strongest peers."""
    facts = fields(
        [
            ("job", f"{graph.job.id}  {printable(graph.job.name)}"),
            ("round", f"{graph.round} of {graph.job.rounds}"),
            ("shown", printable(graph.title)),
        ]
    )
    parts = [facts]
    names = [printable(node) for node in graph.nodes]
    if len(names) <= MOST_COLUMNS:
        matrix = [
            (name, *(f"{weight:.2f}" if weight else "-" for weight in row))
            for name, row in zip(names, graph.weights, strict=True)
        ]
        parts.append(table(("NODE", *names), matrix, empty=""))
    strongest = []
    for name, row in zip(names, graph.weights, strict=True):
        order = [int(place) for place in np.argsort(-row, kind="stable")[:STRONGEST] if row[place] > 0]
        strongest.append((name, ", ".join(f"{names[place]} {row[place]:.2f}" for place in order) or "nobody"))
    parts.append(table(("NODE", "LEARNS MOST FROM"), strongest, empty="No node has a peer."))
    return "\n\n".join(parts)
