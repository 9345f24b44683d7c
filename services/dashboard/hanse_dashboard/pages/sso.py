"""Logging in through the organisation's provider: there, and back."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from hanse.errors import HanseError, NotFound, Unauthenticated
from hanse.logs import logger
from hanse_dashboard.flow import FLOW_S, Flow
from hanse_dashboard.issuing import SingleSignOn
from hanse_dashboard.pages.doors import back_inside, inside, is_secure, login_page, public_address, set_session
from hanse_dashboard.state import Dashboard, Desk

router = APIRouter()

COOKIE = "hanse_login"
BACK = "/login/oidc/back"
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
Said = Annotated[str, Query(max_length=4000)]


def _sign_on(desk: Dashboard) -> SingleSignOn:
    if desk.sign_on is None:
        raise NotFound("This dashboard logs people in with operator tokens alone.", remedy="Log in with a token.")
    return desk.sign_on


@router.get("/login/oidc")
def begin(
    request: Request,
    desk: Desk,
    next: Annotated[str, Query(max_length=2000)] = "",  # noqa: A002 - the usual name
) -> Response:
    """Send the browser to the provider."""
    flow, secret = Flow.begin()
    try:
        where = _sign_on(desk).provider.address(flow, public_address(request, BACK))
    except HanseError as error:
        return _refused(request, error, next)
    response = RedirectResponse(where, status_code=303)
    response.set_cookie(
        COOKIE,
        f"{secret}.{inside(next) if next else ''}",
        max_age=FLOW_S,
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite="lax",
        secure=is_secure(request, desk),
    )
    return response


@router.get(BACK)
def back(
    request: Request, desk: Desk, code: Said = "", state: Said = "", error: Said = "", error_description: Said = ""
) -> Response:
    """The browser comes back from the provider, with a code or with an error."""
    source = request.client.host if request.client else "unknown"
    secret, _, target = request.cookies.get(COOKIE, "").partition(".")
    try:
        desk.desk.require_patience(source)
        if error:
            told = re.sub(r"[^\x20-\x7e]", "", error_description or error)[:200]
            raise Unauthenticated(f"The provider did not log you in: {told}.", remedy="Try again.", code="OIDC_REFUSED")
        if not _SECRET.fullmatch(secret):
            raise Unauthenticated(
                "This log-in was begun in another browser, or too long ago.", remedy="Log in again.", code="OIDC_STATE"
            )
        sign_on = _sign_on(desk)
        person = sign_on.provider.redeem(
            Flow(secret), code=code, state=state, redirect_uri=public_address(request, BACK)
        )
        token = sign_on.token_for(person)
    except HanseError as fault:
        if isinstance(fault, Unauthenticated):
            desk.desk.note(source, good=False)
        return _refused(request, fault, target)
    desk.desk.note(source, good=True)
    logger().info("login", source=source, token=token.token_id, name=person.name, role=person.role.value)
    response = back_inside(request, target or "/")
    response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
    set_session(request, desk, response, token)
    return response


def _refused(request: Request, error: HanseError, target: str) -> Response:
    logger().info("login refused", code=error.code, reason=error.sentence)
    status = {"TOO_MANY_ATTEMPTS": 429, "OIDC_NO_ROLE": 403, "NOT_FOUND": 404}.get(
        error.code, 503 if error.retryable else 401
    )
    response = login_page(request, next=target, problem=error.reason, status=status)
    response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
    return response
