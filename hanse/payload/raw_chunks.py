"""Chunks on the wire without copies: what protobuf makes of `PayloadChunk` and `UploadRequest`, byte for byte.

A payload of 100 MB passes through a program as a hundred messages of 1 MiB. Protobuf copies each of them twice on
either side; here a message is put together once, in the thread that reads the file, and the data of one that is
received is a view of it. Anything that is not written as protobuf writes a chunk is left to protobuf, so that whoever
speaks the contract is understood.
"""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from hanse.errors import InvalidPayload
from hanse.payload.chunks import CHUNK
from hanse.v1 import node_pb2, node_pb2_grpc, payload_pb2

__all__ = ["Packed", "RawChunk", "RawChunkHandlers", "RawUpload", "TransferStub", "packed_chunks", "packed_uploads"]

_OFFSET, _DATA, _DIGEST = 0x08, 0x12, 0x1A  # tags of PayloadChunk
_CHUNK = 0x12  # tag of UploadRequest.chunk
_UPLOAD, _DOWNLOAD = "/hanse.v1.NodeService/Upload", "/hanse.v1.NodeService/Download"


class RawChunk:
    """What a `PayloadChunk` says."""

    __slots__ = ("data", "digest", "offset")

    def __init__(self, *, offset: int = 0, data: bytes | memoryview = b"", digest: bytes = b"") -> None:
        self.offset = offset
        self.data = data
        self.digest = digest


class RawUpload:
    """An `UploadRequest` that holds a chunk."""

    __slots__ = ("chunk",)

    def __init__(self, chunk: RawChunk) -> None:
        self.chunk = chunk

    def WhichOneof(self, _group: str) -> str:  # noqa: N802 - as of a protobuf message
        """The part that is set."""
        return "chunk"


class Packed:
    """A message that is ready to be sent. `end`: where its chunk ends in the image."""

    __slots__ = ("end", "message")

    def __init__(self, message: bytes, end: int) -> None:
        self.message = message
        self.end = end


Chunk = RawChunk | payload_pb2.PayloadChunk
Upload = RawUpload | node_pb2.UploadRequest


def packed_chunks(image: memoryview | mmap.mmap, *, digest: bytes, offset: int = 0) -> Iterator[Packed]:
    """The messages of a download, from byte `offset` of an image on; they end with one that carries the digest.

    Raises:
        InvalidPayload: the offset lies beyond the end.
    """
    return _packed(memoryview(image), digest, offset, b"".join)


def packed_uploads(image: memoryview | mmap.mmap, *, digest: bytes, offset: int = 0) -> Iterator[Packed]:
    """The messages of an upload after the one that says what it is. Raises as `packed_chunks`."""
    return _packed(memoryview(image), digest, offset, _join_upload)


def encode(message: Any) -> bytes:
    """The bytes of a message: of one that is ready, of a chunk or request of ours, or of a protobuf message."""
    if isinstance(message, Packed):
        return message.message
    if isinstance(message, RawChunk):
        return b"".join(_parts(message))
    if isinstance(message, RawUpload):
        return _join_upload(_parts(message.chunk))
    encoded: bytes = message.SerializeToString()
    return encoded


def _packed(
    image: memoryview, digest: bytes, offset: int, join: Callable[[list[bytes | memoryview]], bytes]
) -> Iterator[Packed]:
    if not 0 <= offset <= len(image):
        raise InvalidPayload(f"byte {offset} was asked for, but the payload ends at {len(image)}.", code="OFFSET")
    while True:
        end = min(offset + CHUNK, len(image))
        last = end == len(image)
        chunk = RawChunk(offset=offset, data=image[offset:end], digest=digest if last else b"")
        yield Packed(join(_parts(chunk)), end)
        if last:
            return
        offset = end


def decode_chunk(message: bytes) -> Chunk:
    """A `PayloadChunk` from its bytes; raises what protobuf raises."""
    return _chunk(message, 0) or payload_pb2.PayloadChunk.FromString(message)


def decode_upload(message: bytes) -> Upload:
    """An `UploadRequest` from its bytes; raises what protobuf raises."""
    if message[:1] == bytes((_CHUNK,)):
        length, start = _read_varint(message, 1)
        if length is not None and start + length == len(message) and (chunk := _chunk(message, start)) is not None:
            return RawUpload(chunk)
    return node_pb2.UploadRequest.FromString(message)


class TransferStub(node_pb2_grpc.NodeServiceStub):
    """The node service's stub, with payloads that pass uncopied."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        self.Upload = channel.stream_unary(
            _UPLOAD, request_serializer=encode, response_deserializer=node_pb2.Receipt.FromString
        )
        self.Download = channel.unary_stream(
            _DOWNLOAD,
            request_serializer=node_pb2.DownloadRequest.SerializeToString,
            response_deserializer=decode_chunk,
        )


class RawChunkHandlers(grpc.aio.ServerInterceptor):
    """The same for a server: give it as its first interceptor."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Exchange the serialisers of the transfer's two calls."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler_call_details.method == _UPLOAD:
            return grpc.stream_unary_rpc_method_handler(
                handler.stream_unary, decode_upload, handler.response_serializer
            )
        if handler_call_details.method == _DOWNLOAD:
            return grpc.unary_stream_rpc_method_handler(handler.unary_stream, handler.request_deserializer, encode)
        return handler


def _join_upload(parts: list[bytes | memoryview]) -> bytes:
    return b"".join((bytes((_CHUNK,)), _varint(sum(map(len, parts))), *parts))


def _parts(chunk: RawChunk) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = []
    if chunk.offset:
        parts.append(bytes((_OFFSET,)) + _varint(chunk.offset))
    if len(chunk.data):
        parts += [bytes((_DATA,)) + _varint(len(chunk.data)), chunk.data]
    if chunk.digest:
        parts += [bytes((_DIGEST,)) + _varint(len(chunk.digest)), chunk.digest]
    return parts


def _chunk(message: bytes, start: int) -> RawChunk | None:
    """The chunk that fills the message from `start` on; None unless it is written field after field, each once."""
    chunk, end, last = RawChunk(), len(message), 0
    while start < end:
        tag = message[start]
        value, start = _read_varint(message, start + 1)
        if value is None or tag <= last:
            return None
        last = tag
        if tag == _OFFSET:
            chunk.offset = value
            continue
        if start + value > end:
            return None
        if tag == _DATA:
            chunk.data = memoryview(message)[start : start + value]
        elif tag == _DIGEST:
            chunk.digest = message[start : start + value]
        else:
            return None
        start += value
    return chunk


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: bytes, start: int) -> tuple[int | None, int]:
    """A number of at most nine bytes, and where it ends; None for any other."""
    value = shift = 0
    for place in range(start, min(start + 9, len(message))):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    return None, start
