"""A payload: one small typed header and raw arrays, as one byte string (the *image*).

The layout is described in `protos/hanse/v1/payload.proto`. Decoding copies nothing: arrays are views into the
given buffer, usually a memory map. Every claim of a header is checked against the true size of the image
before anything is allocated, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

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
DIGEST_BYTES = 32
DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())


class Sink(Protocol):
    """Whatever takes bytes in order: a file, a hash, a socket."""

    def write(self, data: bytes | memoryview, /) -> Any:
        """Take the next bytes."""


class Payload:
    """A typed header and named arrays. Immutable by convention: arrays that come from a file are read-only."""

    def __init__(self, header: payload_pb2.PayloadHeader, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.header = header
        self.arrays = arrays
        self._known_digest: bytes | None = None
        self._image: memoryview | None = None
        self.path: Path | None = None

    @classmethod
    def build(
        cls,
        kind: Message,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        references: Sequence[bytes] = (),
    ) -> Payload:
        """Make a payload of a kind message (`payload_pb2.WeightDelta(…)`, …) and named arrays.

        Arrays are stored C-contiguous and little-endian, in the order given.

        Raises:
            InvalidPayload: a dtype that has no raw form (object, str), or a bad name or reference.
        """
        plain: dict[str, NDArray[Any]] = {}
        header = payload_pb2.PayloadHeader(references=references)
        getattr(header, _field_of(kind)).CopyFrom(kind)
        for name, array in (arrays or {}).items():
            stored = np.asarray(array, order="C")
            if stored.dtype.name not in DTYPES:
                raise InvalidPayload(f"array '{name}' has dtype {stored.dtype}, which has no raw form.")
            stored = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
            plain[name] = stored
            header.arrays.add(
                name=name,
                dtype=stored.dtype.name,
                shape=stored.shape,
                encoding=payload_pb2.ENCODING_RAW,
                nbytes=stored.nbytes,
            )
        _check_header(header)
        return cls(header, plain)

    @classmethod
    def from_image(cls, image: bytes | memoryview | mmap.mmap) -> Payload:
        """Decode an image; arrays are views of it.

        Raises:
            InvalidPayload: anything that is not exactly what its header says. The sentence names the array.
        """
        view = memoryview(image).toreadonly()
        header, body = read_header(view)
        if image_size(header, body) != len(view):
            raise InvalidPayload(
                f"the header describes {image_size(header, body)} bytes, but the payload has {len(view)}.",
                remedy="It was cut or altered on the way; send it again.",
            )
        arrays: dict[str, NDArray[Any]] = {}
        for spec, start in _placed(header, body):
            dtype = np.dtype(spec.dtype).newbyteorder("<")
            flat = np.frombuffer(view, dtype=dtype, count=spec.nbytes // dtype.itemsize, offset=start)
            arrays[spec.name] = flat.reshape(tuple(spec.shape))
        payload = cls(header, arrays)
        payload._image = view
        return payload

    @classmethod
    def open(cls, path: Path, *, digest: bytes | None = None) -> Payload:
        """Map a file. With `digest`, it is taken as known (the file was verified when it was stored)."""
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < PREFIX.size:
                raise InvalidPayload(f"'{path.name}' has {size} bytes: too short for a payload.")
            payload = cls.from_image(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        payload.path = path
        payload._known_digest = digest
        return payload

    @property
    def kind(self) -> str:
        """The name of the header's kind: `atom_statistics`, `metrics`, …"""
        return self.header.WhichOneof("kind") or ""

    @property
    def references(self) -> tuple[bytes, ...]:
        """Digests of further artifacts that a reader may fetch."""
        return tuple(self.header.references)

    @cached_property
    def size(self) -> int:
        """Bytes of the image."""
        return len(self._image) if self._image is not None else image_size(self.header, _body(self.header))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the image."""
        if self._known_digest is not None:
            return self._known_digest
        hasher = hashlib.sha256()
        for part in self.parts():
            hasher.update(part)
        return hasher.digest()

    def parts(self) -> Iterator[bytes | memoryview]:
        """The image, piece by piece, without building it in memory."""
        if self._image is not None:
            yield self._image
            return
        header = self.header.SerializeToString(deterministic=True)
        position = PREFIX.size + len(header)
        yield PREFIX.pack(MAGIC, IMAGE_VERSION, len(header), 0) + header
        for spec in self.header.arrays:
            gap = -position % ALIGNMENT
            if gap:
                yield bytes(gap)
            array = self.arrays[spec.name]
            if array.nbytes:
                yield array.reshape(-1).view(np.uint8).data
            position += gap + array.nbytes

    def image(self) -> bytes:
        """The whole image in memory: for small payloads."""
        return b"".join(self.parts())

    def write(self, path: Path) -> bytes:
        """Write the image to a file and return its digest."""
        hasher = hashlib.sha256()
        with path.open("wb") as file:
            for part in self.parts():
                file.write(part)
                hasher.update(part)
        self.__dict__["digest"] = hasher.digest()
        return hasher.digest()

    def __repr__(self) -> str:
        return f"Payload({self.kind}, {len(self.arrays)} arrays, {self.size} bytes)"


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
    _check_header(header)
    return header, PREFIX.size + length


def image_size(header: payload_pb2.PayloadHeader, body: int) -> int:
    """Bytes of the image that this (checked) header describes; `body` is where the header ends."""
    end = body
    for spec, start in _placed(header, body):
        end = start + spec.nbytes
    return end


def _placed(header: payload_pb2.PayloadHeader, body: int) -> Iterator[tuple[payload_pb2.ArraySpec, int]]:
    position = body
    for spec in header.arrays:
        position += -position % ALIGNMENT
        yield spec, position
        position += spec.nbytes


def _body(header: payload_pb2.PayloadHeader) -> int:
    return PREFIX.size + header.ByteSize()


def _check_header(header: payload_pb2.PayloadHeader) -> None:
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
    if spec.dtype not in DTYPES:
        raise InvalidPayload(f"array '{spec.name}' has the unknown dtype '{spec.dtype[:40]}'.")
    if spec.encoding != payload_pb2.ENCODING_RAW:
        raise InvalidPayload(f"array '{spec.name}' has encoding {spec.encoding}, which is not known here.")
    if len(spec.shape) > MAX_DIMENSIONS:
        raise InvalidPayload(f"array '{spec.name}' has {len(spec.shape)} dimensions; at most {MAX_DIMENSIONS}.")
    expected = np.dtype(spec.dtype).itemsize
    for length in spec.shape:
        expected *= length
    if expected != spec.nbytes:
        raise InvalidPayload(
            f"array '{spec.name}' of shape {tuple(spec.shape)} and dtype {spec.dtype} needs {expected} bytes, "
            f"but its header says {spec.nbytes}."
        )


_KIND_FIELDS = {
    field.message_type.full_name: field.name
    for field in payload_pb2.PayloadHeader.DESCRIPTOR.oneofs_by_name["kind"].fields
    if field.message_type is not None
}


def _field_of(kind: Message) -> str:
    try:
        return _KIND_FIELDS[kind.DESCRIPTOR.full_name]
    except KeyError:
        raise InvalidPayload(f"{kind.DESCRIPTOR.full_name} is not a payload kind.") from None
