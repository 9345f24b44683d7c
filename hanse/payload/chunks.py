"""Payload images cut into chunks of 1 MiB, from any byte on.

The first chunk holds the whole header, so that a receiver can judge a payload before it gives it room; the last
one alone carries the SHA-256 of the image. Nothing here holds more than one chunk in memory, and nothing needs numpy
to pass a file on.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hanse.errors import InvalidPayload
from hanse.payload.header import MAX_HEADER_BYTES, PREFIX
from hanse.v1 import payload_pb2

if TYPE_CHECKING:
    from hanse.payload.payload import Payload

CHUNK = 1024 * 1024
"""Bytes of an image in one chunk: the header and its prefix always fit into the first."""

assert MAX_HEADER_BYTES + PREFIX.size <= CHUNK


def chunks(
    source: Payload | Path | bytes | memoryview, *, offset: int = 0, digest: bytes | None = None, size: int = CHUNK
) -> Iterator[payload_pb2.PayloadChunk]:
    """Cut an image into chunks, beginning at byte `offset`.

    `source` is a payload, the path of a file that holds an image, or the image. `digest` is the image's SHA-256
    where it is known; a payload knows or finds its own, and for the rest it is computed once, before the first chunk.
    An offset at the very end gives one empty chunk with the digest, so that every transfer ends with a digest.
    `size` is the largest chunk; receivers expect the header in the first, so it must have room for it.

    Raises:
        InvalidPayload: the offset lies beyond the end, or the file is empty.
    """
    if isinstance(source, Path):
        image: memoryview | None = map_file(source)
    elif isinstance(source, bytes | memoryview):
        image = memoryview(source)
    else:
        image, digest = source.mapped, digest or source.digest
    if image is not None:
        total, pieces = len(image), _slices(image, offset, size)
        known = digest or hashlib.sha256(image).digest()
    else:
        assert not isinstance(source, Path | bytes | memoryview)
        total, pieces = source.size, _gathered(source.parts(), offset, size)
        known = source.digest
    if not 0 <= offset <= total:
        raise InvalidPayload(f"byte {offset} was asked for, but the payload ends at {total}.", code="OFFSET")
    for position, data in pieces:
        last = position + len(data) == total
        yield payload_pb2.PayloadChunk(offset=position, data=data, digest=known if last else b"")


def map_file(path: Path) -> memoryview:
    """A file's bytes, mapped.

    Raises:
        InvalidPayload: the file is empty.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise InvalidPayload(f"'{path.name}' is empty: no payload.")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _slices(image: memoryview, offset: int, size: int) -> Iterator[tuple[int, bytes]]:
    for start in range(offset, len(image), size):
        yield start, bytes(image[start : start + size])
    if offset == len(image):
        yield offset, b""


def _gathered(parts: Iterator[bytes | memoryview], offset: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Chunks of a payload whose arrays lie scattered in memory: parts are skipped, cut and joined as they come."""
    position = skip = offset
    held = bytearray()
    sent = False
    for part in parts:
        view = memoryview(part)[skip:]
        skip = max(0, skip - len(part))
        while len(view):
            taken = view[: size - len(held)]
            held += taken
            view = view[len(taken) :]
            if len(held) == size:
                yield position, bytes(held)
                position, sent = position + size, True
                held.clear()
    if held or not sent:
        yield position, bytes(held)
