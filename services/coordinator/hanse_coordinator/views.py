"""The ledger's records as the control service shows them."""

from __future__ import annotations

import statistics
import time

from google.protobuf.json_format import ParseDict

from hanse.ledger import View, records
from hanse.rpc import to_proto
from hanse.v1 import control_pb2, node_pb2
from hanse_coordinator.runner import JobRunner

__all__ = ["event", "job", "job_detail", "node", "token"]

SHOWN_PHASES = 50
SEARCHED_PICTURES = 200
"""Of so many pictures, the last ones of a job, the newest of each name is told."""


def job(record: records.Job) -> control_pb2.Job:
    """A job's summary."""
    return control_pb2.Job(
        id=record.id,
        name=record.name,
        method=record.method,
        dataset=record.dataset,
        state=record.state.value,
        reason=to_proto(record.reason),
        since=record.since,
        submitted_at=record.submitted_at,
        ended_at=record.ended_at or 0.0,
        submitted_by=record.submitted_by,
        round=record.round,
        rounds=record.rounds,
    )


def job_detail(view: View, job_id: str, live: JobRunner | None) -> control_pb2.JobDetail:
    """Everything that a person who looks at one job wants to know."""
    record = view.job(job_id)
    tallies = view.phase_tallies(job_id, limit=SHOWN_PHASES)
    sent = view.bytes_by_node(job_id)
    detail = control_pb2.JobDetail(
        job=job(record),
        specification=record.specification.encode(),
        participation=[
            control_pb2.Participation(
                node=item.node,
                decision=item.decision.value,
                reason=to_proto(item.reason),
                unseen=item.unseen,
                bytes=sent.get(item.node, 0),
            )
            for item in view.participations(job_id)
        ],
        metrics=[
            control_pb2.MetricRow(
                name=item.name, value=item.value, node=item.node or "", scope=item.scope.value, round=item.round
            )
            for item in view.latest_metrics(job_id)
        ],
        phases=[_phase_row(tally) for tally in tallies],
        pictures=_pictures(view, job_id),
        seconds_left=_seconds_left(record, [tally.phase for tally in tallies]),
        model_digest=record.model_digest or "",
        sequence=view.head().sequence,
    )
    if tallies:
        detail.phase.CopyFrom(_phase(view, tallies[-1].phase, live))
    return detail


def _phase(view: View, phase: records.Phase, live: JobRunner | None) -> control_pb2.Phase:
    given = {item.assignment: item for item in view.contributions(phase.id)}
    assignments = view.assignments(phase.id)
    if live and live.phase and live.phase.record.id == phase.id:
        mirrored = live.phase.assignments
        assignments = [mirrored.get(item.id, item) for item in assignments]
    return control_pb2.Phase(
        id=phase.id,
        name=phase.name,
        round=phase.round,
        attempt=phase.attempt,
        state=phase.state.value,
        purpose=phase.purpose.value,
        opened_at=phase.opened_at,
        deadline_at=phase.deadline_at or 0.0,
        quorum=phase.quorum,
        assignments=[
            control_pb2.AssignmentRow(
                id=item.id,
                node=item.node,
                state=item.state.value,
                stage=item.stage,
                fraction=item.fraction,
                reason=to_proto(item.reason),
                bytes=given[item.id].size if item.id in given else 0,
                seconds=given[item.id].received_at - item.offered_at if item.id in given else 0.0,
                fence=item.fence,
            )
            for item in assignments
        ],
    )


def _pictures(view: View, job_id: str) -> list[control_pb2.PictureRow]:
    """The newest picture of each name, in order of name."""
    newest: dict[str, records.Picture] = {}
    for picture in view.pictures(job_id, limit=SEARCHED_PICTURES):
        newest.setdefault(picture.name, picture)
    return [
        control_pb2.PictureRow(
            name=name, kind=picture.kind, title=picture.title, round=picture.round, digest=picture.digest
        )
        for name, picture in sorted(newest.items())
    ]


def _phase_row(tally: records.PhaseTally) -> control_pb2.PhaseRow:
    phase = tally.phase
    return control_pb2.PhaseRow(
        round=phase.round,
        name=phase.name,
        attempt=phase.attempt,
        state=phase.state.value,
        opened_at=phase.opened_at,
        closed_at=phase.closed_at or 0.0,
        assigned=tally.assigned,
        delivered=tally.delivered,
        reason=to_proto(phase.reason),
    )


def _seconds_left(record: records.Job, phases: list[records.Phase]) -> float:
    """Rounds that are left times the median length of those seen; -1 before one is complete."""
    if record.state.ended:
        return 0.0
    spans: dict[int, list[float]] = {}
    for phase in phases:
        if phase.closed_at:
            spans.setdefault(phase.round, []).append(phase.closed_at - phase.opened_at)
    complete = [sum(times) for number, times in spans.items() if 0 < number < record.round]
    if not complete:
        return -1.0
    return statistics.median(complete) * (record.rounds - record.round + 1)


def node(record: records.Node, *, online: bool, silent: bool, expires: float) -> control_pb2.Node:
    """A node on its two axes: trust and health."""
    if record.last_seen_at is None and not online:
        health = "never_seen"
    elif online:
        health = "late" if silent else "online"
    else:
        health = "offline"
    return control_pb2.Node(
        name=record.name,
        trust=record.trust.value,
        health=health,
        last_seen=time.time() if online else record.last_seen_at or 0.0,
        certificate_expires=expires,
        fingerprint=record.pending_fingerprint or record.fingerprint or "",
        labels=dict(record.labels),
        program=record.program or "",
        datasets=[ParseDict(dict(item), node_pb2.DatasetOffer()) for item in record.datasets],
        methods=record.methods,
        reason=to_proto(record.reason),
    )


def token(record: records.OperatorToken) -> control_pb2.OperatorToken:
    """A token without its hash."""
    return control_pb2.OperatorToken(
        id=record.id,
        name=record.name,
        role=record.role,
        created_at=record.created_at,
        expires_at=record.expires_at or 0.0,
        revoked_at=record.revoked_at or 0.0,
    )


def event(record: records.Event) -> control_pb2.Event:
    """An entry of the audit trail."""
    return control_pb2.Event(
        sequence=record.sequence,
        at=record.at,
        kind=record.kind,
        job=record.job or "",
        node=record.node or "",
        actor=record.actor,
        body=record.body,
        hash=record.hash,
    )
