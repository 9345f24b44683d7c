"""Logging in and out, and the choice of light or dark."""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from hanse.errors import Conflict, HanseError, Reason, Unauthenticated
from hanse.logs import logger
from hanse.security import OperatorToken
from hanse_dashboard.access import COOKIE
from hanse_dashboard.acting import ActingViewer
from hanse_dashboard.render import page, url
from hanse_dashboard.state import Dashboard, Desk, dashboard_of

router = APIRouter()

_THEME_S = 365 * 86_400
LOGGED_OUT = "LOGGED_OUT"


def inside(path: str) -> str:
    """A path on this dashboard; the first page for anything else."""
    bad = not path.startswith("/") or path.startswith(("//", "/\\")) or any(ord(c) < 33 for c in path)
    return "/" if bad else path


def back_inside(request: Request, path: str) -> Response:
    """Go on with a page of ours; the path is already quoted."""
    return RedirectResponse(request.scope.get("root_path", "") + inside(path), status_code=303)


@router.get("/login")
def login_form(
    request: Request,
    desk: Desk,
    next: Annotated[str, Query(max_length=2000)] = "",  # noqa: A002 - the usual name
    why: Annotated[str, Query(max_length=60)] = "",
    code: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Ask for a token, or offer to use a one-time link."""
    return login_page(request, next=next, why=why, code=code)


def login_page(
    request: Request,
    *,
    next: str = "",  # noqa: A002
    why: str = "",
    code: str = "",
    problem: Reason | None = None,
    status: int = 200,
) -> Response:
    """The page that lets people in, perhaps with what went wrong."""
    sign_on = dashboard_of(request).sign_on
    elsewhere = ""
    if why == LOGGED_OUT and sign_on is not None:
        elsewhere = sign_on.provider.logout_address(public_address(request, "/login"))
    return page(
        request,
        "login.html",
        title="Log in",
        status=status,
        next=inside(next) if next else "",
        why=why,
        code=code,
        problem=problem,
        sign_on=sign_on.label if sign_on else "",
        elsewhere=elsewhere,
    )


@router.post("/login")
def login(
    request: Request,
    desk: Desk,
    token: Annotated[str, Form(max_length=500)] = "",
    code: Annotated[str, Form(max_length=200)] = "",
    next: Annotated[str, Form(max_length=2000)] = "",  # noqa: A002
) -> Response:
    """Open a session for whoever shows a good token, or a link that was not used before."""
    source = request.client.host if request.client else "unknown"
    try:
        desk.gate.require_own_page(request)
        desk.desk.require_patience(source)
        shown = _token_of_link(desk, code) if code else OperatorToken.parse(token)
        known = desk.gate.check_token(shown)
    except HanseError as error:
        if isinstance(error, Unauthenticated):
            desk.desk.note(source, good=False)
        logger().info("login refused", source=source, code=error.code)
        status = {"TOO_MANY_ATTEMPTS": 429, "CROSS_ORIGIN": 403}.get(error.code, 401 if not error.retryable else 503)
        return login_page(request, next=next, problem=error.reason, status=status)
    desk.desk.note(source, good=True)
    logger().info("login", source=source, token=known.id, name=known.name)
    response = back_inside(request, next or "/")
    set_session(request, desk, response, shown)
    return response


def set_session(request: Request, desk: Dashboard, response: Response, token: OperatorToken) -> None:
    """Open a session for the token's owner, and hand its secret to the browser."""
    secret, _ = desk.desk.open(token)
    response.set_cookie(
        COOKIE,
        secret,
        max_age=int(desk.settings.session_lifetime.total_seconds()),
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite="lax",
        secure=is_secure(request, desk),
    )


def public_address(request: Request, path: str) -> str:
    """An address of ours as browsers see it."""
    base = dashboard_of(request).settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.url.netloc}"
    return f"{base}{request.scope.get('root_path', '')}{path}"


def is_secure(request: Request, desk: Dashboard) -> bool:
    """Whether browsers reach us by TLS."""
    return request.url.scheme == "https" or desk.settings.public_url.startswith("https:")


def _token_of_link(desk: Dashboard, code: str) -> OperatorToken:
    """The token that a one-time link stands for.

    Raises:
        Unauthenticated: no such link.
        Conflict: it was used before.
    """
    expected, file = desk.settings.login_link_sha256, desk.settings.login_link_token
    digest = hashlib.sha256(code.encode()).hexdigest()
    if not expected or file is None or not hmac.compare_digest(digest, expected):
        raise Unauthenticated(
            "This link is not known, or belongs to an earlier start.",
            remedy="Log in with a token, or start `hanse up` again for a new link.",
            code="LINK_UNKNOWN",
        )
    if not desk.desk.use_once(digest):
        raise Conflict("This link was used already; it logs in once.", remedy="Log in with a token.", code="LINK_USED")
    return OperatorToken.parse(file.read_text(encoding="ascii"))


@router.post("/logout")
def logout(request: Request, desk: Desk, caller: ActingViewer) -> Response:
    """End the session."""
    signed_on = desk.sign_on is not None and desk.sign_on.made(caller.token.token_id)
    desk.desk.end(caller.session)
    if signed_on and desk.sign_on is not None:
        desk.sign_on.forget(caller.token.token_id)
    response = back_inside(request, f"/login?why={LOGGED_OUT}" if signed_on else "/login")
    response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
    return response


@router.post("/theme")
def theme(
    request: Request,
    desk: Desk,
    caller: ActingViewer,
    theme: Annotated[str, Form(max_length=10)] = "",
    back: Annotated[str, Form(max_length=2000)] = "/",
) -> Response:
    """Light or dark, kept in a cookie."""
    root = request.scope.get("root_path", "")
    response = RedirectResponse(url(request, inside(back)), status_code=303)
    if theme in ("light", "dark"):
        response.set_cookie(
            "hanse_theme",
            theme,
            max_age=_THEME_S,
            path=root or "/",
            samesite="lax",
            httponly=True,
            secure=is_secure(request, desk),
        )
    return response
