"""A log file that does not grow without end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

LARGEST = 10_000_000
"""Bytes of one file; then it becomes `NAME.1`, the former `NAME.1` becomes `NAME.2`, the oldest goes."""
KEPT = 3


class LogFile:
    """Lines into a file of mode 0600, rotated by size. A full disk costs log lines, never the program."""

    def __init__(self, path: Path, *, largest: int = LARGEST, kept: int = KEPT) -> None:
        self._path = path
        self._largest = largest
        self._kept = kept
        self._lock = threading.Lock()
        self._file = self._open()

    def write(self, line: str) -> None:
        """Append a line."""
        data = line.encode() + b"\n"
        with self._lock:
            if self._file.closed:
                return
            try:
                if self._file.tell() + len(data) > self._largest and self._file.tell():
                    self._rotate()
                self._file.write(data)
                self._file.flush()
            except OSError:
                return

    def close(self) -> None:
        """No more lines."""
        with self._lock:
            self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._kept - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        self._file = self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> BinaryIO:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        file = self._path.open("ab")
        file.seek(0, 2)
        return file
