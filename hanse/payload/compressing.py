"""The node's side of a difference: what was left out is added, the arrays are made smaller, the rest is kept.

The residuals of error feedback lie in the learner's versioned state folder, so that an assignment that is done again
starts from the same ones. Absolute values (of arrays that only unseen nodes receive) are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.arrays import Float32
from hanse.learning.compression import CompressionOptions
from hanse.method import Assignment
from hanse.payload.documents import document_payload, read_document
from hanse.payload.encodings import Encoded, encode_bf16, encode_int8, encode_top_k, encode_zstd
from hanse.payload.models import delta_payload
from hanse.payload.payload import Payload

RESIDUALS = "residuals.hnsp"
_KIND = "compression.residuals"
_SMALLEST = 64
"""Arrays of fewer numbers (biases, scales) travel whole: there is nothing to gain."""


def compressed_delta(
    assignment: Assignment,
    *,
    examples: int,
    shared: Mapping[str, Float32],
    absolute: Mapping[str, Float32],
    options: CompressionOptions | None,
) -> Payload:
    """The contribution to a training phase, as the job agreed on it (`options`: `method_config.compression`).

    Args:
        assignment: the training assignment; residuals are read from its state and written to its next state.
        examples: training records behind the difference.
        shared: float32 differences of the shared arrays.
        absolute: values of the arrays that only unseen nodes receive.
        options: None or inactive: everything travels whole.
    """
    base = assignment.instruction.digest
    if options is None or not options.active:
        return delta_payload(base, examples, {**shared, **absolute})
    left_out: dict[str, Float32] = {}
    residuals = _load(assignment.state, shared) if options.error_feedback else {}
    encode = _encoder(options)
    sent: dict[str, NDArray[Any] | Encoded] = {}
    for name, array in shared.items():
        if encode is None or array.size < _SMALLEST or not np.isfinite(array).all():
            sent[name] = array  # what is not finite is for the aggregator to name
            continue
        whole = array + residuals[name] if name in residuals else array
        encoded = encode(whole)
        sent[name] = encoded
        if options.error_feedback:
            left_out[name] = whole - encoded.decode()
    sent |= absolute
    if options.lossless:
        sent = {
            name: array if isinstance(array, Encoded) else (encode_zstd(array) or array) for name, array in sent.items()
        }
    if left_out:
        document_payload(_KIND, {}, left_out).write(assignment.next_state / RESIDUALS)
    return delta_payload(base, examples, sent)


def keep_residuals(assignment: Assignment) -> None:
    """Carry the residuals over an assignment that trains nothing (an evaluation)."""
    path = assignment.state / RESIDUALS if assignment.state is not None else None
    if path is not None and path.exists():
        (assignment.next_state / RESIDUALS).write_bytes(path.read_bytes())


def _encoder(options: CompressionOptions) -> Callable[[Float32], Encoded] | None:
    if options.scheme == "top_k":
        return lambda array: encode_top_k(array, options.keep)
    return {"none": None, "bf16": encode_bf16, "int8": encode_int8}[options.scheme]


def _load(state: Path | None, shared: Mapping[str, Float32]) -> dict[str, Float32]:
    """The residuals that fit; those of another model are forgotten."""
    if state is None or not (state / RESIDUALS).exists():
        return {}
    payload = Payload.open(state / RESIDUALS)
    try:
        read_document(payload, _KIND)
    except InvalidPayload:
        return {}
    return {
        name: array
        for name, array in payload.arrays.items()
        if name in shared and array.shape == shared[name].shape and array.dtype == np.float32
    }
