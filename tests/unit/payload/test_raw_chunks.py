"""Messages that are put together by hand are those of protobuf, and strangers' bytes are judged by protobuf alone."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import InvalidPayload
from hanse.payload.raw_chunks import (
    RawChunk,
    RawUpload,
    decode_chunk,
    decode_upload,
    encode,
    packed_chunks,
    packed_uploads,
)
from hanse.v1 import node_pb2, payload_pb2

FIELDS = st.fixed_dictionaries(
    {"offset": st.integers(0, 2**63 - 1), "data": st.binary(max_size=300), "digest": st.sampled_from([b"", b"d" * 32])}
)


def fields(chunk) -> tuple[int, bytes, bytes]:
    return chunk.offset, bytes(chunk.data), bytes(chunk.digest)


@given(FIELDS)
def test_the_bytes_are_those_of_protobuf_in_both_directions(given_fields):
    plain = payload_pb2.PayloadChunk(**given_fields)
    request = node_pb2.UploadRequest(chunk=plain)
    assert encode(RawChunk(**given_fields)) == encode(plain) == plain.SerializeToString()
    assert encode(RawUpload(RawChunk(**given_fields))) == request.SerializeToString()
    assert fields(decode_chunk(plain.SerializeToString())) == fields(plain)
    decoded = decode_upload(request.SerializeToString())
    assert isinstance(decoded, RawUpload)
    assert decoded.WhichOneof("part") == "chunk"
    assert fields(decoded.chunk) == fields(plain)


@given(
    st.binary(max_size=60)
    | st.builds(lambda a, b: b"\x12" + bytes([len(a)]) + a + b, st.binary(max_size=40), st.binary(max_size=3))
)
def test_bytes_of_strangers_mean_what_protobuf_says(message):
    for decode, kind in ((decode_chunk, payload_pb2.PayloadChunk), (decode_upload, node_pb2.UploadRequest)):
        try:
            expected = kind.FromString(message)
        except DecodeError:
            with pytest.raises(DecodeError):
                decode(message)
            continue
        found = decode(message)
        if kind is payload_pb2.PayloadChunk:
            assert fields(found) == fields(expected)
        else:
            assert found.WhichOneof("part") == expected.WhichOneof("part")
            assert fields(found.chunk) == fields(expected.chunk)


def test_an_opening_is_left_to_protobuf():
    opening = node_pb2.UploadRequest(open=node_pb2.OpenUploadRequest(assignment="a", size=9))
    assert decode_upload(encode(opening)) == opening


@pytest.mark.parametrize("offset", [0, 1, 2**20, 2**20 + 5, 2 * 2**20 + 7])
def test_a_transfer_from_any_byte_on_ends_with_the_digest(offset):
    image = memoryview(bytes(range(256)) * 8192 + b"theend!")
    for pack, decode in ((packed_chunks, decode_chunk), (packed_uploads, lambda data: decode_upload(data).chunk)):
        chunks = [(message.end, decode(message.message)) for message in pack(image, digest=b"d" * 32, offset=offset)]
        assert b"".join(bytes(chunk.data) for _, chunk in chunks) == image[offset:]
        assert [end for end, _ in chunks] == [chunk.offset + len(chunk.data) for _, chunk in chunks]
        assert [bool(chunk.digest) for _, chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_an_offset_beyond_the_end_is_named():
    with pytest.raises(InvalidPayload, match="byte 4 was asked for, but the payload ends at 3"):
        list(packed_chunks(memoryview(b"abc"), digest=b"", offset=4))
