"""Where a program's artifacts are, as its settings say it: a folder, or `s3://bucket/prefix?endpoint=…`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field

from hanse.artifacts.local import LocalStore
from hanse.artifacts.store import ArtifactStore
from hanse.errors import OperatorError
from hanse.settings import Settings, Size

SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/-]*")
_KEYS = ("endpoint", "region", "path_style", "plain_http")
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class S3Location:
    """A bucket, and how its server is reached.

    Written `s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=NAME&path_style=true&plain_http=true`; all but the
    bucket may be left out. Credentials never stand here.
    """

    bucket: str
    prefix: str = ""
    """Artifacts lie below it; empty: at the root of the bucket."""
    endpoint: str = ""
    """The server's address; empty: Amazon's own for the region."""
    region: str = ""
    """Empty: `AWS_REGION`, else `us-east-1`."""
    path_style: bool = False
    """The bucket stands in the path, not in the host name; the default wherever there is an endpoint."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it.

        Raises:
            ValueError: it is not of that form; the sentence names the part.
        """
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(set(options) - set(_KEYS)):
            raise ValueError(f"unknown option '{unknown[0]}' of an s3:// address (known: {', '.join(_KEYS)})")
        if "@" in parts.netloc:
            raise ValueError("an s3:// address must not carry credentials; see artifact_credentials")
        if not _BUCKET.fullmatch(parts.netloc):
            raise ValueError(f"'{parts.netloc[:80]}' is not the name of a bucket; write s3://bucket/prefix")
        prefix = parts.path.strip("/")
        if not _PREFIX.fullmatch(prefix) or parts.fragment:
            raise ValueError(f"'{prefix[:80]}' is not a prefix of object names; use letters, digits, - _ . and /")
        endpoint = _endpoint(options.get("endpoint", ""), plain_http=_flag(options, "plain_http", default=False))
        return cls(
            bucket=parts.netloc,
            prefix=prefix,
            endpoint=endpoint,
            region=options.get("region", ""),
            path_style=_flag(options, "path_style", default=bool(endpoint)),
        )

    @property
    def plain_http(self) -> bool:
        """Whether the bytes travel without TLS."""
        return self.endpoint.startswith("http://")

    def __str__(self) -> str:
        """The bucket and its server, for messages."""
        place = f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")
        return f"{place} at {self.endpoint}" if self.endpoint else place


def _flag(options: dict[str, str], key: str, *, default: bool) -> bool:
    if key not in options:
        return default
    if options[key] not in _WORDS:
        raise ValueError(f"{key}={options[key][:40]} is neither true nor false")
    return _WORDS[options[key]]


def _endpoint(text: str, *, plain_http: bool) -> str:
    if not text:
        if plain_http:
            raise ValueError("plain_http=true needs an endpoint")
        return ""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in parts.netloc:
        raise ValueError(f"endpoint '{text[:80]}' is not an address; write it as https://host:port")
    if (parts.scheme == "http") is not plain_http:
        raise ValueError(
            f"endpoint {text[:80]} would send every model unencrypted; write https://, or add plain_http=true where "
            "the network is trusted"
            if parts.scheme == "http"
            else f"plain_http=true contradicts the endpoint {text[:80]}"
        )
    return text.rstrip("/")


def _location(text: str) -> str:
    if text.startswith(SCHEME):
        S3Location.parse(text)
    elif "://" in text:
        raise ValueError(f"'{text[:80]}' is neither a folder nor an s3:// address")
    return text


class ArtifactSettings(Settings):
    """The keys by which every program finds the artifact store."""

    artifacts: Annotated[str, AfterValidator(_location)] = ""
    """The artifact store: a folder, or `s3://bucket/prefix?endpoint=https://host:port&region=…&path_style=true`."""
    artifact_credentials: Path | None = None
    """Folder with the files `access_key_id`, `secret_access_key` and, if there is one, `session_token` (a mounted
    secret; read again when it changes). Default: the usual `AWS_…` variables."""
    artifact_cache: Path | None = None
    """Folder for copies of what lies in a bucket."""
    artifact_cache_size: Size = Field(10 * 10**9, ge=1)
    """Copies are kept up to so many bytes; the newest always is."""


def open_store(
    settings: ArtifactSettings, *, default: Path | None = None, cache: Path, read_only: bool = False
) -> ArtifactStore | None:
    """The store that the settings name; without a name the folder `default`, or none.

    `cache` is where copies go unless the settings say it. `read_only` is for programs that only look: nothing is
    made, and a store without artifacts is no error.

    Raises:
        OperatorError: the library for buckets is not installed.
        PlatformError: the store cannot be reached or used; the sentence says which and why.
    """
    if not settings.artifacts.startswith(SCHEME):
        folder = Path(settings.artifacts) if settings.artifacts else default
        return LocalStore(folder) if folder is not None else None
    try:
        from hanse.artifacts.bucket import BucketStore
        from hanse.artifacts.cache import ArtifactCache
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise OperatorError(
            f"artifacts: {settings.artifacts.partition('?')[0]} needs the Python package obstore, which is missing.",
            remedy="Install it: pip install 'hanse[s3]'",
            code="NOT_INSTALLED",
        ) from None
    return BucketStore(
        S3Location.parse(settings.artifacts),
        cache=ArtifactCache(settings.artifact_cache or cache, settings.artifact_cache_size),
        credentials=settings.artifact_credentials,
        read_only=read_only,
    )
