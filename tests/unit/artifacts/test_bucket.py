"""The artifact store in a bucket: wrong settings, damage, broken connections, bounded copies."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

from hanse.artifacts import LocalStore, S3Location, open_store
from hanse.errors import InvalidPayload, NotFound, PlatformError
from hanse.payload import Payload
from tests.buckets import HAS_S3
from tests.chaos.world import CuttingProxy
from tests.unit.artifacts.payloads import a_payload

pytestmark = pytest.mark.skipif(not HAS_S3, reason="needs the packages moto[s3,server] and obstore")

MIB = 2**20


def names(server, bucket: str) -> list[str]:
    return sorted(item["Key"] for item in server.client().list_objects_v2(Bucket=bucket).get("Contents", ()))


def test_objects_are_named_as_in_a_folder(open_bucket, s3_server, tmp_path):
    store, folder, payload = open_bucket(), LocalStore(tmp_path / "folder"), a_payload()
    for each in (store, folder):
        each.put(payload)
    there = names(s3_server, store.location.bucket)
    here = [str(path.relative_to(folder.root)) for path in folder.root.rglob("*") if path.is_file()]
    assert there == sorted(f"artifacts/{name}" for name in here)


def test_two_programs_know_that_they_share_a_bucket_and_read_each_other(open_bucket, s3_server, new_bucket):
    place = s3_server.location(new_bucket())
    one, two = open_bucket(place, cache="one"), open_bucket(place, cache="two")
    elsewhere = open_bucket(place.replace("/artifacts", "/other"), cache="three")
    assert one.store_id == two.store_id
    assert one.store_id != elsewhere.store_id
    payload = a_payload()
    one.put(payload)
    assert two.open(payload.digest).image() == payload.image()
    assert not elsewhere.exists(payload.digest)


def test_a_program_that_only_looks_makes_nothing(open_bucket, s3_server, new_bucket):
    bucket = new_bucket()
    store = open_bucket(s3_server.location(bucket), read_only=True)
    assert names(s3_server, bucket) == []
    with pytest.raises(NotFound):
        store.open(bytes(32))


def test_a_large_payload_goes_in_parts_and_comes_back_whole(open_bucket, tmp_path):
    store, payload = open_bucket(cache="one"), a_payload(values=3 * MIB)  # 24 MiB: three parts
    store.put(payload)
    again = open_bucket(s3_place(store), cache="two")
    assert hashlib.sha256(again.open(payload.digest).mapped).digest() == payload.digest


def s3_place(store) -> str:
    location = store.location
    return f"s3://{location.bucket}/{location.prefix}?endpoint={location.endpoint}&region={location.region}&plain_http=true"


def test_a_damaged_object_is_never_handed_out(open_bucket, s3_server):
    store, payload = open_bucket(cache="one"), a_payload()
    store.put(payload)
    key = next(name for name in names(s3_server, store.location.bucket) if payload.digest.hex() in name)
    altered = bytearray(payload.image())
    altered[-1] ^= 1
    s3_server.client().put_object(Bucket=store.location.bucket, Key=key, Body=bytes(altered))
    other = open_bucket(s3_place(store), cache="two")
    with pytest.raises(InvalidPayload, match="is damaged: its SHA-256 is") as error:
        other.open(payload.digest)
    assert error.value.code == "DIGEST_MISMATCH"
    assert list(other.spool.iterdir()) == []


def test_a_file_that_is_not_what_was_said_is_not_stored(open_bucket, s3_server, tmp_path):
    store, path = open_bucket(), tmp_path / "upload"
    digest = a_payload().write(path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(InvalidPayload, match="it is not stored"):
        store.adopt(path, digest)
    assert not store.exists(digest)
    assert names(s3_server, store.location.bucket) == ["artifacts/store.id"]


def test_copies_stay_below_the_limit_and_what_is_mapped_reads_on(open_bucket):
    size = a_payload().size
    store = open_bucket(limit=2 * size)
    payloads = [a_payload(seed) for seed in range(4)]
    opened = []
    for payload in payloads:
        store.put(payload)
        opened.append(store.open(payload.digest))
    copies = list(store.spool.parent.glob("??/*"))
    assert len(copies) == 2
    assert sum(path.stat().st_size for path in copies) <= 2 * size
    for payload, mapped in zip(payloads, opened, strict=True):
        assert mapped.image() == payload.image()
        assert store.open(payload.digest).image() == payload.image()  # fetched again


def test_a_copy_that_was_cut_is_fetched_again(open_bucket):
    store, payload = open_bucket(), a_payload()
    store.put(payload)
    copy = store.open(payload.digest).path
    with copy.open("r+b") as file:
        file.truncate(100)
    assert store.open(payload.digest).image() == payload.image()


def test_copies_outlive_a_program_but_are_not_believed_after_the_machine_was_restarted(open_bucket, s3_server):
    store, payload = open_bucket(), a_payload()
    store.put(payload)
    folder = store.spool.parent
    s3_server.client().delete_object(Bucket=store.location.bucket, Key=names(s3_server, store.location.bucket)[0])
    again = open_bucket(s3_place(store))
    assert again.open(payload.digest).image() == payload.image()
    (folder / "boot.id").write_text("another boot")
    with pytest.raises(NotFound):
        open_bucket(s3_place(store)).open(payload.digest)


def test_a_download_goes_on_where_its_connection_broke(open_bucket, s3_server):
    store, payload = open_bucket(cache="one"), a_payload(values=MIB)
    store.put(payload)
    proxy = CuttingProxy(int(s3_server.endpoint.rpartition(":")[2]), random.Random(7), least=2 * MIB, most=3 * MIB)
    try:
        through = s3_place(store).replace(s3_server.endpoint, f"http://127.0.0.1:{proxy.port}")
        other = open_bucket(through, cache="two", patience=timedelta(seconds=60))
        proxy.cutting = True
        assert other.open(payload.digest).image() == payload.image()
        assert proxy.cuts > 0
    finally:
        proxy.close()


def wrong(open_bucket, place: str, **options: object) -> PlatformError:
    with pytest.raises(PlatformError) as error:
        open_bucket(place, patience=timedelta(seconds=1), **options)
    return error.value


def test_a_bucket_that_does_not_exist_is_named(open_bucket, s3_server):
    found = wrong(open_bucket, s3_server.location("no-such-bucket"))
    assert found.code == "ARTIFACT_BUCKET"
    assert "no bucket 'no-such-bucket'" in str(found)
    assert "`artifacts`" in found.remedy


def test_wrong_credentials_name_the_setting_and_show_no_secret(open_bucket, s3_server, new_bucket, monkeypatch):
    place = s3_server.location(new_bucket())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-this-one")
    found = wrong(open_bucket, place)
    assert found.code == "ARTIFACT_CREDENTIALS"
    assert "SignatureDoesNotMatch" in found.sentence
    assert "artifact_credentials" in found.remedy
    assert "not-this-one" not in str(found)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert "InvalidAccessKeyId" in wrong(open_bucket, place).sentence


def test_a_server_that_does_not_answer_is_named(open_bucket):
    found = wrong(open_bucket, "s3://bucket/x?endpoint=http://127.0.0.1:1&plain_http=true")
    assert found.code == "ARTIFACT_STORE_UNREACHABLE"
    assert "http://127.0.0.1:1 does not answer" in found.sentence
    assert "endpoint" in found.remedy


def test_credentials_come_from_a_mounted_secret_and_a_missing_file_is_named(
    open_bucket, s3_server, new_bucket, tmp_path, monkeypatch
):
    for name in s3_server.environment:
        monkeypatch.delenv(name)
    place, secret = s3_server.location(new_bucket()), tmp_path / "secret"
    secret.mkdir()
    (secret / "access_key_id").write_text(s3_server.access_key_id + "\n")
    found = wrong(open_bucket, place, credentials=secret)
    assert found.code == "ARTIFACT_CREDENTIALS"
    assert str(secret / "secret_access_key") in found.sentence
    (secret / "secret_access_key").write_text(s3_server.secret_access_key + "\n")
    store = open_bucket(place, credentials=secret)
    store.put(a_payload())
    assert store.exists(a_payload().digest)


def test_a_full_cache_disk_is_named(open_bucket, monkeypatch):
    store = open_bucket()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PlatformError, match=r"the disk of the artifact cache .* is full") as error:
        store.put(a_payload())
    assert error.value.code == "DISK_FULL"


def test_a_model_is_never_whole_in_memory(open_bucket, s3_server, tmp_path):
    """96 MB go in and come out of a process of its own whose memory grows by less than 80 MB."""
    store = open_bucket()
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from hanse.artifacts.bucket import BucketStore
        from hanse.artifacts import S3Location
        from hanse.artifacts.cache import ArtifactCache
        import hashlib

        def memory():  # anonymous: mapped files are the system's
            return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) * 1024

        place, folder, path, digest = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), bytes.fromhex(sys.argv[4])
        store = BucketStore(S3Location.parse(place), cache=ArtifactCache(folder / "in", 10**9))
        before = most = memory()
        store.adopt(path, digest)
        most = max(most, memory())
        other = BucketStore(S3Location.parse(place), cache=ArtifactCache(folder / "out", 10**9))
        assert hashlib.sha256(other.open(digest).mapped).digest() == digest
        most = max(most, memory())
        print(most, before)
        """
    )
    path = tmp_path / "model"
    digest = a_payload(values=12 * MIB).write(path)
    command = [sys.executable, "-c", script, s3_place(store), str(tmp_path / "copies"), str(path), digest.hex()]
    done = subprocess.run(
        command, env=os.environ | s3_server.environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    after, before = (int(word) for word in done.stdout.split())
    assert after - before < 80_000_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://bucket?colour=red", "unknown option 'colour'"),
        ("s3://key:secret@bucket/x", "must not carry credentials"),
        ("s3://B", "not the name of a bucket"),
        ("s3://bucket?endpoint=http://minio:9000", "unencrypted"),
        ("s3://bucket?endpoint=https://minio:9000&plain_http=true", "contradicts"),
        ("s3://bucket?endpoint=minio:9000", "write it as https://host:port"),
        ("s3://bucket?path_style=maybe", "neither true nor false"),
        ("gs://bucket", "neither a folder nor an s3:// address"),
    ],
)
def test_a_wrong_address_is_refused_with_the_part_that_is_wrong(settings, text, words):
    with pytest.raises(ValueError, match=words):
        settings(artifacts=text)


def test_an_address_says_how_the_server_is_reached():
    amazon = S3Location.parse("s3://models/hanse?region=eu-west-1")
    assert (amazon.endpoint, amazon.path_style, amazon.plain_http, amazon.region) == ("", False, False, "eu-west-1")
    own = S3Location.parse("s3://models?endpoint=https://minio.example.org:9000/")
    assert (own.endpoint, own.path_style, own.prefix) == ("https://minio.example.org:9000", True, "")


def test_settings_choose_the_store(settings, tmp_path, open_bucket, s3_server, new_bucket):
    cache = tmp_path / "c"
    assert open_store(settings(), cache=cache) is None
    assert open_store(settings(), default=tmp_path / "d", cache=cache).root == tmp_path / "d"
    assert open_store(settings(artifacts=str(tmp_path / "e")), cache=cache).root == tmp_path / "e"
    bucket = open_store(settings(artifacts=s3_server.location(new_bucket())), cache=cache)
    assert bucket.spool == cache / "spool"
    bucket.put(a_payload())
    assert bucket.exists(a_payload().digest)


def test_an_object_that_is_old_is_written_again_when_it_is_stored_again(open_bucket, monkeypatch):
    """So that whoever looks for leftovers does not take what is needed again for one."""
    from hanse.artifacts import bucket

    store, payload = open_bucket(), a_payload()
    store.put(payload)
    first = next(store.stored()).at
    store.put(Payload.from_image(payload.image()))
    assert next(store.stored()).at == first
    monkeypatch.setattr(bucket, "FRESH_S", -1.0)
    written = []
    monkeypatch.setattr(bucket, "verified", lambda *a: written.append(a) or iter([payload.image()]))
    store.put(Payload.from_image(payload.image()))
    assert len(written) == 1
