"""The closed sets of words that state columns may hold. The database checks them as well."""

from __future__ import annotations

from enum import StrEnum


class Trust(StrEnum):
    """How far a node has come on its way into the federation."""

    INVITED = "invited"
    PENDING = "pending"
    APPROVED = "approved"
    REVOKED = "revoked"


class JobState(StrEnum):
    """A job's life."""

    SUBMITTED = "submitted"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}


class Decision(StrEnum):
    """What a node said to a job that it was offered."""

    OFFERED = "offered"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    AWAITING_APPROVAL = "awaiting_approval"


class PhaseState(StrEnum):
    """A phase's life."""

    OPEN = "open"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    CLOSED = "closed"
    ABANDONED = "abandoned"

    @property
    def ended(self) -> bool:
        """Whether the phase is over, well or not."""
        return self in {PhaseState.CLOSED, PhaseState.ABANDONED}


class AssignmentState(StrEnum):
    """An assignment's life."""

    PENDING = "pending"
    LEASED = "leased"
    DELIVERED = "delivered"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    LATE = "late"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"

    @property
    def ended(self) -> bool:
        """Whether the assignment is over, well or not."""
        return self not in {AssignmentState.PENDING, AssignmentState.LEASED}


# From the least to the most that a token allows.
ROLES = ("viewer", "researcher", "operator", "admin")
