"""Chunks cut from any byte, and the spool that puts them together again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import Conflict, InvalidPayload, PlatformError
from hanse.payload import CHUNK, Payload, Spool, chunks, read_header
from hanse.v1 import payload_pb2

SMALL = 256  # chunks of so many bytes, with room for the header below


def a_payload(size: int = 3 * CHUNK + 17, seed: int = 0) -> Payload:
    values = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return Payload.build(payload_pb2.WeightDelta(examples=1), {"v": values, "w": np.arange(9.0)})


PAYLOAD = a_payload(1500)
IMAGE = PAYLOAD.image()


def small_chunks(payload: Payload = PAYLOAD, offset: int = 0) -> list[payload_pb2.PayloadChunk]:
    return list(chunks(payload, offset=offset, size=SMALL))


@given(st.integers(0, len(IMAGE)), st.integers(SMALL, 2000), st.sampled_from(["built", "decoded", "bytes"]))
def test_chunks_from_any_byte_are_the_rest_of_the_image(offset, size, form):
    source = {"built": PAYLOAD, "decoded": Payload.from_image(IMAGE), "bytes": IMAGE}[form]
    cut = list(chunks(source, offset=offset, size=size))
    assert b"".join(chunk.data for chunk in cut) == IMAGE[offset:]
    assert [chunk.offset for chunk in cut] == [offset + n * size for n in range(len(cut))]
    assert [chunk.digest for chunk in cut] == [b""] * (len(cut) - 1) + [PAYLOAD.digest]
    assert all(0 < len(chunk.data) <= size for chunk in cut[:-1])


def test_the_first_chunk_of_a_large_payload_holds_the_header_and_none_is_over_a_mebibyte(tmp_path):
    payload, path = a_payload(), tmp_path / "image"
    payload.write(path)
    cut = list(chunks(path))
    assert read_header(cut[0].data)[0] == payload.header
    assert [len(chunk.data) for chunk in cut[:3]] == [CHUNK] * 3
    assert cut[-1].digest == payload.digest


def test_a_digest_that_is_known_is_not_computed_again(tmp_path):
    path = tmp_path / "image"
    PAYLOAD.write(path)
    assert list(chunks(path, digest=b"k" * 32))[-1].digest == b"k" * 32


def test_an_offset_beyond_the_end_is_refused():
    with pytest.raises(InvalidPayload, match="ends at"):
        list(chunks(PAYLOAD, offset=PAYLOAD.size + 1))


def test_a_spooled_payload_is_the_same_and_is_named_only_when_it_is_whole(tmp_path):
    spool, target = Spool(tmp_path / "part", size=PAYLOAD.size, digest=PAYLOAD.digest), tmp_path / "whole"
    for chunk in small_chunks():
        with pytest.raises(InvalidPayload) as error:
            spool.publish(target)
        assert error.value.code == "INCOMPLETE"
        assert spool.append(chunk) == chunk.offset + len(chunk.data)
    assert not target.exists()
    assert spool.publish(target) == PAYLOAD.digest
    assert target.read_bytes() == IMAGE
    assert not spool.path.exists()


@given(st.integers(0, len(IMAGE)))
def test_another_process_goes_on_at_any_byte_where_the_first_was_killed(tmp_path_factory, killed_at):
    path = tmp_path_factory.mktemp("spool") / "part"
    path.write_bytes(IMAGE[:killed_at])
    spool = Spool(path, size=PAYLOAD.size, digest=PAYLOAD.digest)
    header_ends = read_header(IMAGE)[1]
    assert spool.committed == (killed_at if killed_at >= header_ends else 0)
    for chunk in small_chunks(offset=spool.committed):
        spool.append(chunk)
    assert spool.finish() == PAYLOAD.digest
    assert path.read_bytes() == IMAGE


def test_a_chunk_must_begin_where_the_committed_bytes_end(tmp_path):
    spool = Spool(tmp_path / "part", size=PAYLOAD.size)
    first, second, third, *_ = small_chunks()
    spool.append(first)
    for wrong in (first, third):
        with pytest.raises(Conflict, match=f"{SMALL} bytes are committed") as error:
            spool.append(wrong)
        assert error.value.code == "OFFSET"
    assert spool.append(second) == 2 * SMALL


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["next", "again", "skip", "cut", "foreign", "longer"]), st.integers(1, 400))))
def test_whatever_order_chunks_come_in_only_the_right_bytes_are_ever_accepted(tmp_path_factory, moves):
    spool = Spool(tmp_path_factory.mktemp("spool") / "part", size=PAYLOAD.size, digest=PAYLOAD.digest)
    for move, number in moves:
        at = spool.committed
        chunk = small_chunks(offset=at)[0]
        match move:
            case "again":
                chunk = small_chunks(offset=max(0, at - number))[0]
            case "skip":
                chunk.offset += number
            case "cut" if chunk.data:
                chunk.data = chunk.data[: max(1, len(chunk.data) - number)]
                chunk.digest = b""
            case "foreign":
                chunk.data = bytes(byte ^ 1 for byte in chunk.data)
            case "longer":
                chunk.data += bytes(number)
        try:
            spool.append(chunk)
        except (Conflict, InvalidPayload):
            assert spool.committed == at, "what is refused leaves no trace"
    if spool.complete:
        if spool.path.read_bytes() == IMAGE:
            assert spool.finish() == PAYLOAD.digest
        else:
            with pytest.raises(InvalidPayload, match="SHA-256") as error:
                spool.finish()
            assert error.value.code == "DIGEST_MISMATCH"
            assert not spool.path.exists()
    else:
        with pytest.raises(InvalidPayload, match="ended after"):
            spool.finish()


def a_claim(size: int) -> payload_pb2.PayloadChunk:
    header = payload_pb2.PayloadHeader(weight_delta=payload_pb2.WeightDelta())
    header.arrays.add(name="w", dtype="uint8", shape=[size], nbytes=size, encoding=payload_pb2.ENCODING_RAW)
    encoded = header.SerializeToString()
    return payload_pb2.PayloadChunk(data=b"HNSP\x01\0\0\0" + len(encoded).to_bytes(8, "little") + encoded)


def test_a_header_that_claims_a_terabyte_is_refused_before_a_byte_is_written(tmp_path):
    spool = Spool(tmp_path / "part", limit=10**9)
    with pytest.raises(InvalidPayload, match="at most 1000000000 are accepted") as error:
        spool.append(a_claim(2**40))
    assert error.value.code == "TOO_LARGE"
    assert list(tmp_path.iterdir()) == []


def test_a_declared_size_above_the_limit_is_refused_at_once(tmp_path):
    with pytest.raises(InvalidPayload, match="at most 1000") as error:
        Spool(tmp_path / "part", size=1001, limit=1000)
    assert error.value.code == "TOO_LARGE"


def test_a_header_that_describes_another_size_than_declared_is_refused(tmp_path):
    spool = Spool(tmp_path / "part", size=PAYLOAD.size + 64)
    with pytest.raises(InvalidPayload, match=f"declared, but the header describes {PAYLOAD.size}"):
        spool.append(small_chunks()[0])
    assert not spool.path.exists()


def test_bytes_beyond_the_declared_size_are_refused(tmp_path):
    spool = Spool(tmp_path / "part", size=PAYLOAD.size)
    *others, last = small_chunks()
    for chunk in others:
        spool.append(chunk)
    last.data += b"x"
    with pytest.raises(InvalidPayload, match="go on to byte"):
        spool.append(last)


def test_a_first_chunk_that_is_no_payload_is_refused(tmp_path):
    with pytest.raises(InvalidPayload, match="not a Hanse payload"):
        Spool(tmp_path / "part", size=1000).append(payload_pb2.PayloadChunk(data=b"x" * 1000))


def test_a_payload_without_any_digest_is_not_accepted(tmp_path):
    spool = Spool(tmp_path / "part")
    for chunk in small_chunks():
        chunk.digest = b""
        spool.append(chunk)
    with pytest.raises(InvalidPayload, match="no digest"):
        spool.finish()


def test_the_last_chunk_may_not_contradict_the_declared_digest(tmp_path):
    spool = Spool(tmp_path / "part", digest=bytes(32))
    *others, last = small_chunks()
    for chunk in others:
        spool.append(chunk)
    with pytest.raises(InvalidPayload, match="another digest than was declared"):
        spool.append(last)


def test_a_full_disk_names_the_folder_and_the_transfer_goes_on_once_there_is_room(tmp_path, monkeypatch):
    spool = Spool(tmp_path / "part", size=PAYLOAD.size, digest=PAYLOAD.digest)
    first, second, *others = small_chunks()
    spool.append(first)
    real = os.write

    def half(file: int, data: bytes) -> int:
        if len(data) < SMALL:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[: SMALL // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(PlatformError, match=f"the disk of {tmp_path} is full") as error:
            spool.append(second)
    assert error.value.code == "DISK_FULL"
    assert error.value.retryable
    assert "Free some space" in error.value.remedy
    assert spool.path.read_bytes() == IMAGE[:SMALL], "half a chunk is not left behind"
    for chunk in (second, *others):
        spool.append(chunk)
    assert spool.finish() == PAYLOAD.digest


def test_a_payload_for_which_the_disk_has_no_room_is_refused_before_it_is_sent(tmp_path):
    with pytest.raises(PlatformError, match="is full"):
        Spool(tmp_path / "part", size=2**55)


def test_a_spool_file_that_somebody_changed_begins_anew(tmp_path):
    spool = Spool(tmp_path / "part", size=PAYLOAD.size)
    first, second, *_ = small_chunks()
    spool.append(first)
    spool.close()
    spool.path.write_bytes(b"short")
    assert not spool.intact()
    with pytest.raises(PlatformError, match="changed by somebody else"):
        spool.append(second)
    assert spool.committed == 0


def test_a_missing_folder_is_a_fault_with_a_name(tmp_path: Path):
    with pytest.raises(PlatformError, match="cannot be written"):
        Spool(tmp_path / "nowhere" / "part", size=1000)
