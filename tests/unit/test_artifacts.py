"""The artifact store in a folder."""

from __future__ import annotations

import errno
import os
import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from hanse.artifacts import ArtifactStore, LocalStore
from hanse.errors import InvalidPayload, NotFound, PlatformError
from hanse.payload import Payload
from hanse.v1 import payload_pb2


def a_payload(seed: int = 0) -> Payload:
    values = np.random.default_rng(seed).normal(size=5000)
    return Payload.build(payload_pb2.WeightDelta(examples=seed), {"v": values})


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path / "artifacts")


def files(store: LocalStore) -> list[str]:
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


def test_a_payload_lies_under_its_digest_and_opens_mapped(store):
    payload = a_payload()
    artifact = store.put(payload)
    name = payload.digest.hex()
    assert (artifact.digest, artifact.size) == (payload.digest, payload.size)
    assert files(store) == [f"{name[:2]}/{name}", "store.id"]
    opened = store.open(payload.digest)
    assert opened.image() == payload.image()
    assert opened.digest_known
    assert store.size(payload.digest) == payload.size


def test_putting_twice_is_no_work_and_changes_nothing(store):
    payload = a_payload()
    first = store.put(payload)
    written = store.path(payload.digest).stat()
    assert store.put(payload) == first
    assert store.path(payload.digest).stat().st_ino == written.st_ino
    assert store.put(Payload.from_image(payload.image())) == first


@pytest.mark.parametrize("keep", [False, True])
def test_a_verified_file_is_adopted(store, tmp_path, keep):
    payload, path = a_payload(), tmp_path / "upload"
    digest = payload.write(path)
    artifact = store.adopt(path, digest, keep=keep)
    assert artifact.size == payload.size
    assert path.exists() is keep
    assert store.open(digest).image() == payload.image()
    assert store.adopt(path, digest) == artifact if keep else True


def test_a_file_is_adopted_from_a_disk_without_links(store, tmp_path, monkeypatch):
    payload, path = a_payload(), tmp_path / "upload"
    digest = payload.write(path)

    def no_links(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_links)
    store.adopt(path, digest, keep=True)
    assert path.exists()
    assert store.open(digest).image() == payload.image()


def test_two_programs_that_open_the_folder_know_that_they_share_it(store, tmp_path):
    again, other = LocalStore(store.root), LocalStore(tmp_path / "other")
    assert again.store_id == store.store_id
    assert other.store_id != store.store_id
    again.put(a_payload())
    assert store.exists(a_payload().digest)


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


def test_a_truncated_artifact_is_refused(store):
    payload = a_payload()
    store.put(payload)
    with store.path(payload.digest).open("r+b") as file:
        file.truncate(payload.size - 8)
    with pytest.raises(InvalidPayload, match=f"describes {payload.size} bytes"):
        store.open(payload.digest)


def test_a_copy_is_fetched_to_a_path_of_ones_own(store, tmp_path):
    payload, target = a_payload(), tmp_path / "copy"
    store.put(payload)
    target.write_bytes(b"something older")
    store.fetch_to(payload.digest, target)
    assert target.read_bytes() == payload.image()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["copy"]


def test_a_full_disk_names_the_folder_and_leaves_nothing_behind(store, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlatformError, match=f"the disk of the artifact folder {store.root} is full") as error:
        store.put(a_payload())
    assert error.value.code == "DISK_FULL"
    assert files(store) == ["store.id"]


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


def test_a_folder_that_cannot_be_made_is_a_fault_with_a_name(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlatformError, match="cannot be used"):
        LocalStore(tmp_path / "file" / "artifacts")


def test_a_restored_folder_is_the_same_store(store, tmp_path):
    store.put(a_payload())
    shutil.copytree(store.root, tmp_path / "restored")
    restored: ArtifactStore = LocalStore(tmp_path / "restored")
    assert restored.store_id == store.store_id
    assert restored.open(a_payload().digest).image() == a_payload().image()
