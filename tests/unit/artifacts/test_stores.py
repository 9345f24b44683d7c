"""What every artifact store promises, in a folder and in a bucket."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import numpy as np
import pytest

from hanse.errors import InvalidPayload, NotFound
from hanse.payload import Payload
from tests.unit.artifacts.payloads import a_payload


def test_a_payload_is_opened_mapped_under_its_digest(store):
    payload = a_payload()
    artifact = store.put(payload)
    assert (artifact.digest, artifact.size) == (payload.digest, payload.size)
    opened = store.open(payload.digest)
    assert opened.image() == payload.image()
    assert opened.digest_known
    assert opened.path is not None
    assert store.size(payload.digest) == payload.size


def test_putting_twice_is_the_same(store):
    payload = a_payload()
    first = store.put(payload)
    assert store.put(payload) == first
    assert store.put(Payload.from_image(payload.image())) == first
    assert len(list(store.stored())) == 1


def test_a_listing_says_what_is_there_how_large_and_since_when(store):
    payloads = [a_payload(seed, values=10 * (seed + 1)) for seed in range(3)]
    for payload in payloads:
        store.put(payload)
    store.delete(payloads[0].digest)
    listed = {item.digest: item for item in store.stored()}
    assert {digest: item.size for digest, item in listed.items()} == {p.digest: p.size for p in payloads[1:]}
    assert all(abs(item.at - time.time()) < 600 for item in listed.values())


@pytest.mark.parametrize("keep", [False, True])
def test_a_verified_file_is_adopted(store, tmp_path, keep):
    payload, path = a_payload(), tmp_path / "upload"
    digest = payload.write(path)
    artifact = store.adopt(path, digest, keep=keep)
    assert artifact.size == payload.size
    assert path.exists() is keep
    assert store.open(digest).image() == payload.image()
    assert store.adopt(path, digest) == artifact if keep else True


def test_what_is_not_there_is_not_found_in_words(store, tmp_path):
    digest = bytes.fromhex("ab" * 32)
    for call in (store.open, store.size, lambda digest: store.fetch_to(digest, tmp_path / "x")):
        with pytest.raises(NotFound, match="artifact abababababababab… is not in the store"):
            call(digest)
    assert not store.exists(digest)
    store.delete(digest)


@pytest.mark.parametrize("digest", [b"", b"short", b"x" * 33])
def test_what_is_no_digest_names_no_path(store, digest):
    with pytest.raises(InvalidPayload, match="32 bytes"):
        store.open(digest)


def test_a_deleted_artifact_is_gone_but_whoever_has_it_mapped_reads_on(store):
    payload = a_payload()
    store.put(payload)
    opened = store.open(payload.digest)
    store.delete(payload.digest)
    assert not store.exists(payload.digest)
    np.testing.assert_array_equal(opened.arrays["v"], payload.arrays["v"])


def test_a_copy_is_fetched_to_a_path_of_ones_own(store, tmp_path):
    payload, target = a_payload(), tmp_path / "copy"
    store.put(payload)
    target.write_bytes(b"something older")
    store.fetch_to(payload.digest, target)
    assert target.read_bytes() == payload.image()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["copy"]


def test_leftovers_of_a_crash_are_removed_once_they_are_old(store):
    old, young = store.spool / "upload-a" / "x.part", store.spool / "upload-b" / "y.part"
    for path in (old, young):
        path.parent.mkdir()
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    store.put(a_payload())
    assert store.sweep(older_than=timedelta(days=1)) == 1
    assert not old.parent.exists()
    assert young.exists()
    assert store.exists(a_payload().digest)
