"""Smaller forms of arrays: what comes back, and what a stranger cannot make us do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hanse.errors import InvalidPayload
from hanse.payload import Payload
from hanse.payload.encodings import Encoded, encode_bf16, encode_int8, encode_top_k, encode_zstd
from hanse.v1 import payload_pb2

FLOATS = arrays(
    np.float32,
    st.sampled_from([(0,), (1,), (7,), (255,), (256,), (257,), (3, 100), (2, 2, 2)]),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def travelled(encoded: Encoded) -> Encoded:
    """The array as it comes out of an image."""
    payload = Payload.build(payload_pb2.WeightDelta(examples=1), {"before": f32(1, 2), "w": encoded, "after": f32(3)})
    found = Payload.from_image(payload.image())
    np.testing.assert_array_equal(found.arrays["after"], [3])
    assert "w" not in found.arrays
    return found.encoded["w"]


def test_four_numbers_in_each_form():
    array = f32(1, -1.00390625, 0.001, 300)
    # 1 + 2^-8 lies half way between 1 and 1 + 2^-7: the even one is 1.
    np.testing.assert_array_equal(encode_bf16(array).decode()[:2], [1, -1])
    np.testing.assert_array_equal(encode_int8(f32(1, -1.6, 0.4, 127)).decode(), [1, -2, 0, 127])
    np.testing.assert_array_equal(encode_top_k(array, 0.5).decode(), f32(0, -1.00390625, 0, 300))
    np.testing.assert_array_equal(encode_top_k(f32(2, -2, 2, 1), 0.5).decode(), [2, -2, 0, 0])


@settings(max_examples=60, deadline=None)
@given(FLOATS)
def test_errors_stay_within_the_bound_of_each_form(array):
    for encoded, bound in (
        (encode_bf16(array), np.abs(array) * 2.0**-8 + 1e-38),
        (encode_int8(array), np.abs(array).max(initial=0) / 253 + 1e-37),
    ):
        decoded = travelled(encoded).decode()
        assert decoded.shape == array.shape
        assert np.all(np.abs(decoded.astype(np.float64) - array) <= bound)
    decoded = travelled(encode_top_k(array, 0.2)).decode()
    sent = decoded != 0
    np.testing.assert_array_equal(decoded[sent], array[sent])
    assert np.abs(array[~sent]).max(initial=0) <= np.abs(array[sent]).min(initial=np.inf)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_zstd_gives_back_every_bit_and_is_used_only_where_it_pays(dtype):
    array = (np.arange(3000).reshape(30, 100) // 7 % 2).astype(dtype)
    encoded = encode_zstd(array)
    assert encoded is not None
    assert encoded.data.nbytes < 0.95 * array.nbytes
    decoded = travelled(encoded).decode()
    assert decoded.dtype == array.dtype
    np.testing.assert_array_equal(decoded, array)
    assert encode_zstd(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)) is None


def test_sizes_are_as_stated():
    array = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    sizes = [encode(array).data.nbytes for encode in (encode_bf16, encode_int8)]
    assert sizes == [20_000, 10_000 + 4 * 40]
    assert encode_top_k(array, 0.01).data.nbytes == 800


def lying(encoded: Encoded, **changes) -> bytes:
    """An image whose header says something else of the array."""
    payload = Payload.build(payload_pb2.WeightDelta(), {"w": encoded})
    spec = payload.header.arrays[0]
    for key, value in changes.items():
        if key == "shape":
            del spec.shape[:]
            spec.shape.extend(value)
        else:
            setattr(spec, key, value)
    return payload.image()


SOME = np.ones(300, dtype=np.float32)


@pytest.mark.parametrize(
    ("encoded", "changes"),
    [
        (encode_bf16(SOME), {"shape": [301]}),
        (encode_bf16(SOME), {"dtype": "float64"}),
        (encode_int8(SOME), {"shape": [2**40]}),
        (encode_top_k(SOME, 0.5), {"shape": [10]}),
        (encode_top_k(SOME, 0.5), {"shape": [2**33]}),
        (encode_zstd(SOME), {"shape": [2]}),
        (encode_zstd(SOME), {"encoding": 9}),
    ],
)
def test_a_header_that_cannot_be_is_refused_before_anything_is_decoded(encoded, changes):
    with pytest.raises(InvalidPayload, match="array 'w'"):
        Payload.from_image(lying(encoded, **changes))


@pytest.mark.parametrize(
    ("encoding", "data", "words"),
    [
        (payload_pb2.ENCODING_INT8_BLOCKS, f32(np.nan).tobytes() + bytes(4), "scale"),
        (payload_pb2.ENCODING_INT8_BLOCKS, f32(-1).tobytes() + bytes(4), "scale"),
        (payload_pb2.ENCODING_TOP_K, np.array([2, 1], "<u4").tobytes() + bytes(8), "ascend"),
        (payload_pb2.ENCODING_TOP_K, np.array([1, 1], "<u4").tobytes() + bytes(8), "ascend"),
        (payload_pb2.ENCODING_TOP_K, np.array([0, 4], "<u4").tobytes() + bytes(8), "beyond"),
        (payload_pb2.ENCODING_ZSTD, b"no frame", "cannot be read"),
    ],
)
def test_bytes_that_cannot_be_are_refused_by_what_is_wrong(encoding, data, words):
    encoded = Encoded(encoding, "float32", (4,), np.frombuffer(data, np.uint8))
    with pytest.raises(InvalidPayload, match=words):
        encoded.decode()


def test_a_frame_that_unpacks_to_more_than_the_shape_says_is_not_unpacked():
    bomb = encode_zstd(np.zeros(10_000_000, dtype=np.float32))
    assert bomb is not None
    small = Encoded(payload_pb2.ENCODING_ZSTD, "float32", (bomb.data.nbytes,), bomb.data)
    with pytest.raises(InvalidPayload, match="the frame holds 40000000"):
        small.decode()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([2, 3, 4, 5]),
    st.binary(min_size=1, max_size=120),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_random_bytes_are_decoded_or_refused(encoding, data, shape):
    header = payload_pb2.PayloadHeader(weight_delta=payload_pb2.WeightDelta())
    header.arrays.add(name="w", dtype="float32", shape=shape, encoding=encoding, nbytes=len(data))
    encoded = Encoded(encoding, "float32", tuple(shape), np.frombuffer(data, np.uint8))
    try:
        image = Payload.build(payload_pb2.WeightDelta(), {"w": encoded}).image()
        decoded = Payload.from_image(image).encoded["w"].decode()
    except InvalidPayload:
        return
    assert decoded.shape == tuple(shape)
    assert decoded.dtype == np.float32
