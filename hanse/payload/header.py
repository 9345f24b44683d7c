"""The header of a payload image: parsed and checked without numpy, for programs that only pass payloads on.

The layout is described in `protos/hanse/v1/payload.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from google.protobuf.message import DecodeError, Message

from hanse.errors import InvalidPayload
from hanse.v1 import payload_pb2

MAGIC = b"HNSP"
IMAGE_VERSION = 1
PREFIX = struct.Struct("<4sB3xII")
ALIGNMENT = 64
MAX_HEADER_BYTES = 1_000_000
MAX_ARRAYS = 65_536
MAX_DIMENSIONS = 8
MAX_NAME = 255
MAX_EXTENT = 2**62
DIGEST_BYTES = 32
ITEM_BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
INT8_BLOCK = 256
"""Numbers that share a scale in the encoding INT8_BLOCKS."""
_LOSSY = {payload_pb2.ENCODING_BFLOAT16, payload_pb2.ENCODING_INT8_BLOCKS, payload_pb2.ENCODING_TOP_K}
_KNOWN = _LOSSY | {payload_pb2.ENCODING_RAW, payload_pb2.ENCODING_ZSTD}


def read_header(view: memoryview | bytes) -> tuple[payload_pb2.PayloadHeader, int]:
    """Parse and check the header at the start of an image; return it and where the arrays begin.

    Needs only the first `MAX_HEADER_BYTES + PREFIX.size` bytes, so a receiver can judge a payload by its
    first chunk.

    Raises:
        InvalidPayload: not an image, an unknown version, or a header that contradicts itself.
    """
    if len(view) < PREFIX.size:
        raise InvalidPayload(f"{len(view)} bytes are too short for a payload.")
    magic, version, length, zero = PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise InvalidPayload(f"these bytes are not a Hanse payload (they begin with {bytes(magic)!r}).")
    if version != IMAGE_VERSION or zero != 0:
        raise InvalidPayload(
            f"payload image version {version} is not known here (this program knows {IMAGE_VERSION}).",
            remedy="Update the older of the two programs.",
        )
    if length > MAX_HEADER_BYTES:
        raise InvalidPayload(f"the header claims {length} bytes; at most {MAX_HEADER_BYTES} are allowed.")
    if len(view) < PREFIX.size + length:
        raise InvalidPayload(f"the header claims {length} bytes, but only {len(view) - PREFIX.size} are there.")
    header = payload_pb2.PayloadHeader()
    try:
        header.ParseFromString(bytes(view[PREFIX.size : PREFIX.size + length]))
    except DecodeError as error:
        raise InvalidPayload("the payload's header cannot be parsed.") from error
    check_header(header)
    return header, PREFIX.size + length


def image_size(header: payload_pb2.PayloadHeader, body: int) -> int:
    """Bytes of the image that this (checked) header describes; `body` is where the header ends."""
    end = body
    for spec, start in placed(header, body):
        end = start + spec.nbytes
    return end


def placed(header: payload_pb2.PayloadHeader, body: int) -> Iterator[tuple[payload_pb2.ArraySpec, int]]:
    """The arrays with the offset at which each begins."""
    position = body
    for spec in header.arrays:
        position += -position % ALIGNMENT
        yield spec, position
        position += spec.nbytes


def check_header(header: payload_pb2.PayloadHeader) -> None:
    """Check a header against itself.

    Raises:
        InvalidPayload: an unknown kind, dtype or encoding, a bad name, shape or reference, too many arrays.
    """
    if header.WhichOneof("kind") is None:
        raise InvalidPayload("the payload's header names no kind that this program knows.")
    if len(header.arrays) > MAX_ARRAYS:
        raise InvalidPayload(f"the header lists {len(header.arrays)} arrays; at most {MAX_ARRAYS} are allowed.")
    if any(len(reference) != DIGEST_BYTES for reference in header.references):
        raise InvalidPayload("a reference of the header is not a SHA-256.")
    names: set[str] = set()
    for spec in header.arrays:
        _check_spec(spec)
        if spec.name in names:
            raise InvalidPayload(f"array '{spec.name}' is listed twice.")
        names.add(spec.name)


def _check_spec(spec: payload_pb2.ArraySpec) -> None:
    if not spec.name or len(spec.name) > MAX_NAME:
        raise InvalidPayload(f"an array's name must have 1 to {MAX_NAME} characters, not {len(spec.name)}.")
    if spec.dtype not in ITEM_BYTES:
        raise InvalidPayload(f"array '{spec.name}' has the unknown dtype '{spec.dtype[:40]}'.")
    if spec.encoding not in _KNOWN:
        raise InvalidPayload(f"array '{spec.name}' has encoding {spec.encoding}, which is not known here.")
    if len(spec.shape) > MAX_DIMENSIONS:
        raise InvalidPayload(f"array '{spec.name}' has {len(spec.shape)} dimensions; at most {MAX_DIMENSIONS}.")
    expected = extent = ITEM_BYTES[spec.dtype]
    for length in spec.shape:
        expected *= length
        extent *= max(length, 1)  # NumPy bounds the product of an empty array's other lengths too
    if extent > MAX_EXTENT:
        raise InvalidPayload(f"array '{spec.name}' of shape {tuple(spec.shape)} is larger than any machine.")
    if spec.encoding in _LOSSY and spec.dtype != "float32":
        raise InvalidPayload(
            f"array '{spec.name}' of dtype {spec.dtype} is encoded in a way that is for float32 alone."
        )
    if not _possible(spec, expected):
        raise InvalidPayload(
            f"array '{spec.name}' of shape {tuple(spec.shape)} and dtype {spec.dtype} needs {expected} bytes raw, "
            f"but its header says {spec.nbytes} in encoding {spec.encoding}."
        )


def _possible(spec: payload_pb2.ArraySpec, raw: int) -> bool:
    """Whether an array whose raw form has `raw` bytes can have `spec.nbytes` in its encoding."""
    numbers = raw // ITEM_BYTES[spec.dtype]
    if spec.encoding == payload_pb2.ENCODING_BFLOAT16:
        return spec.nbytes == 2 * numbers
    if spec.encoding == payload_pb2.ENCODING_INT8_BLOCKS:
        return spec.nbytes == numbers + 4 * -(-numbers // INT8_BLOCK)
    if spec.encoding == payload_pb2.ENCODING_TOP_K:
        return spec.nbytes % 8 == 0 and spec.nbytes <= 8 * numbers and numbers < 2**32
    if spec.encoding == payload_pb2.ENCODING_ZSTD:
        return 0 < spec.nbytes < raw  # what does not get smaller is sent raw
    return spec.nbytes == raw


_KIND_FIELDS = {
    field.message_type.full_name: field.name
    for field in payload_pb2.PayloadHeader.DESCRIPTOR.oneofs_by_name["kind"].fields
    if field.message_type is not None
}


def field_of(kind: Message) -> str:
    """The name of a kind message's field in the header.

    Raises:
        InvalidPayload: the message is not a payload kind.
    """
    try:
        return _KIND_FIELDS[kind.DESCRIPTOR.full_name]
    except KeyError:
        raise InvalidPayload(f"{kind.DESCRIPTOR.full_name} is not a payload kind.") from None
