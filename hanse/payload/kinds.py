"""Payload kinds: what the mathematics works with, as payloads and back.

Every reader checks what it is given (shapes, ranges, finite numbers, edges that ascend) and raises
`InvalidPayload` or `RejectedContribution` with a sentence that names what is wrong.
"""

from hanse.payload.documents import document_payload, read_document, read_text_array, text_array
from hanse.payload.metrics import ConfusionSum, MetricSum, RatioSum, compatible, metrics_payload, read_metrics
from hanse.payload.sketches import SketchBlock, decode_ddsketch, encode_ddsketch, read_sketches, sketches_payload
from hanse.payload.statistics import (
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
    "ConfusionSum",
    "MetricSum",
    "RatioSum",
    "SketchBlock",
    "atoms_payload",
    "compatible",
    "decode_ddsketch",
    "document_payload",
    "edges_payload",
    "encode_ddsketch",
    "metrics_payload",
    "prefixed",
    "read_atoms",
    "read_document",
    "read_edges",
    "read_metrics",
    "read_sketches",
    "read_text_array",
    "read_trees",
    "sketches_payload",
    "text_array",
    "trees_payload",
    "unprefixed",
]
