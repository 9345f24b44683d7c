"""Control messages as data for `--json` and as words for people."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hanse.cli.output import printable

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from hanse.v1 import payload_pb2

# Seconds since 1970; zero means "never". In JSON they are ISO 8601 with the offset, or null.
_TIMES = frozenset(
    "at since submitted_at ended_at opened_at closed_at deadline_at last_seen certificate_expires expires_at "
    "created_at revoked_at".split()
)
# JSON documents that travel as bytes.
_DOCUMENTS = frozenset({"specification", "body"})
# A negative number means "unknown".
_UNKNOWN_BELOW_ZERO = frozenset({"seconds_left", "fraction"})
# Sub-messages that are null when they say nothing.
_OPTIONAL = frozenset({"Reason", "Phase"})


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON values: every field is there, bytes are hex, times ISO 8601, unknown is null."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if isinstance(value, str | bytes | int | float):
        return _scalar(field.name, value)
    if hasattr(value, "DESCRIPTOR"):
        if value.DESCRIPTOR.name in _OPTIONAL and not message.HasField(field.name):
            return None
        return plain(value)
    return [plain(item) if hasattr(item, "DESCRIPTOR") else _scalar(field.name, item) for item in value]


def _scalar(name: str, value: Any) -> Any:
    if name in _TIMES and isinstance(value, float):
        return iso(value)
    if isinstance(value, bytes):
        return _document(value) if name in _DOCUMENTS else value.hex()
    if isinstance(value, float) and (not math.isfinite(value) or (name in _UNKNOWN_BELOW_ZERO and value < 0)):
        return None
    return value


def _document(value: bytes) -> Any:
    try:
        return json.loads(value) if value else None
    except ValueError:
        return value.decode(errors="replace")


def iso(seconds: float) -> str | None:
    """A moment for programs; None for never."""
    if seconds <= 0:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def moment(seconds: float) -> str:
    """A moment for people, in UTC; empty for never."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC" if seconds > 0 else ""


def span(seconds: float) -> str:
    """A length of time in at most two units: `42 s`, `3 min 05 s`, `2 h 10 min`, `4 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def amount(size: float) -> str:
    """Bytes in the unit that fits: `812 B`, `1.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def because(reason: payload_pb2.Reason) -> str:
    """A reason as one line with the one who can mend it; empty when there is none."""
    if not reason.sentence and not reason.code:
        return ""
    text = f"{reason.sentence} {reason.remedy}".strip() or reason.code
    return printable(f"{text} [{reason.owner or 'platform'}: {reason.code}]")
