"""What an examination finds: one line a check, and for a fault its cause, its remedy and where it is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hanse.errors import HanseError

GUIDE = "docs/site-guide.md"

TITLES = {
    "configuration": "agent.yaml",
    "dns": "DNS",
    "tcp": "TCP connection",
    "proxy": "HTTP proxy",
    "tls": "TLS",
    "interception": "TLS unopened",
    "http2": "HTTP/2",
    "idle": "idle connection",
    "clock": "clock",
    "disk": "disk",
    "memory": "memory",
    "certificate": "node certificate",
    "datasets": "datasets",
    "policy": "policy",
}
"""Every check, in the order in which they are made."""


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be made, for a reason that is another check's or the person's."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The end of one check."""

    check: str
    """A key of `TITLES`."""
    state: State
    sentence: str
    cause: str = ""
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and names for programs."""

    @property
    def anchor(self) -> str:
        """Where the guide explains the check."""
        return f"{GUIDE}#doctor-{self.check}"

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "check": self.check,
            "state": self.state.value,
            "sentence": self.sentence,
            "cause": self.cause,
            "remedy": self.remedy,
            "documentation": self.anchor,
            "facts": dict(self.facts),
        }


def ok(check: str, sentence: str, **facts: Any) -> Finding:
    """All is well."""
    return Finding(check=check, state=State.OK, sentence=sentence, facts=facts)


def skipped(check: str, sentence: str) -> Finding:
    """The check could not be made."""
    return Finding(check=check, state=State.SKIPPED, sentence=sentence)


def warning(check: str, sentence: str, *, cause: str, remedy: str, **facts: Any) -> Finding:
    """It works, but not well, or not for long."""
    return Finding(check=check, state=State.WARNING, sentence=sentence, cause=cause, remedy=remedy, facts=facts)


def failed(check: str, sentence: str, *, cause: str, remedy: str, **facts: Any) -> Finding:
    """It does not work."""
    return Finding(check=check, state=State.FAILED, sentence=sentence, cause=cause, remedy=remedy, facts=facts)


def failure(check: str, error: HanseError, cause: str) -> Finding:
    """A check that ended with an error of ours, which has its own remedy."""
    return failed(check, error.sentence, cause=cause, remedy=error.remedy or "See the guide.", code=error.code)


_SIGNS = {State.OK: "✓", State.WARNING: "!", State.FAILED: "✗", State.SKIPPED: "–"}


def text(findings: Sequence[Finding]) -> str:
    """One line a check; cause, remedy and guide below those that are not well."""
    width = max(len(title) for title in TITLES.values())
    lines = []
    for item in findings:
        lines.append(f"{_SIGNS[item.state]} {TITLES[item.check].ljust(width)}  {item.sentence}")
        if item.state in (State.FAILED, State.WARNING):
            margin = " " * (width + 4)
            lines += [
                f"{margin}cause:  {item.cause}",
                f"{margin}remedy: {item.remedy}",
                f"{margin}guide:  {item.anchor}",
            ]
    count = {state: sum(item.state is state for item in findings) for state in State}
    parts = [f"{count[State.OK]} well"]
    parts += [f"{count[state]} {state.value}" for state in (State.WARNING, State.FAILED, State.SKIPPED) if count[state]]
    return "\n".join([*lines, "", ", ".join(parts)])
