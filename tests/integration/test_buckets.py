"""A federation whose artifacts rest in an S3 bucket: real programs, a real server, the same bytes as in a folder."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hanse.artifacts import ArtifactStore, LocalStore, S3Location
from hanse.embedded.child import child_environment
from hanse.payload import Payload
from hanse.security import Authority, KeyPair
from hanse.v1 import aggregator_pb2, node_pb2, payload_pb2
from hanse_coordinator.aggregators import AggregatorPool
from tests.buckets import HAS_S3, S3Server
from tests.chaos.world import World, world

pytestmark = pytest.mark.skipif(not HAS_S3, reason="needs the packages moto[s3,server] and obstore")

NUMBERS = 200_000  # 1.6 MB: travels as an artifact


@pytest.fixture
def bucket(s3_server: S3Server, new_bucket: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting `artifacts` for a new bucket; every program that is started has the credentials."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.location(new_bucket())


def objects(server: S3Server, bucket: str) -> set[str]:
    found = server.client().list_objects_v2(Bucket=S3Location.parse(bucket).bucket)
    return {item["Key"].rpartition("/")[2] for item in found.get("Contents", ())} - {"store.id"}


def train(place: World) -> tuple[str, str]:
    for name in ("ada", "ben"):
        place.add_site(name)
    job = place.submit("wards")
    detail = place.until_ended(job)
    assert detail.job.state == "succeeded", detail.job.reason
    return job, str(place.read(lambda view: view.job(job).model_digest))


def pull(place: World, folder: Path) -> str:
    command = [sys.executable, "-m", "hanse.cli", "model", "pull", "wards", "-o", str(folder), "--json"]
    command += ["--state", str(place.federation.state)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["data"]["sha256"])


def test_a_job_ends_with_the_same_model_and_nothing_lies_in_the_folder(tmp_path, s3_server, bucket):
    with world(tmp_path / "one") as place:
        _, in_folder = train(place)
    with world(tmp_path / "two", artifacts=bucket) as place:
        job, in_bucket = train(place)
        assert in_bucket == in_folder
        assert pull(place, tmp_path / "model") == in_folder
        kept = {item.digest for item in place.read(lambda view: view.artifacts(job))}
        assert in_folder in kept <= objects(s3_server, bucket)
        assert not (place.federation.state / "artifacts").exists()
        assert place.whole()


class Watched:
    """The coordinator's store; remembers what was opened there, and so could have been streamed."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.opened: list[bytes] = []

    def open(self, digest: bytes) -> Payload:
        self.opened.append(digest)
        return self._store.open(digest)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_only_the_reference_travels_to_an_aggregator_that_reaches_the_bucket(
    authority: Authority, coordinator_pair: KeyPair, start_aggregator, bucket: str, tmp_path: Path
):
    from hanse.artifacts.bucket import BucketStore
    from hanse.artifacts.cache import ArtifactCache

    store = Watched(BucketStore(S3Location.parse(bucket), cache=ArtifactCache(tmp_path / "copies", 10**9)))
    aggregator = start_aggregator(artifacts=bucket)
    offer = node_pb2.DatasetOffer(name="d", kind="table", rows=5)
    job = aggregator_pb2.JobFacts(
        job=node_pb2.JobDescription(
            id="j-1", name="c", method="tally", dataset="d", rounds=1, config=json.dumps({"length": NUMBERS}).encode()
        ),
        nodes=["a"],
        datasets={"a": offer},
    )
    values = np.random.default_rng(1).integers(0, 9, NUMBERS)
    contribution = store.put(Payload.build(payload_pb2.Opaque(type="counts"), {"counts": values})).digest

    async def play() -> aggregator_pb2.OutcomeMessage:
        pool = AggregatorPool(
            [aggregator.address], store=store, authority_pem=authority.certificate_pem, pair=coordinator_pair
        )
        try:
            async with pool.open(job, None, None) as call:
                first = await call.close()
            async with pool.open(job, first.next_phase, None) as call:
                assert await call.add("a-1", "a", contribution) is None
                return await call.close()
        finally:
            await pool.close()

    outcome = asyncio.run(play())
    assert outcome.state.WhichOneof("source") == "artifact"
    state = outcome.state.artifact.digest
    assert {contribution, state}.isdisjoint(store.opened)
    assert store.open(state).size == outcome.state.artifact.size


def test_a_program_with_wrong_credentials_ends_at_once_with_one_line(tmp_path, s3_server, bucket, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-one")
    with pytest.raises(Exception, match="does not let this program read"), world(tmp_path, artifacts=bucket):
        pass
    logs = [path.read_text() for path in (tmp_path / "fed" / "logs").glob("*.log")]
    assert any("does not let this program read in the bucket" in log for log in logs)
    assert not any("a-wrong-one" in log for log in logs)


def test_a_store_that_is_gone_for_a_while_costs_no_job(tmp_path, s3_server, bucket):
    """The bucket's server is out of reach when the job comes; the job goes on by itself, or after `resume`."""
    import random

    from hanse.v1 import control_pb2
    from tests.chaos.world import CuttingProxy

    proxy = CuttingProxy(int(s3_server.endpoint.rpartition(":")[2]), random.Random(1), least=0, most=1)
    through = bucket.replace(s3_server.endpoint, f"http://127.0.0.1:{proxy.port}")
    with world(tmp_path, artifacts=through) as place:
        for name in ("ada", "ben"):
            place.add_site(name)
        proxy.cutting = True
        job = place.submit("wards", rounds=2)
        place.until(lambda: proxy.cuts > 3)
        proxy.cutting = False
        detail = place.until_ended(job)
        if detail.job.state == "paused":
            assert detail.job.reason.owner == "platform"
            place.control.call("ResumeJob", control_pb2.ChangeJobRequest(job=job))
            detail = place.until_ended(job)
        assert detail.job.state == "succeeded", detail.job.reason
    proxy.close()


def test_a_folder_and_a_bucket_can_be_copied_into_each_other(tmp_path, s3_server, bucket):
    folder, location = LocalStore(tmp_path / "folder"), S3Location.parse(bucket)
    payload = Payload.build(payload_pb2.Opaque(type="x"), {"v": np.arange(9)})
    folder.put(payload)
    for path in folder.root.rglob("*"):
        if path.is_file():
            key = f"{location.prefix}/{path.relative_to(folder.root)}"
            s3_server.client().put_object(Bucket=location.bucket, Key=key, Body=path.read_bytes())
    from hanse.artifacts.bucket import BucketStore
    from hanse.artifacts.cache import ArtifactCache

    store = BucketStore(location, cache=ArtifactCache(tmp_path / "copies", 10**9))
    assert store.store_id == folder.store_id
    assert store.open(payload.digest).image() == payload.image()
