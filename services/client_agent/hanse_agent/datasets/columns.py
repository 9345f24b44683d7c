"""What a file of columns is, and what is said when a column is not there or holds something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hanse.errors import SiteError

NUMERIC = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
TEXT = "text"
OTHER = "other"
INSTANT = "instant"
"""A point in time whose offset from UTC is known."""


class Source(Protocol):
    """A file of columns of equal length."""

    @property
    def rows(self) -> int:
        """Number of rows in the file."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Name and type of each column: a NumPy number type, `text`, `instant`, or `other`."""

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """The asked columns, each of shape [rows]: numbers, or objects for text (None where missing)."""

    def numbers(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """The asked numeric columns side by side, float32 [rows, names]; NaN where missing."""


def require_columns(path: Path, source: Source, names: Iterable[str], *, numeric: Iterable[str] = ()) -> None:
    """Check that a source has columns, and that some of them hold numbers.

    Raises:
        SiteError: as `no_column` and `not_a_number` say.
    """
    numbers = tuple(numeric)
    for name in (*names, *numbers):
        if name not in source.columns:
            raise no_column(path, source, name)
    for name in numbers:
        if source.columns[name] not in NUMERIC:
            raise not_a_number(path, source, name)


def no_column(path: Path, source: Source, name: str) -> SiteError:
    """The error that a column is not there; it tells which are."""
    known = ", ".join(list(source.columns)[:20]) + (" …" if len(source.columns) > 20 else "")
    return SiteError(
        f"{path} has no column '{name}' (it has: {known}).",
        code="COLUMN_MISSING",
        remedy="Check the dataset's columns in agent.yaml.",
    )


def not_a_number(path: Path, source: Source, name: str) -> SiteError:
    """The error that a column holds something else than numbers; it tells the first row that does."""
    where = ""
    if source.columns[name] == TEXT:
        for row, value in enumerate(source.read([name])[name], start=1):
            if value is not None and not _is_number(value):
                where = f": row {row} holds {value[:40]!r}"
                break
    return SiteError(
        f"The column '{name}' of {path} is not numeric{where}.",
        code="COLUMN_NOT_NUMERIC",
        remedy="Correct the file, or leave the column out of the dataset's block in agent.yaml.",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def unreadable(path: Path, error: Exception) -> SiteError:
    """The error that a file is not what its suffix says, or is broken."""
    return SiteError(
        f"The file {path} cannot be read: {' '.join(str(error).split())[:300]}",
        code="DATA_UNREADABLE",
        remedy="Check that it is whole and of the format that its suffix says.",
    )
