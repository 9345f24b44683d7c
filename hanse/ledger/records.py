"""What comes out of the ledger: frozen dataclasses, one per table, with their reasons and states decoded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hanse.errors import Owner, Reason
from hanse.ledger.states import AssignmentState, Decision, JobState, PhaseState, Trust
from hanse.method import Audience, Purpose, Scope


def reason_to_json(reason: Reason) -> dict[str, str]:
    """A reason as it is stored."""
    return {
        "code": reason.code,
        "sentence": reason.sentence,
        "owner": reason.owner.value,
        "remedy": reason.remedy,
    }


def reason_from_json(stored: Mapping[str, str]) -> Reason:
    """A reason as it was stored."""
    return Reason(
        code=stored["code"],
        sentence=stored["sentence"],
        owner=Owner(stored["owner"]),
        remedy=stored["remedy"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """An enrolled identity at a site, or one that was invited."""

    name: str
    trust: Trust
    labels: Mapping[str, str]
    created_at: float
    approved_at: float | None
    approved_by: str | None
    revoked_at: float | None
    revoked_by: str | None
    reason: Reason | None
    fingerprint: str | None
    """Of the key that an operator approved."""
    pending_fingerprint: str | None
    """Of the key that waits for approval."""
    pending_request: str | None
    """PEM of the certificate request that waits for approval."""
    program: str | None
    methods: tuple[str, ...]
    datasets: tuple[Mapping[str, Any], ...]
    policy_digest: str | None
    online: bool
    last_seen_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """A certificate that the authority issued."""

    serial: str
    identity: str
    node: str | None
    fingerprint: str
    not_before: float
    not_after: float
    issued_at: float
    revoked_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """A one-time invitation of a node."""

    id: str
    node: str
    created_at: float
    created_by: str
    expires_at: float
    pre_approved: bool
    again: bool
    certificate_serial: str | None
    used_at: float | None
    used_key_sha256: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorToken:
    """A bearer token for people and their programs; only its hash is known here."""

    id: str
    name: str
    role: str
    secret_hash: str = dataclasses.field(repr=False)
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who may write. `expires_at` None: held until somebody else takes it."""

    name: str
    holder: str
    epoch: int
    expires_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """Who leads, seen by the clock that leases are measured by."""

    holder: str
    epoch: int
    seconds_left: float | None
    """Below zero: the lease has run out. None: it never does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A submitted training run."""

    id: str
    name: str
    method: str
    dataset: str
    specification: str
    submitted_by: str
    submitted_at: float
    state: JobState
    reason: Reason | None
    since: float
    ended_at: float | None
    round: int
    rounds: int
    seed: int
    state_digest: str | None
    model_digest: str | None
    continue_from: str | None
    resume_state: JobState | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Participation:
    """A node that was offered a job, and what it said."""

    job: str
    node: str
    decision: Decision
    reason: Reason | None
    unseen: bool
    dataset: Mapping[str, Any] | None
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One cycle of a job and the nodes selected for it."""

    job: str
    number: int
    cohort: tuple[str, ...]
    opened_at: float
    closed_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One request-and-reply exchange of a job."""

    id: str
    job: str
    round: int
    ordinal: int
    attempt: int
    name: str
    purpose: Purpose
    audience: Audience
    state: PhaseState
    instruction_digest: str | None
    personal: Mapping[str, str]
    state_digest: str | None
    quorum: int
    opened_at: float
    deadline_at: float | None
    closed_at: float | None
    reason: Reason | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTally:
    """A phase and how many of its assignments were delivered."""

    phase: Phase
    assigned: int
    delivered: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """An instruction given to one node."""

    id: str
    phase: str
    job: str
    node: str
    unseen: bool
    fence: int
    state: AssignmentState
    stage: str
    fraction: float
    offered_at: float
    lease_expires_at: float | None
    ended_at: float | None
    reason: Reason | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribution:
    """A node's reply to an assignment."""

    assignment: str
    phase: str
    job: str
    node: str
    digest: str
    size: int
    received_at: float
    late: bool
    deleted_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A stored payload. `retain_until` None: kept."""

    digest: str
    size: int
    kind: str
    created_at: float
    job: str | None
    retain_until: float | None
    deleted_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number of a phase."""

    id: int
    job: str
    round: int
    phase: str
    node: str | None
    scope: Scope
    name: str
    value: float
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """Named data that a person will look at."""

    id: int
    job: str
    round: int
    phase: str
    name: str
    kind: str
    title: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """An entry of the audit trail. `body` holds the canonical bytes, exactly as hashed."""

    sequence: int
    at: float
    kind: str
    job: str | None
    node: str | None
    actor: str
    body: bytes
    previous_hash: bytes
    hash: bytes

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was said beside the columns, decoded."""
        facts: Mapping[str, Any] = json.loads(self.body)["body"]
        return facts


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginSession:
    """Somebody who is logged in to the dashboard."""

    id: str
    """SHA-256 of the secret in the cookie."""
    token: str
    sealed: bytes = dataclasses.field(repr=False)
    """The operator's token, encrypted under a key that only the cookie holds."""
    created_at: float
    seen_at: float
    expires_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginAttempt:
    """An attempt to log in to the dashboard; too many bad ones from one source make it wait."""

    id: int
    source: str
    at: float
    good: bool
