"""Who may do what, and the state of the platform itself."""

from __future__ import annotations

import platform
import time
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from starlette.responses import RedirectResponse

from hanse.errors import HanseError, OperatorError
from hanse.ledger import schema
from hanse.security import Role
from hanse.v1 import control_pb2
from hanse_dashboard.acting import ActingAdmin
from hanse_dashboard.queries.tokens import PERMISSIONS, token_rows
from hanse_dashboard.render import page, url
from hanse_dashboard.state import Dashboard, Desk, Viewer

router = APIRouter()

_LIFETIMES = {"1 day": 1, "30 days": 30, "90 days": 90, "365 days": 365}


@router.get("/access")
def access(request: Request, desk: Desk, caller: Viewer) -> Response:
    """What each role may do, what you may do, and, for administrators, the tokens."""
    tokens = None
    if caller.may("admin"):
        with desk.read() as view:
            tokens = token_rows(view, time.time())
    return page(
        request,
        "access.html",
        title="Access",
        tokens=tokens,
        permissions=PERMISSIONS,
        roles=list(Role),
        lifetimes=_LIFETIMES,
    )


@router.post("/access/tokens")
def create_token(
    request: Request,
    desk: Desk,
    caller: ActingAdmin,
    name: Annotated[str, Form(max_length=100)],
    role: Annotated[str, Form(max_length=20)],
    valid: Annotated[str, Form(max_length=20)] = "30 days",
) -> Response:
    """Make a token; its secret is on the page that answers, and nowhere afterwards."""
    if valid not in _LIFETIMES:
        raise OperatorError(f"“{valid}” is none of the lifetimes on the page.", code="INVALID_LIFETIME")
    asked = control_pb2.CreateTokenRequest(name=name.strip(), role=role, valid_s=_LIFETIMES[valid] * 86_400.0)
    with desk.coordinator.acting_as(caller.token) as control:
        made = control.call("CreateToken", asked)
    return page(request, "token.html", title=f"Token for {made.token.name}", made=made)


@router.post("/access/tokens/{token}/revoke")
def revoke_token(request: Request, desk: Desk, caller: ActingAdmin, token: str) -> Response:
    """Revoke a token; its next call is refused."""
    with desk.coordinator.acting_as(caller.token) as control:
        control.call("RevokeToken", control_pb2.RevokeTokenRequest(id=token))
    return RedirectResponse(url(request, "/access"), status_code=303)


@router.get("/system")
def system(request: Request, desk: Desk, caller: Viewer) -> Response:
    """Versions, tables, leader, and how this replica is."""
    federation, fault = _federation(desk, caller.token)
    with desk.read() as view:
        lease, head = view.lease(), view.head()
    try:
        desk.ledger.require_schema()
        schema_fault = ""
    except HanseError as error:
        schema_fault = str(error)
    return page(
        request,
        "system.html",
        title="System",
        live={"after": head.sequence},
        coordinator=desk.coordinator,
        answered=federation,
        federation_fault=fault,
        told=desk.settings,
        lease=lease,
        head=head,
        revision=schema.newest_revision(),
        schema_fault=schema_fault,
        ledger_name=desk.ledger.name,
        started_at=desk.started_at,
        streams=desk.feed.streams,
        python=platform.python_version(),
    )


def _federation(desk: Dashboard, token: Any) -> tuple[Any, str]:
    if not desk.coordinator.presence().answers:
        return None, desk.coordinator.presence().sentence
    try:
        with desk.coordinator.acting_as(token) as control:
            return control.federation(), ""
    except HanseError as error:
        return None, str(error)
