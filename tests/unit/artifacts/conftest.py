"""A store of each kind, empty; and payloads to put there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from hanse.artifacts import ArtifactStore, LocalStore, S3Location
from hanse.artifacts.location import ArtifactSettings
from tests.buckets import HAS_S3, S3Server

KINDS = ["folder", "bucket"] if HAS_S3 else ["folder"]
Opener = Callable[..., ArtifactStore]


@pytest.fixture
def open_bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    """A function that opens a new bucket, or `place` again, with a cache of its own by name."""
    server: S3Server = request.getfixturevalue("s3_server")
    new_bucket = request.getfixturevalue("new_bucket")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    def make(place: str = "", *, cache: str = "cache", limit: int = 10**9, **options: object) -> ArtifactStore:
        from hanse.artifacts.bucket import BucketStore
        from hanse.artifacts.cache import ArtifactCache

        location = S3Location.parse(place or server.location(new_bucket()))
        options = {"patience": timedelta(seconds=5), **options}
        return BucketStore(location, cache=ArtifactCache(tmp_path / cache, limit), **options)

    return make


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """An empty store of each kind."""
    if request.param == "folder":
        return LocalStore(tmp_path / "artifacts")
    return request.getfixturevalue("open_bucket")()


@pytest.fixture
def settings() -> Callable[..., ArtifactSettings]:
    """A function that makes the settings by which programs find a store."""
    return lambda **keys: ArtifactSettings(**keys)
