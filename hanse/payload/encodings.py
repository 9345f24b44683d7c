"""Arrays in smaller forms: how the bytes of each encoding lie, and how they are read from a stranger.

The encodings are described in `protos/hanse/v1/payload.proto`; `hanse.payload.header` has checked that the length
fits encoding and shape. Decoding allocates what the shape says, so that a reader compares the shape with the one that
it expects before it calls `decode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.arrays import Float32
from hanse.learning.compression import from_bfloat16, from_int8, largest, to_bfloat16, to_int8
from hanse.payload.header import INT8_BLOCK, ITEM_BYTES
from hanse.v1 import payload_pb2

NAMES = {
    payload_pb2.ENCODING_RAW: "raw",
    payload_pb2.ENCODING_BFLOAT16: "bf16",
    payload_pb2.ENCODING_INT8_BLOCKS: "int8",
    payload_pb2.ENCODING_TOP_K: "top_k",
    payload_pb2.ENCODING_ZSTD: "zstd",
}
_LEVEL = 1
_WORTH = 0.95


@dataclass(frozen=True, eq=False)
class Encoded:
    """An array in another form than raw. `data` uint8 [bytes]."""

    encoding: payload_pb2.Encoding.ValueType
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def name(self) -> str:
        """What people call the encoding."""
        return NAMES[self.encoding]

    @property
    def count(self) -> int:
        """Numbers in the array."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    def spec(self, name: str) -> payload_pb2.ArraySpec:
        """The array's line in a header."""
        return payload_pb2.ArraySpec(
            name=name, dtype=self.dtype, shape=self.shape, encoding=self.encoding, nbytes=self.data.nbytes
        )

    def decode(self) -> NDArray[Any]:
        """The array, of its shape and dtype. Allocates what the shape says: compare it with the expected one first.

        Raises:
            InvalidPayload: places that do not ascend or lie beyond the end, scales that are no scales, or a
                compressed form of something else.
        """
        decoded = _DECODERS[self.encoding](self)
        return decoded.reshape(self.shape)


def encode_bf16(array: Float32) -> Encoded:
    """Upper halves."""
    return _encoded(payload_pb2.ENCODING_BFLOAT16, array, to_bfloat16(_flat(array)).astype("<u2", copy=False))


def encode_int8(array: Float32) -> Encoded:
    """One byte a number, and a scale for every 256 of them."""
    scales, units = to_int8(_flat(array), INT8_BLOCK)
    return _encoded(payload_pb2.ENCODING_INT8_BLOCKS, array, scales.astype("<f4", copy=False), units)


def encode_top_k(array: Float32, keep: float) -> Encoded:
    """The share `keep` of the numbers, at least one, that are largest in magnitude."""
    values = _flat(array)
    places = largest(values, max(1, round(keep * len(values)))) if len(values) else np.zeros(0, np.uint32)
    chosen = values[places]
    return _encoded(
        payload_pb2.ENCODING_TOP_K, array, places.astype("<u4", copy=False), chosen.astype("<f4", copy=False)
    )


def encode_zstd(array: NDArray[Any]) -> Encoded | None:
    """Without loss, by zstd; None where that does not make the array at least a twentieth smaller, or is not here."""
    try:
        import zstandard
    except ImportError:
        return None
    raw = np.ascontiguousarray(array)
    raw = raw.astype(raw.dtype.newbyteorder("<"), copy=False)
    planes = np.ascontiguousarray(raw.reshape(-1).view(np.uint8).reshape(-1, raw.itemsize).T)
    packed = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(planes.data)
    if len(packed) > _WORTH * raw.nbytes:
        return None
    data = np.frombuffer(packed, dtype=np.uint8)
    return Encoded(payload_pb2.ENCODING_ZSTD, raw.dtype.name, array.shape, data)


def _flat(array: Float32) -> Float32:
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1)


def _encoded(encoding: payload_pb2.Encoding.ValueType, array: Float32, *parts: NDArray[Any]) -> Encoded:
    data = np.concatenate([part.view(np.uint8) for part in parts])
    return Encoded(encoding, "float32", array.shape, data)


def _decode_bf16(given: Encoded) -> NDArray[Any]:
    return from_bfloat16(np.frombuffer(given.data, dtype="<u2"))


def _decode_int8(given: Encoded) -> NDArray[Any]:
    blocks = -(-given.count // INT8_BLOCK)
    scales = np.frombuffer(given.data, dtype="<f4", count=blocks)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise InvalidPayload("an array in int8 has a scale that is negative or not finite.")
    return from_int8(scales, np.frombuffer(given.data, dtype=np.int8, offset=4 * blocks), INT8_BLOCK)


def _decode_top_k(given: Encoded) -> NDArray[Any]:
    kept = len(given.data) // 8
    places = np.frombuffer(given.data, dtype="<u4", count=kept)
    if kept and (int(places[-1]) >= given.count or not (places[1:] > places[:-1]).all()):
        raise InvalidPayload("an array in top_k has places that do not ascend, or that lie beyond its end.")
    values = np.zeros(given.count, dtype=np.float32)
    values[places] = np.frombuffer(given.data, dtype="<f4", offset=4 * kept)
    return values


def _decode_zstd(given: Encoded) -> NDArray[Any]:
    try:
        import zstandard
    except ImportError:
        raise InvalidPayload("an array is compressed by zstd, which is not installed here.") from None
    size, expected = ITEM_BYTES[given.dtype], given.count * ITEM_BYTES[given.dtype]
    try:
        parameters = zstandard.get_frame_parameters(given.data.data)
        if parameters.content_size != expected:
            raise InvalidPayload(
                f"an array of {expected} bytes is compressed, but the frame holds {parameters.content_size}."
            )
        raw = zstandard.ZstdDecompressor(max_window_size=2**27).decompress(
            given.data.data, max_output_size=expected, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise InvalidPayload(f"a compressed array cannot be read: {error}") from None
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(size, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(np.dtype(given.dtype).newbyteorder("<"))


_DECODERS = {
    payload_pb2.ENCODING_BFLOAT16: _decode_bf16,
    payload_pb2.ENCODING_INT8_BLOCKS: _decode_int8,
    payload_pb2.ENCODING_TOP_K: _decode_top_k,
    payload_pb2.ENCODING_ZSTD: _decode_zstd,
}
