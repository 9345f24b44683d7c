"""The image of a payload: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hanse.errors import InvalidPayload
from hanse.payload import Payload, image_size, read_header
from hanse.payload.header import ITEM_BYTES, MAX_HEADER_BYTES, PREFIX
from hanse.v1 import payload_pb2

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable()),
    st.sampled_from(sorted(ITEM_BYTES)).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=4,
)


def a_payload() -> Payload:
    arrays = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        "empty": np.zeros((3, 0), np.int64),
        "bins": np.array([1, 2, 250], np.uint8),
    }
    return Payload.build(payload_pb2.WeightDelta(examples=7), arrays, references=[bytes(range(32))])


def image_of(header: payload_pb2.PayloadHeader, body: bytes = b"") -> bytes:
    encoded = header.SerializeToString()
    return PREFIX.pack(b"HNSP", 1, len(encoded), 0) + encoded + body


def claiming(**spec: object) -> payload_pb2.PayloadHeader:
    header = payload_pb2.PayloadHeader(weight_delta=payload_pb2.WeightDelta())
    header.arrays.add(**({"name": "w", "dtype": "uint8", "encoding": payload_pb2.ENCODING_RAW} | spec))
    return header


def test_the_image_is_laid_out_as_the_contract_says():
    image = a_payload().image()
    length = int.from_bytes(image[8:12], "little")
    assert image[:8] == b"HNSP\x01\0\0\0"
    start = -(-(16 + length) // 64) * 64
    assert image[start : start + 24] == np.arange(6, dtype="<f4").tobytes()
    assert image[start + 64 :] == b"\x01\x02\xfa", "the empty array takes no room, and the last one ends the image"


@given(ARRAYS)
def test_what_goes_in_comes_out(arrays):
    payload = Payload.build(payload_pb2.Opaque(type="t", document=b"{}"), arrays)
    back = Payload.from_image(payload.image())
    assert back.header == payload.header
    assert back.size == payload.size == len(payload.image())
    assert back.digest == payload.digest
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array, strict=True)


def test_decoding_copies_nothing_and_the_arrays_cannot_be_written(tmp_path):
    payload = Payload.build(payload_pb2.WeightDelta(), {"w": np.zeros(4_000_000, np.float32)})
    path = tmp_path / "image"
    assert payload.write(path) == payload.digest
    tracemalloc.start()
    mapped = Payload.open(path)
    assert mapped.arrays["w"].sum() == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    with pytest.raises(ValueError, match="read-only"):
        mapped.arrays["w"][0] = 1


def test_a_digest_that_is_known_is_not_computed_again(tmp_path):
    path = tmp_path / "image"
    a_payload().write(path)
    assert Payload.open(path, digest=b"known" * 6).digest == b"known" * 6


@given(st.binary(max_size=300))
@example(b"HNSP\x01\0\0\0\x00\x00\x00\x00\x00\x00\x00\x00")
def test_any_bytes_are_a_payload_or_refused(data):
    with pytest.raises(InvalidPayload):
        Payload.from_image(data)


@settings(max_examples=300)
@given(st.data())
def test_a_changed_image_is_refused_or_decodes_to_what_its_own_header_says(data):
    image = bytearray(a_payload().image())
    for _ in range(data.draw(st.integers(1, 4))):
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip":
                image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
            case "cut":
                del image[data.draw(st.integers(1, len(image))) :]
                image = image or bytearray(b"\0")
            case "insert":
                at = data.draw(st.integers(0, len(image)))
                image[at:at] = data.draw(st.binary(min_size=1, max_size=80))
    try:
        payload = Payload.from_image(bytes(image))
    except InvalidPayload:
        return
    header, body = read_header(bytes(image))
    assert image_size(header, body) == len(image)
    for spec in header.arrays:
        assert payload.arrays[spec.name].shape == tuple(spec.shape)
        assert payload.arrays[spec.name].nbytes == spec.nbytes


def test_a_header_that_claims_a_terabyte_allocates_nothing():
    image = image_of(claiming(shape=[2**40], nbytes=2**40))
    tracemalloc.start()
    with pytest.raises(InvalidPayload, match="describes 1099511627840 bytes, but the payload has"):
        Payload.from_image(image)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"shape": [3], "nbytes": 4}, "'w' of shape \\(3,\\) and dtype uint8 needs 3 bytes"),
        ({"shape": [2**63, 0], "nbytes": 0}, "larger than any machine"),
        ({"shape": [2**40, 2**40, 0], "nbytes": 0}, "larger than any machine"),
        ({"shape": [1] * 9, "nbytes": 1}, "9 dimensions"),
        ({"dtype": "object", "shape": [1], "nbytes": 8}, "unknown dtype 'object'"),
        ({"encoding": 0, "shape": [1], "nbytes": 1}, "encoding 0"),
        ({"name": "", "shape": [1], "nbytes": 1}, "name"),
    ],
)
def test_an_array_that_contradicts_itself_is_named(spec, words):
    with pytest.raises(InvalidPayload, match=words):
        Payload.from_image(image_of(claiming(**spec), bytes(200)))


def test_a_header_longer_than_allowed_is_refused_before_it_is_read():
    with pytest.raises(InvalidPayload, match="at most"):
        read_header(PREFIX.pack(b"HNSP", 1, MAX_HEADER_BYTES + 1, 0))


def test_a_later_version_of_the_image_says_which_program_to_update():
    with pytest.raises(InvalidPayload, match="version 2 is not known") as error:
        read_header(PREFIX.pack(b"HNSP", 2, 0, 0))
    assert "Update" in error.value.remedy


def test_objects_are_never_stored():
    with pytest.raises(InvalidPayload, match="no raw form"):
        Payload.build(payload_pb2.WeightDelta(), {"w": np.array([{}])})
