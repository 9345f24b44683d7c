"""Files that artifacts pass through on their way."""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from hanse.errors import PlatformError


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for the same bytes, or a copy where the disk has no links.

    Raises:
        FileNotFoundError: there is no `source`.
        OSError: `target` cannot be written.
    """
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def sweep_folder(folder: Path, older_than: timedelta) -> int:
    """Remove the files below `folder` that nobody touched for so long, and empty folders; returns how many files."""
    oldest, removed = time.time() - older_than.total_seconds(), 0
    for entry in sorted(folder.rglob("*"), reverse=True):  # what a folder holds comes before the folder
        with suppress(FileNotFoundError):
            if entry.is_dir():
                with suppress(OSError):  # not empty
                    entry.rmdir()
            elif entry.stat().st_mtime < oldest:
                entry.unlink()
                removed += 1
    return removed


def disk_failure(error: OSError, place: str) -> PlatformError:
    """What a person is told of a fault of the disk under `place` (`artifact folder /var/…`)."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PlatformError(f"the disk of the {place} is full.", remedy="Free some space there.", code="DISK_FULL")
    return PlatformError(
        f"the {place} cannot be used: {error.strerror or error}.",
        remedy="Check the disk and the permissions of the folder.",
        code="ARTIFACT_STORE",
    )
