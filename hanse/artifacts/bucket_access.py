"""How a bucket is reached, and bytes that are checked on their way there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.store import S3Store

from hanse.artifacts.credentials import MountedCredentials
from hanse.artifacts.location import S3Location
from hanse.errors import InvalidPayload

if TYPE_CHECKING:
    from obstore.store import S3Config

BLOCK = 1024 * 1024
"""Bytes that are read or written at a time."""
SILENCE = timedelta(minutes=1)
"""A server that says nothing for so long, be it after a whole part was sent, is given up."""
LONGEST = timedelta(hours=6)
"""Of one request: the download of a model over a slow line."""


def connect(location: S3Location, credentials: MountedCredentials | None, patience: timedelta) -> S3Store:
    """The bucket as obstore sees it; nothing is asked yet."""
    config: S3Config = {"virtual_hosted_style_request": not location.path_style}
    if location.region:
        config["region"] = location.region
    if location.endpoint:
        config["endpoint"] = location.endpoint if location.path_style else _hosted(location)
    return S3Store(
        location.bucket,
        prefix=location.prefix or None,
        config=config,
        client_options={
            "allow_http": location.plain_http,
            "connect_timeout": timedelta(seconds=min(10.0, patience.total_seconds())),
            "read_timeout": SILENCE,
            "timeout": LONGEST,
        },
        retry_config={"max_retries": 10, "retry_timeout": patience},
        credential_provider=credentials,
    )


def _hosted(location: S3Location) -> str:
    parts = urlsplit(location.endpoint)
    return f"{parts.scheme}://{location.bucket}.{parts.netloc}{parts.path}"


def verified(path: Path, digest: bytes) -> Iterator[bytes]:
    """The blocks of a file. At its end it must have been what `digest` names, or the upload does not come about.

    Raises:
        InvalidPayload: it was not.
    """
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
            yield block
    if hasher.digest() != digest:
        raise InvalidPayload(
            f"the file for artifact {digest.hex()[:16]}… has the SHA-256 {hasher.digest().hex()[:16]}….",
            remedy="It was altered on this machine's disk; it is not stored.",
            code="DIGEST_MISMATCH",
        )
