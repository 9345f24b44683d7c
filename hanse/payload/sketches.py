"""Feature sketches as payloads, in the published DDSketch format (Masson, Rim & Lee, VLDB 2019).

What is written here decodes with any DDSketch library, and sketches that a site made with such a library are
read: contiguous counts, sparse counts, or both. Counts are whole numbers of the job's units, which float64 holds
exactly up to 2^53; values are measured from the feature's agreed centre.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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
    head = payload_pb2.DDSketch(
        mapping=payload_pb2.IndexMapping(gamma=mapping.gamma, interpolation=payload_pb2.IndexMapping.NONE)
    )
    tail = payload_pb2.DDSketch(zero_count=float(zero))
    # In the order of the fields' numbers, as protobuf writes them.
    stores = [
        tag + _varint(len(data)) + data for tag, data in ((b"\x12", _store(positive)), (b"\x1a", _store(negative)))
    ]
    return b"".join([head.SerializeToString(), *stores, tail.SerializeToString()])


def decode_ddsketch(data: bytes, mapping: BucketMapping, *, feature: str) -> Sketch:
    """A sketch from a serialised DDSketch message of any library.

    Raises:
        InvalidPayload: not a DDSketch, another mapping than the agreed one, or counts that are negative, not
            whole, not finite or too large. The sentence names `feature`.
    """
    return _decode([data], mapping, (feature,), 1).sketches()[0][0]


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


@dataclass(frozen=True, eq=False)
class SketchBlock:
    """The sketches of all features and outputs as one sorted list, which merges in one step.

    `cells` int64 [m] ascending: the number of the message (feature by feature, output by output) times `span`, plus
    the bucket's ordinal; `counts` int64 [m], all positive.
    """

    cells: NDArray[np.int64]
    counts: NDArray[np.int64]
    features: int
    outputs: int
    span: int

    def __len__(self) -> int:
        return len(self.cells)

    def merge(self, other: SketchBlock) -> SketchBlock:
        """The sketches of both sets of rows."""
        cells, counts = _added(np.concatenate([self.cells, other.cells]), np.concatenate([self.counts, other.counts]))
        return replace(self, cells=cells, counts=counts)

    def sketches(self) -> tuple[tuple[Sketch, ...], ...]:
        """The sketches `[outputs][features]`."""
        messages = self.features * self.outputs
        ends = np.searchsorted(self.cells, np.arange(messages + 1, dtype=np.int64) * self.span).tolist()
        ordinals = (self.cells % self.span).astype(np.int32)
        made = [Sketch(ordinals[a:b], self.counts[a:b]) for a, b in pairwise(ends)]
        return tuple(tuple(made[k :: self.outputs]) for k in range(self.outputs))


def read_sketches(payload: Payload, mapping: BucketMapping, *, features: Sequence[str], outputs: int) -> SketchBlock:
    """The inverse of `sketches_payload`, for the features with these names.

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
    ends = np.cumsum(lengths.astype(np.int64)).tolist()
    if (ends[-1] if ends else 0) != len(data):
        raise InvalidPayload("the lengths of the sketches do not add up to their bytes.")
    messages = [data[begin:end].tobytes() for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    return _decode(messages, mapping, features, outputs)


def _store(store: Store) -> bytes:
    """A serialised Store: what protobuf writes for contiguous counts and their offset, without a loop over them."""
    counts = store.counts.astype("<f8").tobytes()
    offset = payload_pb2.Store(contiguous_bin_index_offset=store.offset).SerializeToString()
    return (b"\x12" + _varint(len(counts)) + counts if counts else b"") + offset


def _decode(messages: Sequence[bytes], mapping: BucketMapping, features: Sequence[str], outputs: int) -> SketchBlock:
    """Parse the messages one by one, and check and sort all their counts at once."""
    stores = _Stores(len(messages))
    for number, data in enumerate(messages):
        message = payload_pb2.DDSketch()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            feature = features[number // outputs]
            raise InvalidPayload(f"the sketch of feature '{feature}' is not a DDSketch message.") from error
        _check_mapping(message.mapping, mapping, features[number // outputs])
        stores.take(number, message)
    numbers, signs, keys, counts = stores.joined()

    bad = ~(np.isfinite(counts) & (counts >= 0) & (counts <= MAX_TOTAL) & (counts == np.floor(counts)))
    if bad.any():
        first = int(np.argmax(bad))
        raise InvalidPayload(
            f"the sketch of feature '{features[numbers[first] // outputs]}' has the count {counts[first]}, which is "
            f"not a whole number from 0 to {MAX_TOTAL}.",
            remedy="Count in the job's integer units.",
        )
    heavy = np.bincount(numbers, counts, len(messages)) > MAX_TOTAL
    if heavy.any():
        feature = features[int(np.argmax(heavy)) // outputs]
        raise InvalidPayload(f"the sketch of feature '{feature}' weighs more than {MAX_TOTAL} units.")

    # Keys below the mapping's range count as zero, keys above it as the outermost bucket.
    ordinals = mapping.zero + signs * np.clip(keys - mapping.lowest_key + 1, 0, mapping.keys)
    span = 2 * mapping.keys + 1
    kept = counts > 0
    cells, sums = _added((numbers * span + ordinals)[kept], counts[kept].astype(np.int64))
    return SketchBlock(cells=cells, counts=sums, features=len(features), outputs=outputs, span=span)


class _Stores:
    """Collects the counts of many messages: contiguous ones as they lie, sparse ones and zeros one by one."""

    def __init__(self, messages: int) -> None:
        self._zeros = np.zeros(messages)
        self._runs: list[tuple[int, int, int]] = []  # message, sign, first key
        self._counts: list[NDArray[np.float64]] = []
        self._sparse: list[tuple[int, int, int, float]] = []  # message, sign, key, count

    def take(self, number: int, message: payload_pb2.DDSketch) -> None:
        self._zeros[number] = message.zero_count
        for sign, store in ((1, message.positive_values), (-1, message.negative_values)):
            if store.contiguous_bin_counts:
                self._runs.append((number, sign, store.contiguous_bin_index_offset))
                self._counts.append(_contiguous(store))
            if store.bin_counts:
                self._sparse += [(number, sign, key, count) for key, count in store.bin_counts.items()]

    def joined(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Message number, sign (0 for the zero bucket), key and count of each entry."""
        lengths = np.array([len(each) for each in self._counts], dtype=np.int64)
        runs = np.array(self._runs, dtype=np.int64).reshape(-1, 3)
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        sparse = np.array([each[:3] for each in self._sparse], dtype=np.int64).reshape(-1, 3)
        zeros = np.zeros(len(self._zeros), dtype=np.int64)
        return (
            np.concatenate([np.repeat(runs[:, 0], lengths), sparse[:, 0], np.arange(len(zeros))]),
            np.concatenate([np.repeat(runs[:, 1], lengths), sparse[:, 1], zeros]),
            np.concatenate([np.repeat(runs[:, 2], lengths) + within, sparse[:, 2], zeros]),
            np.concatenate([*self._counts, np.array([each[3] for each in self._sparse]), self._zeros]),
        )


def _contiguous(store: payload_pb2.Store) -> NDArray[np.float64]:
    """The contiguous counts of a store.

    Serialised anew, a store without sparse counts begins with their tag, their length and their bytes: a view of these
    takes a fraction of the time of converting number by number.
    """
    count = len(store.contiguous_bin_counts)
    if store.bin_counts:
        return np.array(store.contiguous_bin_counts, dtype=np.float64)
    head = 1 + len(_varint(8 * count))
    return np.frombuffer(store.SerializeToString(), dtype="<f8", count=count, offset=head)


def _varint(value: int) -> bytes:
    """A protobuf varint."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _check_mapping(found: payload_pb2.IndexMapping, mapping: BucketMapping, feature: str) -> None:
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


def _added(cells: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cells in ascending order, each once, with their counts added up."""
    if not len(cells):
        return cells, counts
    order = np.argsort(cells, kind="stable")
    cells, counts = cells[order], counts[order]
    starts = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
    return cells[starts], np.add.reduceat(counts, starts)
