"""Payload kinds: what the mathematics works with, as payloads and back.

Every reader checks what it is given (shapes, ranges, finite numbers, edges that ascend) and raises
`InvalidPayload` or `RejectedContribution` with a sentence that names what is wrong.
"""

from hanse.payload.documents import document_payload, read_document, read_text_array, text_array
from hanse.payload.histograms import histograms_payload, read_histograms
from hanse.payload.metrics import (
    ConfusionSum,
    MetricSum,
    RankingSum,
    RatioSum,
    compatible,
    metrics_payload,
    read_metrics,
)
from hanse.payload.sketches import SketchBlock, decode_ddsketch, encode_ddsketch, read_sketches, sketches_payload
from hanse.payload.statistics import (
    AtomCounts,
    atoms_payload,
    edges_payload,
    prefixed,
    read_atoms,
    read_edges,
    read_trees,
    trees_payload,
    unprefixed,
)

__all__ = [
    "AtomCounts",
    "ConfusionSum",
    "MetricSum",
    "RankingSum",
    "RatioSum",
    "SketchBlock",
    "atoms_payload",
    "compatible",
    "decode_ddsketch",
    "document_payload",
    "edges_payload",
    "encode_ddsketch",
    "histograms_payload",
    "metrics_payload",
    "prefixed",
    "read_atoms",
    "read_document",
    "read_edges",
    "read_histograms",
    "read_metrics",
    "read_sketches",
    "read_text_array",
    "read_trees",
    "sketches_payload",
    "text_array",
    "trees_payload",
    "unprefixed",
]
