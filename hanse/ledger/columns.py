"""Columns to records, and values to columns: decided once for each record class, from its types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from hanse.errors import Reason
from hanse.ledger import records

R = TypeVar("R")
_Decoder = Callable[[Any], Any]


def _decoder(hint: Any) -> _Decoder | None:
    """How a column becomes a field of that type; None: it is one already."""
    if isinstance(hint, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return tuple
    if hint is Reason:
        return records.reason_from_json
    return hint if isinstance(hint, type) and issubclass(hint, StrEnum) else None


def _decoders(record: type[Any]) -> dict[str, _Decoder]:
    hints = get_type_hints(record)
    found = {f.name: _decoder(hints[f.name]) for f in dataclasses.fields(record)}
    return {name: decode for name, decode in found.items() if decode is not None}


_RECORDS = [found for found in vars(records).values() if dataclasses.is_dataclass(found) and isinstance(found, type)]
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    record: tuple(f.name for f in dataclasses.fields(record)) for record in _RECORDS
}
_DECODERS: dict[type[Any], dict[str, _Decoder]] = {record: _decoders(record) for record in _RECORDS}


def field_names(record: type[Any]) -> tuple[str, ...]:
    """The columns of a record, in order."""
    return _FIELDS[record]


def from_row(record: type[R], row: Sequence[Any]) -> R:
    """A record from a row that has the record's columns in order."""
    values = dict(zip(_FIELDS[record], row, strict=True))
    for name, decode in _DECODERS[record].items():
        if values[name] is not None:
            values[name] = decode(values[name])
    return record(**values)


def to_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the columns take them: reasons as JSON, words as text, sequences as lists."""
    columns: dict[str, Any] = {}
    for name, value in values.items():
        match value:
            case Reason():
                columns[name] = records.reason_to_json(value)
            case StrEnum():
                columns[name] = value.value
            case tuple():
                columns[name] = list(value)
            case Mapping():
                columns[name] = dict(value)
            case _:
                columns[name] = value
    return columns
