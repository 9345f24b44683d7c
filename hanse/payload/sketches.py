"""Feature sketches as payloads, in the published DDSketch format (Masson, Rim & Lee, VLDB 2019).

What is written here decodes with any DDSketch library, and sketches that a site made with such a library are
read: contiguous counts, sparse counts, or both. Counts are whole numbers of the job's units, which float64 holds
exactly up to 2^53; values are measured from the feature's agreed centre.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.sketch import BucketMapping, Sketch, Store
from hanse.payload.payload import Payload
from hanse.v1 import payload_pb2

# No sketch may weigh more, so that a thousand nodes stay within 64 bits.
MAX_TOTAL = 2**52
# Libraries round gamma differently in its last digits; bucket boundaries agree to far below a bucket.
_GAMMA_TOLERANCE = 1e-9


def encode_ddsketch(sketch: Sketch, mapping: BucketMapping) -> bytes:
    """One sketch as a serialised DDSketch message.

    Raises:
        InvalidPayload: it weighs more than 2^52 units.
    """
    if sketch.total > MAX_TOTAL:
        raise InvalidPayload(
            f"a sketch weighs {sketch.total} units; at most {MAX_TOTAL} can be sent.",
            remedy="Scale the instance weights down.",
        )
    positive, negative, zero = sketch.stores(mapping)
    message = payload_pb2.DDSketch(
        mapping=payload_pb2.IndexMapping(gamma=mapping.gamma, interpolation=payload_pb2.IndexMapping.NONE),
        positive_values=_store_message(positive),
        negative_values=_store_message(negative),
        zero_count=float(zero),
    )
    return message.SerializeToString(deterministic=True)


def decode_ddsketch(data: bytes, mapping: BucketMapping, *, feature: str) -> Sketch:
    """A sketch from a serialised DDSketch message of any library.

    Raises:
        InvalidPayload: not a DDSketch, another mapping than the agreed one, or counts that are negative, not
            whole, not finite or too large. The sentence names `feature`.
    """
    message = payload_pb2.DDSketch()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise InvalidPayload(f"the sketch of feature '{feature}' is not a DDSketch message.") from error
    found = message.mapping
    if (
        not math.isclose(found.gamma, mapping.gamma, rel_tol=_GAMMA_TOLERANCE)
        or found.index_offset != 0
        or found.interpolation != payload_pb2.IndexMapping.NONE
    ):
        raise InvalidPayload(
            f"the sketch of feature '{feature}' has gamma {found.gamma!r}, index offset {found.index_offset!r} and "
            f"interpolation {found.interpolation}; agreed are gamma {mapping.gamma!r}, offset 0 and no interpolation.",
            remedy=f"Make it with a logarithmic mapping of relative accuracy {mapping.relative_accuracy}.",
        )
    positive = _store(message.positive_values, mapping, feature)
    negative = _store(message.negative_values, mapping, feature)
    zero = _counts(np.array([message.zero_count]), feature)
    if float(positive.counts.sum()) + float(negative.counts.sum()) + float(zero[0]) > MAX_TOTAL:
        raise InvalidPayload(f"the sketch of feature '{feature}' weighs more than {MAX_TOTAL} units.")
    return Sketch.from_stores(positive, negative, int(zero[0]), mapping)


def sketches_payload(sketches: Sequence[Sequence[Sketch]], mapping: BucketMapping) -> Payload:
    """Sketches as a `FeatureSketches` payload: `sketches[k][f]` of output `k` (one, when shared) and feature `f`.

    Messages lie feature by feature, and within a feature output by output.
    """
    outputs, features = len(sketches), len(sketches[0])
    messages = [encode_ddsketch(sketches[k][f], mapping) for f in range(features) for k in range(outputs)]
    kind = payload_pb2.FeatureSketches(features=features, outputs=outputs, relative_accuracy=mapping.relative_accuracy)
    arrays: dict[str, NDArray[np.generic]] = {
        "sketches": np.frombuffer(b"".join(messages), dtype=np.uint8),
        "lengths": np.array([len(message) for message in messages], dtype=np.uint32),
    }
    return Payload.build(kind, arrays)


def read_sketches(
    payload: Payload, mapping: BucketMapping, *, features: Sequence[str], outputs: int
) -> tuple[tuple[Sketch, ...], ...]:
    """The inverse of `sketches_payload`, for the features with these names: `[outputs][features]`.

    Raises:
        InvalidPayload: another kind, other counts of features or outputs, lengths that do not add up, or a
            sketch that `decode_ddsketch` refuses.
    """
    if payload.kind != "feature_sketches":
        raise InvalidPayload(f"feature sketches were expected, not a payload of kind '{payload.kind}'.")
    kind = payload.header.feature_sketches
    if kind.features != len(features) or kind.outputs != outputs:
        raise InvalidPayload(
            f"there are sketches of {kind.features} features and {kind.outputs} outputs, "
            f"not of {len(features)} and {outputs}."
        )
    data, lengths = payload.arrays.get("sketches"), payload.arrays.get("lengths")
    if data is None or data.dtype != np.uint8 or data.ndim != 1:
        raise InvalidPayload("the array 'sketches' is missing or not one of bytes.")
    if lengths is None or lengths.dtype != np.uint32 or lengths.shape != (len(features) * outputs,):
        raise InvalidPayload("the array 'lengths' is missing or does not have one entry a sketch.")
    ends = np.cumsum(lengths.astype(np.int64))
    if int(ends[-1] if len(ends) else 0) != len(data):
        raise InvalidPayload("the lengths of the sketches do not add up to their bytes.")
    result: list[list[Sketch]] = [[] for _ in range(outputs)]
    begin = 0
    for i, end in enumerate(ends.tolist()):
        result[i % outputs].append(decode_ddsketch(data[begin:end].tobytes(), mapping, feature=features[i // outputs]))
        begin = end
    return tuple(tuple(sketches) for sketches in result)


def _store_message(store: Store) -> payload_pb2.Store:
    return payload_pb2.Store(
        contiguous_bin_counts=store.counts.astype(np.float64).tolist(),
        contiguous_bin_index_offset=store.offset,
    )


def _store(message: payload_pb2.Store, mapping: BucketMapping, feature: str) -> Store:
    """Both forms of counts in one dense store over the mapping's keys; keys outside go to the next key that
    `Sketch.from_stores` still tells apart."""
    contiguous = np.array(message.contiguous_bin_counts, dtype=np.float64)
    offset = message.contiguous_bin_index_offset
    keys = np.concatenate(
        [
            offset + np.arange(len(contiguous), dtype=np.int64),
            np.array(list(message.bin_counts.keys()), dtype=np.int64),
        ]
    )
    counts = _counts(
        np.concatenate([contiguous, np.array(list(message.bin_counts.values()), dtype=np.float64)]), feature
    )
    keys, counts = keys[counts > 0], counts[counts > 0]
    if not len(keys):
        return Store(0, np.zeros(0, dtype=np.int64))
    keys = np.clip(keys, mapping.lowest_key - 1, mapping.lowest_key + mapping.keys - 1)
    first = int(keys.min())
    dense = np.zeros(int(keys.max()) - first + 1, dtype=np.int64)
    np.add.at(dense, keys - first, counts)
    return Store(first, dense)


def _counts(counts: NDArray[np.float64], feature: str) -> NDArray[np.int64]:
    if not np.all(np.isfinite(counts)) or np.any(counts < 0) or float(counts.sum()) > MAX_TOTAL:
        raise InvalidPayload(
            f"the sketch of feature '{feature}' has a count that is negative, not finite or above {MAX_TOTAL}."
        )
    if np.any(counts != np.floor(counts)):
        raise InvalidPayload(
            f"the sketch of feature '{feature}' has a count that is not a whole number.",
            remedy="Count in the job's integer units.",
        )
    return counts.astype(np.int64)
