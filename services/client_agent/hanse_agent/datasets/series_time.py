"""Local clocks and regular grids: what a site's timestamps mean, and where they lie on a grid of steps.

Times are whole seconds since 1970, UTC, in int64; local wall clock times are the same numbers read off a clock on the
wall. Without a time zone a site's stamps are taken as they are, as if its clock never changed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from hanse.errors import SiteError
from hanse.learning.arrays import Int64

__all__ = ["MISSING", "check_zone", "read_times", "to_utc", "week_minutes"]

MISSING = np.iinfo(np.int64).min
"""The place of a time that is not there."""
_OFFSET = re.compile(r"[T ]\d{2}:\d{2}.*[+-]\d{2}:?\d{2}$")
_HALF_HOUR = 1800
_MONDAY = 4 * 24 * 3600  # 1970-01-05


def check_zone(name: str) -> str:
    """A time zone's name, for a validator.

    Raises:
        ValueError: no such zone.
    """
    if name:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"{name!r} is no time zone; write it like Europe/Berlin") from error
    return name


def read_times(column: NDArray[Any], where: str) -> tuple[Int64, bool]:
    """A column of timestamps as seconds, and whether they name their offset from UTC: ISO text, or what Parquet and
    Arrow hold as timestamps.

    Raises:
        SiteError: a value that is no time, or offsets in some rows alone; the sentence names column and row.
    """
    if column.dtype.kind == "M":
        return column.astype("datetime64[s]").astype(np.int64), False
    if column.dtype.kind in "iufb":
        raise SiteError(
            f"{where} holds numbers, not times.",
            code="TIME_UNREADABLE",
            remedy="Write times like 2026-01-31T08:00 (ISO 8601).",
        )
    texts = ["" if value is None else str(value).strip() for value in column]
    if not any(text.endswith("Z") or _OFFSET.search(text) for text in texts):
        with suppress(ValueError):
            return np.array([text or "NaT" for text in texts], dtype="datetime64[s]").astype(np.int64), False
    read = [_one(text, row, where) for row, text in enumerate(texts, start=1)]
    aware = {absolute for text, (_, absolute) in zip(texts, read, strict=True) if text}
    if len(aware) > 1:
        odd = next(row for row, (_, absolute) in enumerate(read, start=1) if absolute != read[0][1])
        raise SiteError(
            f"{where} names an offset from UTC in some rows and none in others: see row {odd}.",
            code="TIME_UNREADABLE",
            remedy="Write all times in one way.",
        )
    return np.array([seconds for seconds, _ in read], dtype=np.int64), aware == {True}


def to_utc(local: Int64, zone: str, *, fold: NDArray[np.bool_] | None = None) -> tuple[Int64, NDArray[np.bool_]]:
    """Local wall clock seconds as UTC, and which of them are in an hour that the clock shows twice.

    `fold`: which mean the second one [n]. A time that the clock never shows (in spring) is read as if it had not been
    put forward, which is an hour later by the new clock.
    """
    if not zone:
        return local, np.zeros(len(local), dtype=np.bool_)
    known = ZoneInfo(zone)
    slots, place = np.unique(local // _HALF_HOUR, return_inverse=True)
    first = np.empty(len(slots), dtype=np.int64)
    second = np.empty(len(slots), dtype=np.int64)
    for i, slot in enumerate(slots.tolist()):
        if slot == MISSING // _HALF_HOUR:
            first[i] = second[i] = 0
            continue
        wall = datetime.fromtimestamp(slot * _HALF_HOUR, UTC).replace(tzinfo=None)
        first[i] = _offset(wall.replace(tzinfo=known, fold=0))
        second[i] = _offset(wall.replace(tzinfo=known, fold=1))
    twice: NDArray[np.bool_] = (first > second)[place]
    offset = first[place]
    if fold is not None:
        offset = np.where(fold & twice, second[place], offset)
    return np.where(local == MISSING, MISSING, local - offset), twice


def week_minutes(utc: Int64, zone: str) -> Int64:
    """The local minute of the week of UTC seconds; Monday 00:00 is 0."""
    local = utc
    if zone:
        known = ZoneInfo(zone)
        slots, place = np.unique(utc // _HALF_HOUR, return_inverse=True)
        offsets = np.array([_offset(datetime.fromtimestamp(slot * _HALF_HOUR, known)) for slot in slots.tolist()])
        local = utc + offsets.astype(np.int64)[place]
    minutes: Int64 = (local - _MONDAY) // 60 % (7 * 24 * 60)
    return minutes


def _offset(moment: datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _one(text: str, row: int, where: str) -> tuple[int, bool]:
    """One timestamp as text, and whether it names its offset."""
    if not text:
        return int(MISSING), False
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SiteError(
            f"{where} holds {text[:40]!r} in row {row}, which is no time.",
            code="TIME_UNREADABLE",
            remedy="Write times like 2026-01-31T08:00 (ISO 8601).",
        ) from error
    absolute = moment.tzinfo is not None
    return int((moment if absolute else moment.replace(tzinfo=UTC)).timestamp()), absolute
