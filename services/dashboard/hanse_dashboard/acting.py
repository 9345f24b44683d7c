"""A caller who wants to change something: the role reaches, and it was the page's own form that asked."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from hanse.security import Role
from hanse_dashboard.access import Caller
from hanse_dashboard.state import Desk

__all__ = ["ActingAdmin", "ActingOperator", "ActingResearcher", "ActingViewer"]

CSRF_HEADER = "x-csrf-token"


def _acting(role: Role) -> object:
    async def find(request: Request, desk: Desk) -> Caller:
        caller = await run_in_threadpool(desk.gate.caller, request)
        request.state.caller = caller
        shown = request.headers.get(CSRF_HEADER, "")
        if not shown and "form" in request.headers.get("content-type", ""):
            shown = str((await request.form()).get("csrf", ""))
        desk.gate.require_intent(request, caller, shown)
        caller.require(role)
        return caller

    return Depends(find)


ActingViewer = Annotated[Caller, _acting(Role.VIEWER)]
ActingResearcher = Annotated[Caller, _acting(Role.RESEARCHER)]
ActingOperator = Annotated[Caller, _acting(Role.OPERATOR)]
ActingAdmin = Annotated[Caller, _acting(Role.ADMIN)]
