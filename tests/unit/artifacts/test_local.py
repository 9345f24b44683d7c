"""The artifact store in a folder: what only a folder can show."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from hanse.artifacts import ArtifactStore, LocalStore
from hanse.errors import InvalidPayload, PlatformError
from hanse.payload import Payload
from tests.unit.artifacts.payloads import a_payload


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


def test_a_truncated_artifact_is_refused(store):
    payload = a_payload()
    store.put(payload)
    with store.path(payload.digest).open("r+b") as file:
        file.truncate(payload.size - 8)
    with pytest.raises(InvalidPayload, match=f"describes {payload.size} bytes"):
        store.open(payload.digest)


def test_a_full_disk_names_the_folder_and_leaves_nothing_behind(store, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlatformError, match=f"the disk of the artifact folder {store.root} is full") as error:
        store.put(a_payload())
    assert error.value.code == "DISK_FULL"
    assert files(store) == ["store.id"]


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
