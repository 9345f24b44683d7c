"""Lists as JSON pages or as CSV files, from the same rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter
from starlette.responses import StreamingResponse

from hanse.logs import logger
from hanse_dashboard.access import Caller
from hanse_dashboard.queries.paging import Page, every_row

__all__ = ["AS_FILE", "Format", "csv_file", "plain", "safe", "whole_list"]


AS_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "The rows, as JSON or as a file."}
}
"""What a list's answer may be, for the document that describes the API."""


class Format(StrEnum):
    """How a list is answered."""

    JSON = "json"
    CSV = "csv"


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(row: type[Any]) -> TypeAdapter[Any]:
    if row not in _ADAPTERS:
        _ADAPTERS[row] = TypeAdapter(row)
    return _ADAPTERS[row]


def plain(row: Any) -> dict[str, Any]:
    """A row as JSON values; the same as the API's documents."""
    found: dict[str, Any] = row if isinstance(row, dict) else _adapter(type(row)).dump_python(row, mode="json")
    return found


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping) and key in ("reason", "metric"):
            yield from _flat(value, f"{key}_")
        elif isinstance(value, Mapping | list):
            yield prefix + key, json.dumps(value, separators=(",", ":"))
        else:
            yield prefix + key, safe(value)


def safe(value: Any) -> Any:
    """What a spreadsheet would take for a formula is kept as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "@", "\t", "\r") else value


def csv_file(rows: Iterable[Any], name: str, columns: list[str] | None = None) -> StreamingResponse:
    """Rows as a file. Columns are those of the first row that has them all, unless given."""

    def lines() -> Iterator[str]:
        buffer = io.StringIO()
        writer: csv.DictWriter[str] | None = None
        if columns is not None:
            writer = csv.DictWriter(buffer, columns, extrasaction="ignore")
            writer.writeheader()
        for row in rows:
            document = dict(_flat(plain(row)))
            if writer is None:
                writer = csv.DictWriter(buffer, list(document), extrasaction="ignore")
                writer.writeheader()
            writer.writerow(document)
            if buffer.tell() > 32_768:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
        yield buffer.getvalue()

    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(lines(), media_type="text/csv; charset=utf-8", headers=headers)


def whole_list(
    read: Callable[[str], Page[Any]], name: str, caller: Caller, *, most: int, columns: list[str] | None = None
) -> StreamingResponse:
    """A list as a file, page after page; who took it stands in the log."""
    logger().info("export", table=name, token=caller.token.token_id, name=caller.name)
    return csv_file(every_row(read, most=most), name, columns)
