"""A payload: one small typed header and raw arrays, as one byte string (the *image*).

The layout is described in `protos/hanse/v1/payload.proto`. Decoding copies nothing: arrays are views into the
given buffer, usually a memory map. Every claim of a header is checked against the true size of the image
before anything is allocated, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.payload.encodings import Encoded
from hanse.payload.header import (
    ALIGNMENT,
    IMAGE_VERSION,
    ITEM_BYTES,
    MAGIC,
    PREFIX,
    check_header,
    field_of,
    image_size,
    placed,
    read_header,
)
from hanse.v1 import payload_pb2


class Sink(Protocol):
    """Whatever takes bytes in order: a file, a hash, a socket."""

    def write(self, data: bytes | memoryview, /) -> Any:
        """Take the next bytes."""


class Payload:
    """A typed header and named arrays. Immutable by convention: arrays that come from a file are read-only.

    `arrays` holds what is stored raw; `encoded` what is compressed, which is decoded only by a reader that knows the
    shape to expect, so that a small image cannot claim a large memory.
    """

    def __init__(
        self,
        header: payload_pb2.PayloadHeader,
        arrays: Mapping[str, NDArray[Any]],
        encoded: Mapping[str, Encoded] | None = None,
    ) -> None:
        self.header = header
        self.arrays = arrays
        self.encoded: Mapping[str, Encoded] = encoded or {}
        self._known_digest: bytes | None = None
        self._image: memoryview | None = None
        self.path: Path | None = None

    @classmethod
    def build(
        cls,
        kind: Message,
        arrays: Mapping[str, NDArray[Any] | Encoded] | None = None,
        *,
        references: Sequence[bytes] = (),
    ) -> Payload:
        """Make a payload of a kind message (`payload_pb2.WeightDelta(…)`, …) and named arrays.

        Arrays are stored C-contiguous and little-endian, in the order given; encoded ones as they are.

        Raises:
            InvalidPayload: a dtype that has no raw form (object, str), or a bad name or reference.
        """
        plain: dict[str, NDArray[Any]] = {}
        encoded: dict[str, Encoded] = {}
        header = payload_pb2.PayloadHeader(references=references)
        getattr(header, field_of(kind)).CopyFrom(kind)
        for name, array in (arrays or {}).items():
            if isinstance(array, Encoded):
                encoded[name] = array
                header.arrays.append(array.spec(name))
                continue
            stored = np.asarray(array, order="C")
            dtype = _dtype_name(stored.dtype)
            if dtype not in ITEM_BYTES:
                raise InvalidPayload(f"array '{name}' has dtype {stored.dtype}, which has no raw form.")
            stored = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
            plain[name] = stored
            header.arrays.add(
                name=name,
                dtype=dtype,
                shape=stored.shape,
                encoding=payload_pb2.ENCODING_RAW,
                nbytes=stored.nbytes,
            )
        check_header(header)
        return cls(header, plain, encoded)

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
        encoded: dict[str, Encoded] = {}
        for spec, start in placed(header, body):
            if spec.encoding != payload_pb2.ENCODING_RAW:
                data = np.frombuffer(view, dtype=np.uint8, count=spec.nbytes, offset=start)
                encoded[spec.name] = Encoded(spec.encoding, spec.dtype, tuple(spec.shape), data)
                continue
            dtype = np.dtype(spec.dtype).newbyteorder("<")
            flat = np.frombuffer(view, dtype=dtype, count=spec.nbytes // dtype.itemsize, offset=start)
            arrays[spec.name] = flat.reshape(tuple(spec.shape))
        payload = cls(header, arrays, encoded)
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

    @property
    def digest_known(self) -> bool:
        """Whether `digest` is at hand without reading the image."""
        return self._known_digest is not None or "digest" in self.__dict__

    @property
    def mapped(self) -> memoryview | None:
        """The whole image where it lies in one piece (a decoded or mapped payload); None for one built of arrays."""
        return self._image

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
            array = self.encoded[spec.name].data if spec.name in self.encoded else self.arrays[spec.name]
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


@cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """The name, which NumPy works out anew each time."""
    return dtype.name


def _body(header: payload_pb2.PayloadHeader) -> int:
    return PREFIX.size + header.ByteSize()
