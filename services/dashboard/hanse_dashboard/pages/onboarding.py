"""Bringing a node in: invite, hand the command over, watch it come, compare the fingerprint, approve."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from hanse.errors import OperatorError
from hanse.ledger import Node, Trust, View
from hanse.ledger.records import Invitation
from hanse.v1 import control_pb2
from hanse_dashboard.acting import ActingOperator
from hanse_dashboard.commands import commands
from hanse_dashboard.queries.trail import event_rows
from hanse_dashboard.render import page, url
from hanse_dashboard.state import Desk, Viewer

router = APIRouter()

Words = Annotated[str, Query(max_length=200)]
_DAY_S = 86_400.0
_LIFETIMES = {"1h": 3600.0, "8h": 28_800.0, "24h": _DAY_S}


@router.get("/onboarding")
def onboarding(request: Request, desk: Desk, caller: Viewer) -> Response:
    """Who is on the way, and the form for a new invitation."""
    with desk.read() as view:
        coming = [
            (node, _newest(view, node.name)) for node in view.nodes(trust=[Trust.INVITED, Trust.PENDING], limit=200)
        ]
        head = view.head().sequence
    return page(
        request, "onboarding.html", title="Onboarding", live={"after": head}, coming=coming, lifetimes=_LIFETIMES
    )


def _newest(view: View, node: str) -> Invitation | None:
    return next(iter(view.invitations(node)), None)


@router.post("/onboarding")
def invite(
    request: Request,
    desk: Desk,
    caller: ActingOperator,
    name: Annotated[str, Form(max_length=200)],
    labels: Annotated[str, Form(max_length=2000)] = "",
    valid: Annotated[str, Form(max_length=10)] = "24h",
    again: Annotated[str, Form(max_length=5)] = "",
    pre_approved: Annotated[str, Form(max_length=5)] = "",
) -> Response:
    """Make an invitation; its text is on the page that answers, and nowhere afterwards."""
    if valid not in _LIFETIMES:
        raise OperatorError(
            "An invitation from this page lasts at most a day.", remedy="For longer: hanse node invite --valid 7d"
        )
    request_ = control_pb2.InviteNodeRequest(
        name=name.strip(),
        labels=_labels(labels),
        valid_s=_LIFETIMES[valid],
        pre_approved=bool(pre_approved),
        again=bool(again),
    )
    with desk.coordinator.acting_as(caller.token) as control:
        made = control.call("InviteNode", request_)
    with desk.read() as view:
        node = view.node(name.strip())
        head = view.head().sequence
    return page(
        request,
        "invited.html",
        title=f"Invitation for {node.name}",
        live={"after": head, "node": node.name},
        node=node,
        invitation=made,
        commands=commands(desk.settings),
        steps=_steps(node, None),
    )


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for part in re.split(r"[,\s]+", text.strip()):
        if part:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise OperatorError(f"The label “{part[:60]}” is not of the form key=value.", code="INVALID_LABEL")
            labels[key] = value
    return labels


def _steps(node: Node, invitation: Invitation | None) -> list[tuple[str, str, str]]:
    """(state, title, sentence) of each step on the way in; state is done, now or later."""
    came = node.trust is not Trust.INVITED or bool(invitation and invitation.used_at)
    approved = node.trust is Trust.APPROVED
    seen = node.last_seen_at is not None
    flags = [True, came, approved, seen and approved]
    titles = [
        ("Invited", "The invitation is good once. Hand it over as you would a password."),
        ("The node comes", "hanse-agent join checks the coordinator, makes a key of its own, and shows a fingerprint."),
        ("You compare and approve", "The site reads its fingerprint out; it must be the one on this page."),
        ("Connected", "hanse-agent run has said hello: which datasets it offers, and which methods it allows."),
    ]
    first_open = flags.index(False) if False in flags else len(flags)
    return [
        ("done" if place < first_open else "now" if place == first_open else "later", title, sentence)
        for place, (title, sentence) in enumerate(titles)
    ]


@router.get("/onboarding/{name}")
def progress(request: Request, desk: Desk, caller: Viewer, name: str) -> Response:
    """How far a node has come; its fingerprint, and the button that lets it in."""
    with desk.read() as view:
        node = view.node(name)
        invitation = _newest(view, name)
        head = view.head().sequence
        events = event_rows(view, node=name, limit=8).rows
    return page(
        request,
        "coming.html",
        title=name,
        live={"after": head, "node": name},
        node=node,
        invitation=invitation,
        commands=commands(desk.settings),
        steps=_steps(node, invitation),
        events=events,
    )


@router.post("/onboarding/{name}/approve")
def approve(
    request: Request,
    desk: Desk,
    caller: ActingOperator,
    name: str,
    fingerprint: Annotated[str, Form(max_length=200)] = "",
    compared: Annotated[str, Form(max_length=5)] = "",
) -> Response:
    """Let a node in, after its fingerprint was compared."""
    if not compared:
        raise OperatorError(
            "The box that says that you compared the fingerprint is not ticked.",
            remedy="Have the site read it out, compare, and tick the box.",
            code="NOT_CONFIRMED",
        )
    with desk.coordinator.acting_as(caller.token) as control:
        control.call("ApproveNode", control_pb2.ApproveNodeRequest(name=name, fingerprint=fingerprint))
    return RedirectResponse(url(request, f"/onboarding/{name}"), status_code=303)
