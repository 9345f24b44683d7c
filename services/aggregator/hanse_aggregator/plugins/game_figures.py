"""What people see of Fed-GAME's second stream: numbers of a round, and the learned graph as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hanse.learning.arrays import Float64
from hanse.learning.game import Played, Rows
from hanse.learning.game_mixing import evenness, norms, same_group, within_groups
from hanse.method import MetricValue, Picture
from hanse.payload import Payload
from hanse.payload.documents import document_payload
from hanse_aggregator.plugins.averaging import aggregation_metric, node_metric
from hanse_aggregator.plugins.averaging_round import Arrays
from hanse_aggregator.plugins.game_memory import Selective

MOST_NODES = 400
"""A picture shows no more nodes than this: their names must fit into its document."""
STRONGEST = 5
"""The graph shows at most so many peers of a node: all when it has no more, else those above an even share."""


def round_metrics(rows: Rows, played: Played) -> tuple[MetricValue, ...]:
    """Who sent how much, how evenly nodes attend to peers, which experts count, how training went."""
    nodes = [rows.nodes[place] for place in played.places]
    own, received = norms(rows.values[played.places]), norms(played.updates)
    even = evenness(played.attention)
    metrics: list[MetricValue] = []
    for place, node in enumerate(nodes):
        metrics.append(node_metric("selective_norm", float(own[place]), node))
        metrics.append(node_metric("personal_norm", float(received[place]), node))
        if np.isfinite(even[place]):
            metrics.append(node_metric("attention_evenness", float(even[place]), node))
    totals = {
        "personalised": float(len(nodes)),
        "peers_clipped": float(played.clipped.sum()),
        "peers_stale": float((rows.age[played.places] > 0).sum()),
    }
    if np.isfinite(even).any():
        totals["attention_evenness"] = float(np.nanmean(even))
    kept = within_groups(played.attention, same_group(nodes, nodes, rows.groups)) if rows.groups else None
    if kept is not None:
        totals["attention_within_groups"] = kept
    if played.gates is not None and len(nodes):
        importance = played.gates.mean(axis=0)
        totals |= {f"gate_importance_{number}": float(share) for number, share in enumerate(importance)}
    if played.losses is not None:
        totals |= {"meta_loss_first": played.losses.first, "meta_loss_last": played.losses.last}
    return (*metrics, *(aggregation_metric(name, value) for name, value in totals.items()))


def overhead(
    selective: Selective, shared: Arrays, instruction: int, sent: Sequence[int], personal: Sequence[Payload]
) -> tuple[MetricValue, ...]:
    """What personalisation adds to the exchange of a round: by the formula, and in bytes.

    The formula is d_s / (2 P): one more download of the d_s selective numbers beside P numbers down and P up.

    Args:
        selective: the selective arrays.
        shared: the model's arrays.
        instruction: bytes of the instruction that each node received.
        sent: bytes that each of these nodes contributed.
        personal: what they receive in addition.
    """
    numbers = sum(array.size for array in shared.values())
    metrics = {"selective_numbers": float(selective.size), "overhead_formula": selective.size / (2.0 * numbers)}
    if personal and sent:
        exchange = instruction + sum(sent) / len(sent)
        whole = sum(payload.size for payload in personal) / len(personal)
        metrics["personal_bytes"] = whole
        metrics["overhead_measured"] = whole / exchange
    return tuple(aggregation_metric(name, value) for name, value in metrics.items())


def round_pictures(rows: Rows, played: Played) -> tuple[Picture, ...]:
    """The attention, the graph of its strongest lines, and the gates."""
    nodes = [rows.nodes[place] for place in played.places]
    if not nodes:
        return ()
    pictures: list[Picture] = []
    if played.attention.any():
        title = "How much each peer (column) counts for a node (row)"
        pictures += [
            attention_picture("attention", title, nodes, nodes, played.attention),
            _graph(nodes, strongest(played.attention)),
        ]
    if played.gates is not None:
        pictures.append(_gates(nodes, played.gates))
    return tuple(pictures)


def attention_picture(name: str, title: str, nodes: Sequence[str], peers: Sequence[str], attention: Float64) -> Picture:
    """Attention [n, m] as shades."""
    document = {
        "rows": list(nodes[:MOST_NODES]),
        "columns": list(peers[:MOST_NODES]),
        "row_title": "node",
        "column_title": "learns from",
    }
    values = attention[:MOST_NODES, :MOST_NODES].astype(np.float32)
    title += _left_out(max(len(nodes), len(peers)))
    return Picture(
        name=name, kind="matrix", title=title, payload=document_payload("picture", document, {"values": values})
    )


def strongest(attention: Float64) -> Float64:
    """Attention [n, n] of which each node keeps its strongest lines alone; see `STRONGEST`."""
    peers = (attention > 0).sum(axis=1, keepdims=True)
    order = np.argsort(-attention, axis=1, kind="stable")[:, :STRONGEST]
    kept = np.zeros_like(attention)
    np.put_along_axis(kept, order, np.take_along_axis(attention, order, axis=1), axis=1)
    lines: Float64 = np.where((peers <= STRONGEST) | (kept * peers > 1.0 + 1e-9), kept, 0.0)
    return lines


def _graph(nodes: Sequence[str], weights: Float64) -> Picture:
    title = f"Who learns from whom: each node's strongest peers, at most {STRONGEST}{_left_out(len(nodes))}"
    shown = weights[:MOST_NODES, :MOST_NODES].astype(np.float32)
    payload = document_payload("picture", {"labels": list(nodes[:MOST_NODES])}, {"weights": shown})
    return Picture(name="graph", kind="graph", title=title, payload=payload)


def _gates(nodes: Sequence[str], gates: Float64) -> Picture:
    document = {
        "rows": list(nodes[:MOST_NODES]),
        "columns": [f"expert {number}" for number in range(gates.shape[1])],
        "row_title": "node",
        "column_title": "weight of each scoring expert",
    }
    title = f"Which experts score the peers of each node{_left_out(len(nodes))}"
    payload = document_payload("picture", document, {"values": gates[:MOST_NODES].astype(np.float32)})
    return Picture(name="gates", kind="matrix", title=title, payload=payload)


def _left_out(nodes: int) -> str:
    return f" (the first {MOST_NODES} of {nodes} nodes)" if nodes > MOST_NODES else ""
