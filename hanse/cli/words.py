"""Reading what people type: durations and `key=value` pairs."""

from __future__ import annotations

from hanse.cli.output import UsageError
from hanse.settings import parse_duration


def duration(text: str, flag: str) -> float:
    """Seconds of `30s`, `24h`, `7d`.

    Raises:
        UsageError: it is no duration, or not above zero.
    """
    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"{flag}: {error}.") from None
    if seconds <= 0:
        raise UsageError(f"{flag}: '{text}' is not above zero.")
    return seconds


def pairs(texts: list[str], flag: str) -> dict[str, str]:
    """`["kind=wearable", …]` as a mapping.

    Raises:
        UsageError: one of them is not `key=value`, or a key stands twice.
    """
    result: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{flag}: '{text}' is not of the form key=value.")
        if key in result:
            raise UsageError(f"{flag}: '{key}' is given twice.")
        result[key] = value
    return result
