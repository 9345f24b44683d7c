"""The egress journal: every payload that left the site, written and flushed before its first byte leaves.

One JSON line an event. `left` is the first time that a contribution is sent; when a connection broke, or the agent
was killed before the receipt came, the same bytes go out again and the journal says `resent` (same assignment, same
digest), so that nobody mistakes a repetition for new data. The journal may thus claim a sending that a crash
prevented; it never misses one that happened. Nothing here is ever rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hanse_agent.files import append_line, read_lines
from hanse_agent.folder import utc_now

LEFT = "left"
RESENT = "resent"


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """What is about to leave: the facts of a journal line, without the time."""

    node: str
    job: str
    job_name: str
    phase: str
    round: int
    purpose: str
    assignment: str
    kind: str
    arrays: Sequence[dict[str, Any]]
    """Name, dtype and shape of each array."""
    size: int
    digest: str


class EgressJournal:
    """Appends to `egress.jsonl`, and reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._under_way: set[tuple[str, str]] = set()

    def record(self, shipment: Shipment, *, earlier: bool = False) -> str:
        """Write down, and flush, that these bytes leave now; returns `left` or `resent`.

        `earlier`: the contribution was not made just now, so that an earlier process may have sent it already.
        """
        key = (shipment.assignment, shipment.digest)
        again = key in self._under_way or (earlier and self._knows(*key))
        event = RESENT if again else LEFT
        append_line(
            self.path,
            {
                "when": utc_now(),
                "event": event,
                "node": shipment.node,
                "job": shipment.job,
                "job_name": shipment.job_name,
                "phase": shipment.phase,
                "round": shipment.round,
                "purpose": shipment.purpose,
                "assignment": shipment.assignment,
                "kind": shipment.kind,
                "arrays": list(shipment.arrays),
                "bytes": shipment.size,
                "digest": shipment.digest,
            },
        )
        self._under_way.add(key)
        return event

    def settled(self, assignment: str, digest: str) -> None:
        """Nothing is under way any more: the key need not stay in memory."""
        self._under_way.discard((assignment, digest))

    def _knows(self, assignment: str, digest: str) -> bool:
        key = (assignment, digest)
        return any((line.get("assignment"), line.get("digest")) == key for line in read_lines(self.path))

    def entries(self, *, job: str = "", since: datetime | None = None) -> Iterator[dict[str, Any]]:
        """The lines of the journal, oldest first: of one job (id or name), and not older than `since`."""
        for line in read_lines(self.path):
            if job and job not in (line.get("job"), line.get("job_name")):
                continue
            if since is not None and datetime.fromisoformat(str(line.get("when"))) < since:
                continue
            yield line
