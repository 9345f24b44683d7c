"""What can be done: each call goes to the coordinator in the caller's own name, and becomes an event there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from hanse.v1 import control_pb2
from hanse_dashboard.acting import ActingOperator, ActingResearcher, ActingViewer
from hanse_dashboard.pages.jobs import change_job
from hanse_dashboard.pages.trail import verify_now
from hanse_dashboard.state import Desk
from hanse_dashboard.words import iso

router = APIRouter()

Name = Annotated[str, Path(max_length=200)]


class Why(BaseModel):
    """The reason for a change; it stands in the ledger."""

    why: str = Field("", max_length=1000)


class Approval(BaseModel):
    """The fingerprint that was compared with the site."""

    fingerprint: str = Field(min_length=1, max_length=200)


class Done(BaseModel):
    """What a change led to."""

    name: str
    state: str


class Proof(BaseModel):
    """What reading the whole trail has shown."""

    whole: bool
    events: int
    sequence: int
    hash: str
    first_bad: int | None
    sentence: str


class InvitationRequest(BaseModel):
    """Whom to invite."""

    name: str = Field(min_length=1, max_length=200)
    labels: dict[str, str] = Field(default_factory=dict)
    valid_seconds: float = Field(86_400, gt=0, le=86_400)
    pre_approved: bool = False
    again: bool = False


class MadeInvitation(BaseModel):
    """An invitation; `text` is told this once."""

    id: str
    text: str
    expires_at: str | None


@router.post("/jobs/{job}/cancel")
def cancel(desk: Desk, caller: ActingResearcher, job: Name, why: Why) -> Done:
    """End a job for good."""
    return _change(desk, caller, job, "cancel", why)


@router.post("/jobs/{job}/pause")
def pause(desk: Desk, caller: ActingResearcher, job: Name, why: Why) -> Done:
    """Stop a job until it is resumed."""
    return _change(desk, caller, job, "pause", why)


@router.post("/jobs/{job}/resume")
def resume(desk: Desk, caller: ActingResearcher, job: Name, why: Why) -> Done:
    """Go on with a paused job."""
    return _change(desk, caller, job, "resume", why)


def _change(desk: Desk, caller: ActingResearcher, job: str, action: str, why: Why) -> Done:
    changed = change_job(desk, caller.token, job, action, why.why)
    return Done(name=changed.name, state=changed.state)


@router.post("/invitations")
def invite(desk: Desk, caller: ActingOperator, wanted: InvitationRequest) -> MadeInvitation:
    """Invite a node."""
    request = control_pb2.InviteNodeRequest(
        name=wanted.name,
        labels=wanted.labels,
        valid_s=wanted.valid_seconds,
        pre_approved=wanted.pre_approved,
        again=wanted.again,
    )
    with desk.coordinator.acting_as(caller.token) as control:
        made = control.call("InviteNode", request)
    return MadeInvitation(id=made.id, text=made.text, expires_at=iso(made.expires_at))


@router.post("/nodes/{name}/approve")
def approve(desk: Desk, caller: ActingOperator, name: Name, approval: Approval) -> Done:
    """Let a node in whose fingerprint was compared."""
    request = control_pb2.ApproveNodeRequest(name=name, fingerprint=approval.fingerprint)
    with desk.coordinator.acting_as(caller.token) as control:
        node = control.call("ApproveNode", request)
    return Done(name=node.name, state=node.trust)


@router.post("/nodes/{name}/revoke")
def revoke(desk: Desk, caller: ActingOperator, name: Name, why: Why) -> Done:
    """Let a node in no more."""
    with desk.coordinator.acting_as(caller.token) as control:
        node = control.call("RevokeNode", control_pb2.RevokeNodeRequest(name=name, why=why.why))
    return Done(name=node.name, state=node.trust)


@router.post("/ledger/verify")
def verify(desk: Desk, caller: ActingViewer) -> Proof:
    """Read the whole trail and prove it, from the database alone."""
    result = verify_now(desk)
    return Proof(
        whole=result.whole,
        events=result.events,
        sequence=result.head.sequence,
        hash=result.head.hash.hex(),
        first_bad=result.first_bad,
        sentence=result.sentence,
    )
