"""The phase that is open, in memory: who is assigned, whose lease runs out when, and whether all is settled.

A mirror of the ledger: it is changed only after the ledger was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from hanse.errors import Owner, Reason
from hanse.ledger import records
from hanse.ledger.states import AssignmentState

__all__ = ["OpenPhase"]


class OpenPhase:
    """A phase with its assignments. Times are of a monotonic clock that the caller reads."""

    def __init__(self, record: records.Phase, assignments: Iterable[records.Assignment], *, deadline: float) -> None:
        self.record = record
        self.assignments = {assignment.id: assignment for assignment in assignments}
        self.deadline = deadline
        self.delivered: dict[str, records.Contribution] = {}
        self._lease_until: dict[str, float] = {}

    def of_node(self, node: str) -> records.Assignment | None:
        """The assignment of a node, if it has one."""
        return next((item for item in self.assignments.values() if item.node == node), None)

    def update(self, assignment: str, **changes: object) -> records.Assignment:
        """Mirror a change that the ledger has taken."""
        changed = dataclasses.replace(self.assignments[assignment], **changes)  # type: ignore[arg-type]
        self.assignments[assignment] = changed
        return changed

    def renew(self, assignment: str, until: float) -> None:
        """A lease runs until then."""
        self._lease_until[assignment] = until

    def live(self) -> list[records.Assignment]:
        """Assignments that are not over."""
        return [item for item in self.assignments.values() if not item.state.ended]

    def overdue(self, now: float) -> list[records.Assignment]:
        """Live assignments whose lease has run out."""
        return [item for item in self.live() if self._lease_until.get(item.id, now) <= now]

    def next_expiry(self) -> float | None:
        """When the next lease runs out."""
        times = [self._lease_until[item.id] for item in self.live() if item.id in self._lease_until]
        return min(times, default=None)

    def counted(self) -> list[str]:
        """The assignments whose contributions count."""
        return [item.id for item in self.assignments.values() if item.state is AssignmentState.DELIVERED]

    def valid(self) -> int:
        """How many contributions count."""
        return len(self.counted())

    def shortfall(self) -> Reason:
        """Why the quorum was not met: who is missing, and whose fault most of it is."""
        missing = [item for item in self.assignments.values() if item.state is not AssignmentState.DELIVERED]
        parts = [f"{item.node}: {item.reason.sentence if item.reason else item.state.value}" for item in missing[:5]]
        if len(missing) > 5:
            parts.append(f"and {len(missing) - 5} more")
        owners = [item.reason.owner for item in missing if item.reason]
        owner = max(set(owners), key=owners.count) if owners else Owner.SITE
        return Reason(
            code="QUORUM_NOT_MET",
            sentence=f"{self.valid()} of {len(self.assignments)} assigned nodes contributed to "
            f"'{self.record.name}' of round {self.record.round}; {self.record.quorum} are needed "
            f"({'; '.join(parts)}).",
            owner=owner,
            remedy="Look after the nodes that are missing, or lower selection.quorum; then resume the job.",
        )
