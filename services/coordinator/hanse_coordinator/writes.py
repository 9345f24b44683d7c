"""What a transition writes: rows and events that belong together, each function inside one transaction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hanse.errors import Reason
from hanse.ledger import Transaction, records
from hanse.ledger.states import AssignmentState, JobState, PhaseState
from hanse.method import Audience, Purpose
from hanse.v1 import aggregator_pb2
from hanse_coordinator.inputs import Delivered

__all__ = [
    "Opening",
    "StoredOutcome",
    "write_contribution",
    "write_job",
    "write_opening",
    "write_outcome",
    "write_phase_end",
    "write_settlement",
]


_PASSING = ("state", "instruction", "personal")
"""Kinds of artifacts that serve one phase."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A phase that is about to open, and for whom. Without `assigned` it waits for nodes."""

    name: str
    round: int
    ordinal: int
    attempt: int
    purpose: Purpose
    audience: Audience
    instruction: str
    personal: Mapping[str, str]
    state_digest: str | None
    quorum: int
    deadline_s: float
    assigned: tuple[tuple[str, bool, bool], ...] = ()
    """(node, unseen, connected)"""
    absent: tuple[str, ...] = ()
    """Accepted nodes of the audience that are not present."""
    cohort: tuple[str, ...] | None = None
    """Set when the phase begins a new round of training."""


@dataclass(frozen=True, kw_only=True)
class StoredOutcome:
    """An outcome whose payloads are all in the store; digests in hex."""

    message: aggregator_pb2.OutcomeMessage
    state: str | None = None
    model: str | None = None
    pictures: tuple[tuple[str, str, str, str], ...] = ()
    """(name, kind, title, digest)"""
    artifacts: tuple[tuple[str, int, str], ...] = ()
    """(digest, size, kind)"""
    instruction: str | None = None
    """Of the next phase."""
    personal: Mapping[str, str] = field(default_factory=dict)
    """Of the next phase, by node."""
    rejections: Mapping[str, Reason] = field(default_factory=dict)
    """By assignment."""

    def with_artifacts(self, artifacts: tuple[tuple[str, int, str], ...]) -> StoredOutcome:
        """The same, with the list of what was stored."""
        return replace(self, artifacts=artifacts)


def write_job(
    tx: Transaction,
    job: records.Job,
    state: JobState,
    *,
    actor: str,
    reason: Reason | None,
    retention_s: float,
    body: Mapping[str, Any] | None = None,
) -> records.Job:
    """A job comes into a state."""
    tx.update_job(job.id, state=state, reason=reason)
    if state.ended:
        tx.retain([job.state_digest], tx.now + retention_s, kinds=_PASSING)
    facts = {"from": job.state.value, "to": state.value, **_reason(reason), **(body or {})}
    tx.event(f"job_{state.value}", job=job.id, actor=actor, body=facts)
    return tx.job(job.id)


def write_opening(
    tx: Transaction, job: records.Job, opening: Opening, *, lease_s: float
) -> tuple[records.Phase, list[records.Assignment]]:
    """A phase opens; with assignments, it is collecting at once."""
    if opening.cohort is not None and tx.round(job.id, opening.round) is None:
        tx.add_round(job=job.id, number=opening.round, cohort=opening.cohort)
    if job.round != opening.round:
        tx.update_job(job.id, round=opening.round)
    state = PhaseState.COLLECTING if opening.assigned else PhaseState.OPEN
    phase = tx.add_phase(
        job=job.id,
        round=opening.round,
        ordinal=opening.ordinal,
        attempt=opening.attempt,
        name=opening.name,
        purpose=opening.purpose,
        audience=opening.audience,
        quorum=opening.quorum,
        state=state,
        instruction_digest=opening.instruction,
        personal=opening.personal,
        state_digest=opening.state_digest,
        deadline_at=tx.now + opening.deadline_s,
    )
    assignments = write_assignments(tx, job, phase, opening, lease_s=lease_s) if opening.assigned else []
    return tx.phase(phase), assignments


def write_assignments(
    tx: Transaction, job: records.Job, phase: str, opening: Opening, *, lease_s: float
) -> list[records.Assignment]:
    """The nodes of a phase are assigned; those that are connected get it at once."""
    rows = [
        {
            "phase": phase,
            "job": job.id,
            "node": node,
            "unseen": unseen,
            "state": AssignmentState.LEASED if connected else AssignmentState.PENDING,
            "lease_expires_at": tx.now + lease_s,
        }
        for node, unseen, connected in opening.assigned
    ]
    tx.add_assignments(rows)
    tx.event(
        "phase_opened",
        job=job.id,
        body={
            "phase": phase,
            "name": opening.name,
            "round": opening.round,
            "attempt": opening.attempt,
            "purpose": opening.purpose.value,
            "audience": opening.audience.value,
            "instruction": opening.instruction,
            "assigned": [node for node, _, _ in opening.assigned],
            "absent": list(opening.absent),
            "quorum": opening.quorum,
        },
    )
    return tx.assignments(phase)


def write_contribution(
    tx: Transaction, phase: records.Phase, given: Delivered, state: AssignmentState
) -> records.Contribution:
    """A contribution whose bytes are in the store counts, or came too late to count."""
    late = state is AssignmentState.LATE
    tx.add_artifact(digest=given.digest, size=given.size, kind="contribution", job=phase.job)
    found = tx.add_contribution(
        assignment=given.assignment,
        phase=phase.id,
        job=phase.job,
        node=given.node,
        digest=given.digest,
        size=given.size,
        late=late,
    )
    tx.update_assignment(given.assignment, state=state, fraction=1.0)
    body = {"phase": phase.id, "digest": given.digest, "bytes": given.size, "late": late}
    tx.event("contribution", job=phase.job, node=given.node, body=body)
    return found


def write_settlement(tx: Transaction, assignment: records.Assignment, state: AssignmentState, reason: Reason) -> None:
    """An assignment ends without a contribution, and the ledger says why and whose fault it is."""
    tx.update_assignment(assignment.id, state=state, reason=reason)
    tx.event(
        f"assignment_{state.value}",
        job=assignment.job,
        node=assignment.node,
        body={"phase": assignment.phase, "assignment": assignment.id, **_reason(reason)},
    )


def write_phase_end(
    tx: Transaction, phase: records.Phase, state: PhaseState, reason: Reason | None, *, retention_s: float
) -> list[records.Assignment]:
    """A phase is abandoned; what is still assigned is withdrawn and returned."""
    tx.update_phase(phase.id, state=state, reason=reason)
    _let_go(tx, phase, retention_s)
    withdrawn = tx.end_live_assignments(phase.id, state=AssignmentState.WITHDRAWN, reason=reason)
    tx.event(
        f"phase_{state.value}",
        job=phase.job,
        body={
            "phase": phase.id,
            "name": phase.name,
            "round": phase.round,
            "attempt": phase.attempt,
            "withdrawn": [item.node for item in withdrawn],
            **_reason(reason),
        },
    )
    return withdrawn


def write_outcome(
    tx: Transaction,
    job: records.Job,
    phase: records.Phase | None,
    assignments: Iterable[records.Assignment],
    contributions: Mapping[str, records.Contribution],
    outcome: StoredOutcome,
    *,
    retention_s: float,
) -> None:
    """A phase is closed with its outcome: artifacts, metrics, pictures, and who contributed what."""
    for digest, size, kind in outcome.artifacts:
        tx.add_artifact(digest=digest, size=size, kind=kind, job=job.id)
    changes: dict[str, Any] = {"state_digest": outcome.state}
    if outcome.model:
        changes["model_digest"] = outcome.model
    tx.update_job(job.id, **changes)
    if phase is None:
        tx.event("job_begun", job=job.id, body={"state": outcome.state})
        return
    for assignment, reason in outcome.rejections.items():
        tx.update_assignment(assignment, state=AssignmentState.REJECTED, reason=reason)
    tx.update_phase(phase.id, state=PhaseState.CLOSED)
    _let_go(tx, phase, retention_s)
    if rows := _metric_rows(outcome.message.metrics):
        tx.add_metrics(job=job.id, round=phase.round, phase=phase.id, rows=rows)
    for name, kind, title, digest in outcome.pictures:
        tx.add_picture(job=job.id, round=phase.round, phase=phase.id, name=name, kind=kind, title=title, digest=digest)
    if outcome.message.next_phase.round != phase.round and tx.round(job.id, phase.round) is not None:
        tx.update_round(job.id, phase.round, closed_at=tx.now)
    settled = list(assignments)
    used = [item for item in settled if item.state is AssignmentState.DELIVERED and item.id not in outcome.rejections]
    missing = [item for item in settled if item not in used]
    tx.event(
        "phase_closed",
        job=job.id,
        body={
            "phase": phase.id,
            "name": phase.name,
            "round": phase.round,
            "contributors": {item.node: contributions[item.id].digest for item in used},
            "missing": {
                item.node: _reason(outcome.rejections.get(item.id) or item.reason) | {"state": item.state.value}
                for item in missing
            },
            "state": outcome.state,
            "model": outcome.model,
        },
    )


def _let_go(tx: Transaction, phase: records.Phase, retention_s: float) -> None:
    """A phase is over: what it was made of may be deleted in time, so that the store does not grow with the job.

    What the next phase uses again, the ledger holds back (`still_needed`).
    """
    until = tx.now + retention_s
    tx.retain_contributions(phase.id, until)
    tx.retain([phase.instruction_digest, phase.state_digest, *phase.personal.values()], until, kinds=_PASSING)


def _metric_rows(metrics: Sequence[aggregator_pb2.MetricValue]) -> list[dict[str, Any]]:
    return [
        {
            "name": metric.name[:200],
            "value": metric.value,
            "scope": metric.scope,
            "node": metric.node or None,
            "weight": metric.weight if math.isfinite(metric.weight) else 0.0,
        }
        for metric in metrics
        if math.isfinite(metric.value)
    ]


def _reason(reason: Reason | None) -> dict[str, str]:
    if reason is None:
        return {}
    return {"code": reason.code, "owner": reason.owner.value, "sentence": reason.sentence}
