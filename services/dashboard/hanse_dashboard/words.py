"""How states, times, sizes and numbers are said: one vocabulary for all pages."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import NamedTuple

__all__ = [
    "STATES",
    "State",
    "ago",
    "amount",
    "cap",
    "clock",
    "headline_first",
    "iso",
    "lower_is_better",
    "number",
    "span",
    "state",
]


class State(NamedTuple):
    """A word, its icon and its tone (good, live, wait, warn, bad, idle). Never the colour alone."""

    word: str
    icon: str
    tone: str
    meaning: str


STATES: dict[str, State] = {
    # jobs
    "submitted": State("submitted", "clock", "idle", "Taken, and not offered to any node yet."),
    "waiting": State("waiting", "hourglass", "warn", "Waits for nodes, or for somebody's approval."),
    "running": State("running", "play", "live", "Rounds are running."),
    "paused": State("paused", "pause", "warn", "Stopped until somebody resumes it."),
    "succeeded": State("succeeded", "check", "good", "All rounds are done."),
    "failed": State("failed", "cross", "bad", "Ended without its last round."),
    "cancelled": State("cancelled", "slash", "idle", "Ended by a person."),
    # phases
    "open": State("open", "hourglass", "wait", "Waits for nodes to be assigned."),
    "collecting": State("collecting", "play", "live", "Nodes are at work."),
    "aggregating": State("aggregating", "sigma", "live", "Contributions are being combined."),
    "closed": State("closed", "check", "good", "Has its outcome."),
    "abandoned": State("abandoned", "cross", "bad", "Had too few contributions, and was tried again or given up."),
    # assignments
    "pending": State("pending", "clock", "wait", "Not handed over yet: the node is not connected."),
    "leased": State("at work", "play", "live", "The node has it."),
    "delivered": State("delivered", "check", "good", "The contribution arrived and counts."),
    "refused": State("refused", "hand", "warn", "The site's policy or a person there said no."),
    "expired": State("expired", "clock-off", "bad", "The node showed no progress until its lease ran out."),
    "late": State("late", "clock-off", "warn", "Arrived after the phase had closed; it is recorded and not used."),
    "rejected": State("rejected", "cross", "bad", "Arrived, and the method could not use it."),
    "withdrawn": State("withdrawn", "slash", "idle", "Taken back: the phase ended or the job stopped."),
    # nodes: trust
    "invited": State("invited", "mail", "wait", "Has an invitation, and has not come yet."),
    "approval": State("waits for approval", "hand", "warn", "Somebody must compare its fingerprint."),
    "approved": State("approved", "shield", "good", "May take part."),
    "revoked": State("revoked", "slash", "bad", "Is let in no more."),
    # nodes: health
    "online": State("online", "signal", "good", "Connected."),
    "slow": State("slow", "hourglass", "warn", "Connected, and far behind the others of its phase."),
    "offline": State("offline", "signal-off", "bad", "Not connected."),
    "never_seen": State("never seen", "dash", "idle", "Has never connected."),
    "unknown": State("unknown", "question", "idle", "The coordinator does not answer, so nobody knows."),
    # participation
    "offered": State("asked", "clock", "wait", "Has not answered yet."),
    "accepted": State("takes part", "check", "good", "Accepted the job."),
    "awaiting_approval": State("asks a person", "hand", "warn", "A person at the site must approve."),
    # tokens
    "valid": State("valid", "check", "good", "Lets its holder in."),
    "ran_out": State("expired", "clock-off", "idle", "Its time is over."),
}


def state(word: object) -> State:
    """How a state is shown; one that is not known is shown as it is."""
    text = str(word)
    return STATES.get(text, State(text, "question", "idle", ""))


def iso(seconds: float | None) -> str | None:
    """An instant for programs: ISO 8601, UTC; None for never."""
    if not seconds or seconds <= 0:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(seconds: float | None) -> str:
    """An instant for people, with its zone; empty for never."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC" if seconds and seconds > 0 else ""


def span(seconds: float | None) -> str:
    """A length of time in at most two units: `0.42 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def ago(seconds: float | None, now: float | None = None) -> str:
    """How long ago, or how far ahead, in one unit: `3 min ago`, `in 6 d`."""
    if not seconds or seconds <= 0:
        return "never"
    distance = (time.time() if now is None else now) - seconds
    size = abs(distance)
    if size < 5:
        return "now"
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h"), (math.inf, 86_400, "d")):
        if size < limit:
            text = f"{int(size // length)} {unit}"
            break
    return f"{text} ago" if distance > 0 else f"in {text}"


def amount(size: float | None) -> str:
    """Bytes in the unit that fits: `812 B`, `1.4 MB`."""
    if size is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def number(value: float | None) -> str:
    """A number of a metric: four significant digits, whole numbers whole."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}".replace(",", "\u202f")
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 else f"{value:.4g}"


def cap(text: str) -> str:
    """With a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


_LOWER = (
    "loss",
    "error",
    "rmse",
    "mae",
    "mape",
    "mse",
    "crps",
    "pinball",
    "deviance",
    "perplexity",
    "winkler",
    "width",
)


_LOWER_WORDS = frozenset({"qs", "mil", "gap"})
"""Quantile score, mean length of intervals, distance from what was promised."""


def lower_is_better(name: str) -> bool:
    """Whether less of a metric is more. By its name: the ledger does not say."""
    return any(part in name.lower() for part in _LOWER) or not _LOWER_WORDS.isdisjoint(name.lower().split("_"))


# What speaks for a job, in this order; of forecasts, the quantile score and how often intervals held.
_USUAL = ("accuracy", "auc", "macro_f1", "f1", "dice", "r2", "rmse", "mae", "crps", "qs", "icp", "log_loss", "loss")
_ORDER = {name: place for place, name in enumerate(_USUAL)}


def headline_first(name: str) -> tuple[int, str]:
    """A key that sorts the names of metrics: the usual ones first."""
    return _ORDER.get(name, len(_ORDER)), name
