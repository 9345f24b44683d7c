"""Files of the state folder: written whole or not at all, and appended to so that a crash costs one line at most."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hanse.errors import OperatorError

PRIVATE = 0o600
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def safe_name(identifier: str) -> str:
    """An identifier from the wire, if it may name a file here.

    Raises:
        OperatorError: it may not.
    """
    if not _SAFE.fullmatch(identifier):
        raise OperatorError(f"{identifier[:80]!r} is not an identifier of a job or assignment.", code="INVALID_NAME")
    return identifier


def write_json(path: Path, document: Any, *, sync: bool = True) -> None:
    """Replace a JSON file in one step; with `sync` it survives a power cut too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if sync:
        sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None when it is missing, cut or no object."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def append_line(path: Path, document: Any) -> None:
    """Append one JSON line and flush it to the disk. A torn last line of an earlier crash is closed first."""
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync_folder(path.parent)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines, oldest first. Torn lines are passed over: they never took effect."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict):
                yield document


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries (new names, renames) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush a file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path, *, leave_out: Path | None = None) -> None:
    """Flush everything below a folder to the disk, leaves first; the content of one file may be left out."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            if Path(folder, name) != leave_out:
                sync_file(Path(folder, name))
        sync_folder(Path(folder))


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there. A folder vanishes in one step, before its content is deleted."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(f".{path.name}.deleted")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
