"""Fetching a model and laying its files down."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hanse.errors import Conflict, InvalidPayload, NotFound
from hanse.payload import Payload
from hanse.security import write_atomically
from hanse.v1 import control_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hanse.cli.connection import Control

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIGEST_FACT = 32


@dataclass(frozen=True, kw_only=True)
class Model:
    """A job's model: named files, and the digest of the payload that they came in."""

    job_id: str
    job_name: str
    digest: bytes
    files: Mapping[str, bytes]


def fetch_model(control: Control, job: str, *, format: str = "") -> Model:  # noqa: A002 - as in the contract
    """Download and verify.

    Raises:
        NotFound: the job has no model yet.
        InvalidPayload: the bytes are not those that the ledger names.
    """
    detail = control.call("GetJob", control_pb2.GetJobRequest(job=job))
    if not detail.model_digest:
        raise NotFound(
            f"Job {detail.job.id} has no model yet; it is {detail.job.state}.",
            remedy=f"Watch it: hanse job watch {detail.job.id}",
            code="NO_MODEL",
        )
    image = receive(control.stream("PullModel", control_pb2.PullModelRequest(job=detail.job.id, format=format)))
    payload = Payload.from_image(image)
    if not format and payload.digest.hex() != detail.model_digest:
        raise InvalidPayload(
            f"The model that arrived has SHA-256 {payload.digest.hex()}, the ledger says {detail.model_digest}.",
            remedy="Pull it again, and verify the ledger: hanse ledger verify",
            code="DIGEST_MISMATCH",
        )
    return Model(job_id=detail.job.id, job_name=detail.job.name, digest=payload.digest, files=files_of(payload))


def receive(chunks: Iterable[Any]) -> bytes:
    """Put chunks together; offsets must be without gap, and the last chunk's digest must be that of the bytes.

    Raises:
        InvalidPayload: they do not fit together.
    """
    image, digest = bytearray(), b""
    for chunk in chunks:
        if chunk.offset != len(image):
            raise InvalidPayload(
                f"A chunk begins at byte {chunk.offset} instead of {len(image)}.", remedy="Pull it again."
            )
        image += chunk.data
        digest = chunk.digest
    if len(digest) != _DIGEST_FACT or hashlib.sha256(image).digest() != digest:
        raise InvalidPayload("The download is not complete or was altered on the way.", remedy="Pull it again.")
    return bytes(image)


def files_of(payload: Payload) -> dict[str, bytes]:
    """The files in a model payload: each uint8 array is one.

    Raises:
        InvalidPayload: it is no model of files, or a name could lead out of the folder.
    """
    if payload.kind != "opaque":
        raise InvalidPayload(f"A model must be of kind opaque, not {payload.kind}.")
    files = {}
    for name, array in payload.arrays.items():
        if not _SAFE_NAME.fullmatch(name):
            raise InvalidPayload(f"The model holds a file with the unsafe name {name[:100]!r}; nothing was written.")
        if array.dtype != np.uint8:
            raise InvalidPayload(f"The model's array '{name}' is {array.dtype}, not the bytes of a file.")
        files[name] = array.tobytes()
    if not files:
        raise InvalidPayload("The model holds no file.")
    return files


def write_files(files: Mapping[str, bytes], target: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the files into the folder `target`, or the only one to `target` itself when that names a file.

    Raises:
        Conflict: a file exists and `overwrite` is false; nothing was written.
    """
    single = len(files) == 1 and bool(target.suffix) and not target.is_dir()
    if target.is_file() and not single:
        raise Conflict(f"{target} is a file, and the model has {len(files)}.", remedy="Name a folder with -o.")
    paths = {target if single else target / name: data for name, data in files.items()}
    for path in paths:
        if path.exists() and not overwrite:
            raise Conflict(
                f"{path} exists already.", remedy="Choose another place with -o, or give --force.", code="FILE_EXISTS"
            )
    for path, data in paths.items():
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        write_atomically(path, data, mode=0o644, overwrite=overwrite)
    return list(paths)
