"""What every command says the same way: answers, errors, exit codes, tables.

Standard output carries data alone: text for people, or with `--json` one envelope
`{"ok", "command", "data", "error"}`. Progress and errors go to standard error, one clear line each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TextIO

from hanse.errors import Forbidden, HanseError, OperatorError, PlatformError, Reason, Unauthenticated, Unreachable


class Exit(IntEnum):
    """What the shell sees."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    ACCESS = 4
    UNSUCCESSFUL = 5
    """The job that was waited for ended without success."""
    TIMEOUT = 6
    """The wait ran out; what was waited for goes on."""
    UNREACHABLE = 7


class UsageError(OperatorError):
    """The command line itself is wrong, or an answer is missing that only a flag can give here."""

    default_code = "USAGE"


class Cancelled(OperatorError):
    """The person at the keyboard said no, or stopped the command."""

    default_code = "CANCELLED"


class WaitTimeout(PlatformError):
    """`--timeout` ran out before what was waited for happened."""

    default_code = "WAIT_TIMEOUT"


_EXITS: tuple[tuple[type[HanseError], Exit], ...] = (
    (UsageError, Exit.USAGE),
    (Cancelled, Exit.CANCELLED),
    (WaitTimeout, Exit.TIMEOUT),
    (Unauthenticated, Exit.ACCESS),
    (Forbidden, Exit.ACCESS),
    (Unreachable, Exit.UNREACHABLE),
)


def exit_for(error: HanseError) -> Exit:
    """The exit code that tells a script what kind of failure this is."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.FAILED)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command found out: `data` for programs, `text` for people.

    An answer can carry a reason why it is not plain success (a job that failed, a ledger that is not whole):
    the data is shown all the same, and `exit_code` tells the shell.
    """

    data: Any
    text: str
    reason: Reason | None = None
    exit_code: Exit = Exit.OK
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further keys at the top level of the envelope."""


def envelope(
    command: str, data: Any = None, *, reason: Reason | None = None, ok: bool | None = None, **extra: Any
) -> dict[str, Any]:
    """The one form of every `--json` answer."""
    error = None
    if reason is not None:
        error = {
            "code": reason.code,
            "sentence": reason.sentence,
            "owner": reason.owner.value,
            "remedy": reason.remedy,
        }
    return {"ok": error is None if ok is None else ok, "command": command, "data": data, "error": error, **extra}


def write_envelope(document: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """One JSON object on standard output. Numbers that JSON does not know (NaN) are a fault of ours."""
    (stream or sys.stdout).write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    (stream or sys.stdout).flush()


def error_line(reason: Reason, program: str = "hanse") -> str:
    """An error as one line: what failed, what to do, and the code to search for."""
    return f"{program}: {' '.join(str(reason).split())} [{reason.code}]"


def colour_allowed(stream: TextIO) -> bool:
    """Whether colour helps: a terminal, and nobody said NO_COLOR."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


_TONES = {
    "succeeded": "32", "online": "32", "approved": "32", "running": "36", "waiting": "33", "paused": "33",
    "pending": "33", "late": "33", "failed": "31", "revoked": "31", "offline": "31", "cancelled": "35",
}  # fmt: skip


def tone(word: str) -> str:
    """A state's word, coloured where colour is allowed. The word is always there."""
    code = _TONES.get(word)
    return f"\x1b[{code}m{word}\x1b[0m" if code and colour_allowed(sys.stdout) else word


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> str:
    """Columns under headings; `empty` is what to say when there are no rows."""
    if not rows:
        return empty
    plain = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in (list(headings), *plain)) for i in range(len(headings))]
    lines = ["  ".join(heading.ljust(width) for heading, width in zip(headings, widths, strict=True)).rstrip()]
    for row, shown in zip(rows, plain, strict=True):
        padded = (cell + " " * (width - len(text)) for cell, text, width in zip(row, shown, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def fields(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, one a line, aligned; empty values are left out."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in kept)


def printable(text: str) -> str:
    """Foreign text without control characters: a node's name must not steer the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def visible(cell: str) -> str:
    """The text without its colours."""
    result, rest = "", cell
    while "\x1b[" in rest:
        before, _, rest = rest.partition("\x1b[")
        result += before
        rest = rest.partition("m")[2]
    return result + rest
