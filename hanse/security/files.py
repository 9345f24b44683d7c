"""Files that hold secrets: written whole or not at all, readable by their owner alone.

A write goes to a temporary file beside the target, is flushed to the disk, and takes the target's name in
one step, so that a reader (or a process that was killed) never sees half a key.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from hanse.errors import Conflict, PlatformError, SiteError

PRIVATE_FILE = 0o600
PUBLIC_FILE = 0o644
PRIVATE_FOLDER = 0o700

_FILE_SOURCE = "file:"


def write_atomically(path: Path, data: bytes, *, mode: int = PRIVATE_FILE, overwrite: bool = True) -> None:
    """Write `data` to `path` in one step, with `mode` whatever the umask; make the folder (0700) if need be.

    Raises:
        Conflict: `overwrite` is false and the file exists; two writers at once cannot both succeed.
        PlatformError: the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        try:
            _write_synced(temporary, data, mode)
            if overwrite:
                temporary.replace(path)
            else:
                os.link(temporary, path)  # unlike a rename, it fails if the name is taken
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except FileExistsError as error:
        raise Conflict(
            f"{path} exists already and is not overwritten.",
            remedy="Choose another path, or move the file away first.",
            code="FILE_EXISTS",
        ) from error
    except OSError as error:
        raise PlatformError(
            f"{path} cannot be written: {error.strerror or error}.",
            remedy="Check free space and permissions of the folder.",
            code="FILE_NOT_WRITTEN",
        ) from error


def read_secret(source: str, *, what: str, limit: int) -> str:
    """The text behind `source`: `file:PATH` (a file), `-` (standard input), or the text itself.

    A secret given as itself is seen by everybody who can list processes on the machine: offer `file:` and `-`
    first. At most `limit` bytes are read; `what` names the thing in errors, which never quote the secret.

    Raises:
        SiteError: the file cannot be read, or the text is empty, longer than `limit`, or no text.
    """
    if source == "-":
        data, origin = sys.stdin.buffer.read(limit + 1), "standard input"
    elif source.startswith(_FILE_SOURCE):
        path = Path(source.removeprefix(_FILE_SOURCE)).expanduser()
        origin = str(path)
        try:
            with path.open("rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise SiteError(
                f"The {what} cannot be read from {path}: {error.strerror or error}.",
                remedy="Check the path and its permissions.",
                code="SECRET_NOT_READ",
            ) from error
    else:
        data, origin = source.encode(errors="replace")[: limit + 1], "the command line"
    if len(data) > limit:
        raise SiteError(
            f"The {what} from {origin} is longer than {limit} bytes.",
            remedy=f"Check that {origin} holds the {what} and nothing else.",
            code="SECRET_TOO_LONG",
        )
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise SiteError(
            f"The {what} from {origin} is not text.",
            remedy=f"Check that {origin} holds the {what} and nothing else.",
            code="SECRET_NOT_TEXT",
        ) from error
    if not text:
        raise SiteError(
            f"The {what} from {origin} is empty.",
            remedy=f"Give the {what} as `file:PATH`, or `-` for standard input.",
            code="SECRET_EMPTY",
        )
    return text


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
