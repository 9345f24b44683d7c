"""Pages of a list: by key, never by offset, so that the thousandth page costs what the first does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from pydantic import PlainSerializer

from hanse.errors import OperatorError
from hanse_dashboard.words import iso

__all__ = ["Instant", "Moment", "Page", "every_row", "page_of", "split_cursor"]

T = TypeVar("T")

Instant = Annotated[float, PlainSerializer(iso, return_type=str | None, when_used="always")]
"""Seconds since 1970; ISO 8601 in JSON and CSV."""
Moment = Annotated[float | None, PlainSerializer(iso, return_type=str | None, when_used="always")]
"""The same, or never."""


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """Some rows, and where the next ones begin."""

    rows: Sequence[T]
    next: str
    """Give it as `after` to get the next page; empty: there is none."""


def page_of(rows: Sequence[T], limit: int, cursor: Callable[[T], str]) -> Page[T]:
    """A page from up to `limit` + 1 rows."""
    shown = rows[:limit]
    return Page(rows=shown, next=cursor(shown[-1]) if len(rows) > limit else "")


def every_row(read: Callable[[str], Page[T]], *, most: int) -> Iterator[T]:
    """The rows of all pages, one page at a time, up to `most`."""
    after, given = "", 0
    while given < most:
        page = read(after)
        yield from page.rows[: most - given]
        given += len(page.rows)
        after = page.next
        if not after:
            return


def split_cursor(after: str) -> tuple[float, str]:
    """The instant and the id in a cursor `INSTANT~ID`.

    Raises:
        OperatorError: it is no such cursor.
    """
    at, _, key = after.partition("~")
    try:
        return float(at), key
    except ValueError:
        raise OperatorError(
            f"“{after[:60]}” is not a place in this list.",
            remedy="Use the `next` of an earlier answer, or leave `after` out.",
            code="INVALID_CURSOR",
        ) from None
