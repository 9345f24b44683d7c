"""Artifacts in an S3-compatible bucket, with local copies to map.

Objects have the names of the files of a `LocalStore` (`ab/abcd…`, `store.id`), so that a folder and a bucket can be
copied into each other. Bytes are hashed as they go out and as they come in; memory holds a few megabytes at a time.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError

from hanse.artifacts.bucket_access import BLOCK, connect, verified
from hanse.artifacts.bucket_errors import bucket_failure, is_missing
from hanse.artifacts.cache import ArtifactCache
from hanse.artifacts.credentials import MountedCredentials
from hanse.artifacts.files import link_or_copy, sweep_folder
from hanse.artifacts.location import S3Location
from hanse.artifacts.store import LEFTOVER_AGE, Artifact, Stored, digest_of, key_of, missing
from hanse.errors import HanseError, InvalidPayload, PlatformError, Unreachable
from hanse.payload.payload import Payload

PART = 8 * 1024 * 1024
MOST_PARTS = 9_000
PARTS_AT_ONCE = 4
PATIENCE = timedelta(seconds=10)
"""How long a request is tried again before it counts as failed: well below the lease of an assignment."""
IDENTITY = "store.id"
FRESH_S = LEFTOVER_AGE.total_seconds() / 2
_ATTEMPTS = 5
_NOTHING = object()

T = TypeVar("T")


class BucketStore:
    """Artifacts in a bucket. Several programs may use the same bucket and prefix at once."""

    def __init__(
        self,
        location: S3Location,
        *,
        cache: ArtifactCache,
        credentials: Path | None = None,
        read_only: bool = False,
        patience: timedelta = PATIENCE,
    ) -> None:
        """Reach the bucket; its identity is made if it has none, unless `read_only`.

        Raises:
            PlatformError: it cannot be reached or used; the sentence says why, the remedy names the setting.
        """
        self.location = location
        self._cache = cache
        self._patience = patience
        self._fetching: dict[bytes, threading.Lock] = {}
        self._lock = threading.Lock()
        self._credentials = MountedCredentials(credentials) if credentials is not None else None
        try:
            self._bucket = connect(location, self._credentials, patience)
        except BaseError as error:
            raise bucket_failure(error, location, "open") from error
        try:
            self._store_id = self._identity(make=not read_only)
        except Unreachable:
            if not read_only:
                raise
            self._store_id = ""  # whoever only looks can begin, and is told when there is something to look at

    @property
    def store_id(self) -> str:
        """Identity of the bucket and prefix, drawn at the first use; empty where it was only looked at."""
        return self._store_id

    @property
    def spool(self) -> Path:
        """The local folder for payloads on their way in."""
        return self._cache.spool

    def put(self, payload: Payload) -> Artifact:
        """Store a payload. One whose digest is known and present costs one question.

        Raises:
            PlatformError: the bucket cannot be written, or the local disk has no room.
        """
        if payload.digest_known and self._is_fresh(payload.digest):
            return Artifact(digest=payload.digest, size=payload.size)
        draft = self._cache.draft("put")
        try:
            return self._settle(draft, payload.write(draft))
        except OSError as error:
            raise self._cache.failure(error) from error
        finally:
            draft.unlink(missing_ok=True)

    def adopt(self, path: Path, digest: bytes, *, keep: bool = False) -> Artifact:
        """Store a verified file; the file becomes the local copy, or a second name for it with `keep`.

        Raises:
            InvalidPayload: the file is not what `digest` names (code `DIGEST_MISMATCH`).
            PlatformError: the bucket cannot be written, or the local disk has no room, or the file is gone.
        """
        draft = self._cache.draft("adopt")
        try:
            if keep:
                link_or_copy(path, draft)
            else:
                shutil.move(path, draft)
            return self._settle(draft, digest)
        except OSError as error:
            raise self._cache.failure(error) from error
        finally:
            draft.unlink(missing_ok=True)

    def open(self, digest: bytes) -> Payload:
        """Map the local copy, which is fetched first where there is none.

        Raises:
            NotFound: there is none of this digest.
            InvalidPayload: what lies there is damaged (code `DIGEST_MISMATCH`), or is no payload.
            PlatformError: the bucket cannot be read, or the local disk has no room.
        """
        return self._with_copy(digest, lambda path: Payload.open(path, digest=digest))

    def fetch_to(self, digest: bytes, path: Path) -> None:
        """Place a copy at a local path.

        Raises:
            NotFound: there is none of this digest.
            InvalidPayload: what lies there is damaged.
            PlatformError: the bucket cannot be read, or `path` cannot be written.
        """
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")

        def place(copy: Path) -> None:
            link_or_copy(copy, draft)
            draft.replace(path)

        try:
            self._with_copy(digest, place)
        finally:
            draft.unlink(missing_ok=True)

    def size(self, digest: bytes) -> int:
        """Bytes of an artifact.

        Raises:
            NotFound: there is none of this digest.
            PlatformError: the bucket cannot be read.
        """
        if (copy := self._cache.get(digest)) is not None:
            return copy.stat().st_size
        found = self._ask("read", lambda: obstore.head(self._bucket, key_of(digest)), absent=None)
        if found is None:
            raise missing(digest)
        return int(found["size"])

    def exists(self, digest: bytes) -> bool:
        """Whether an artifact is in the bucket.

        Raises:
            PlatformError: the bucket cannot be read.
        """
        return self._ask("read", lambda: obstore.head(self._bucket, key_of(digest)), absent=None) is not None

    def delete(self, digest: bytes) -> None:
        """Remove an artifact and its copy here; none is no error. Whoever has it mapped keeps reading it.

        Raises:
            PlatformError: the bucket cannot be written.
        """
        self._ask("delete", lambda: obstore.delete(self._bucket, key_of(digest)), absent=None)
        self._cache.drop(digest)

    def stored(self) -> Iterator[Stored]:
        """Every artifact in the bucket, a page at a time.

        Raises:
            PlatformError: the bucket cannot be read.
        """
        pages = iter(obstore.list(self._bucket))
        while (page := self._ask("list", lambda: next(pages, None), absent=None)) is not None:
            for item in page:
                if (digest := digest_of(item["path"].rpartition("/")[2])) is not None:
                    yield Stored(digest=digest, size=int(item["size"]), at=item["last_modified"].timestamp())

    def sweep(self, *, older_than: timedelta = LEFTOVER_AGE) -> int:
        """Remove what crashes left in the local spool and nobody touched since; returns how many files."""
        return sweep_folder(self.spool, older_than)

    def _is_fresh(self, digest: bytes) -> bool:
        """Whether it is there, and not so old that it could be taken for a leftover: then it is written again."""
        found = self._ask("read", lambda: obstore.head(self._bucket, key_of(digest)), absent=None)
        return found is not None and time.time() - found["last_modified"].timestamp() < FRESH_S

    def _settle(self, draft: Path, digest: bytes) -> Artifact:
        """Bring a whole local file into the bucket, and keep it as the copy."""
        size = draft.stat().st_size
        if not self._is_fresh(digest):
            part = max(PART, -(-size // MOST_PARTS))
            self._ask(
                "write",
                lambda: obstore.put(
                    self._bucket,
                    key_of(digest),
                    verified(draft, digest),
                    use_multipart=size > part,
                    chunk_size=part,
                    max_concurrency=PARTS_AT_ONCE,
                ),
            )
        self._cache.keep(draft, digest)
        return Artifact(digest=digest, size=size)

    def _with_copy(self, digest: bytes, use: Callable[[Path], T]) -> T:
        """Do something with the local copy. One that has to make room at that instant is fetched again."""
        try:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return use(self._copy(digest))
                except FileNotFoundError:
                    continue
            return use(self._copy(digest))
        except OSError as error:
            raise self._cache.failure(error) from error

    def _copy(self, digest: bytes) -> Path:
        """The local copy; threads that want the same artifact fetch it once."""
        with self._lock:
            turn = self._fetching.setdefault(digest, threading.Lock())
        try:
            with turn:
                return self._cache.get(digest) or self._fetch(digest)
        finally:
            with self._lock:
                self._fetching.pop(digest, None)

    def _fetch(self, digest: bytes) -> Path:
        draft = self._cache.draft("fetch")
        try:
            found = self._download(digest, draft)
            if found != digest:
                raise InvalidPayload(
                    f"artifact {digest.hex()[:16]}… in {self.location} is damaged: its SHA-256 is {found.hex()[:16]}….",
                    remedy="Restore the object from a backup of the bucket.",
                    code="DIGEST_MISMATCH",
                )
            return self._cache.keep(draft, digest)
        finally:
            draft.unlink(missing_ok=True)

    def _download(self, digest: bytes, target: Path) -> bytes:
        """Write the object to `target`; returns its SHA-256. One that breaks goes on at the byte, while any come."""
        hasher, key = hashlib.sha256(), key_of(digest)
        with target.open("wb") as file:

            def go_on() -> None:
                begin = file.tell()
                got = obstore.get(self._bucket, key, options={"range": {"offset": begin}} if begin else {})
                for block in got.stream(min_chunk_size=BLOCK):
                    file.write(block)
                    hasher.update(block)

            def to_the_end() -> bool:
                stalled = 0
                while True:
                    begin = file.tell()
                    try:
                        go_on()
                        return True
                    except GenericError:
                        stalled = 0 if file.tell() > begin else stalled + 1
                        if stalled == _ATTEMPTS:
                            raise
                        time.sleep(random.uniform(0.1, 0.5) * 2**stalled)  # noqa: S311 - so that not all come at once

            if not self._ask("read", to_the_end, absent=False):
                raise missing(digest)
        return hasher.digest()

    def _ask(self, action: str, call: Callable[[], Any], *, absent: Any = _NOTHING) -> Any:
        """Call the bucket; `absent` is what to return where the object is not there, if that is no error.

        Raises:
            PlatformError: in words.
        """
        try:
            return call()
        except HanseError:
            raise
        except (BaseError, FileNotFoundError, PermissionError, NotImplementedError) as error:
            if absent is not _NOTHING and is_missing(error):
                return absent
            if self._credentials is not None and self._credentials.fault is not None:
                raise self._credentials.fault from error
            raise bucket_failure(error, self.location, action) from error

    def _identity(self, *, make: bool) -> str:
        def read() -> str | None:
            found = self._ask("read", lambda: bytes(obstore.get(self._bucket, IDENTITY).bytes()), absent=None)
            return found.decode("ascii", "replace").strip() if found else None

        if (known := read()) is not None:
            return known
        if not make:
            return ""

        def draw() -> None:
            drawn = f"{secrets.token_hex(16)}\n".encode()
            try:
                obstore.put(self._bucket, IDENTITY, drawn, mode="create", use_multipart=False)
            except AlreadyExistsError:  # another program made it in the meantime: theirs counts
                return
            except NotImplementedError:  # a server without conditional writes
                obstore.put(self._bucket, IDENTITY, drawn, use_multipart=False)

        self._ask("write", draw)
        made = read()
        if made is None:
            raise PlatformError(
                f"{self.location} does not give back what was written there a moment ago.",
                remedy="Use a store that reads its own writes, as S3 does.",
                code="ARTIFACT_STORE",
            )
        return made
