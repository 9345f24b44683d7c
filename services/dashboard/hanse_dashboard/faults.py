"""Errors as answers: a page for people, JSON for programs, always with the sentence and the remedy."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse

from hanse.errors import HanseError, Owner, Reason, Unauthenticated, http_status
from hanse.logs import logger
from hanse_dashboard.render import page, url

__all__ = ["Fault", "add_to"]


class Fault(BaseModel):
    """Why a request was not answered as asked."""

    code: str
    sentence: str
    owner: str
    remedy: str


def _status(error: HanseError) -> int:
    return 429 if error.code == "TOO_MANY_ATTEMPTS" else http_status(error)


def _is_api(request: Request) -> bool:
    root: str = request.scope.get("root_path", "")
    return request.url.path.removeprefix(root).startswith(("/api/", "/live"))


def answer(request: Request, reason: Reason, status: int) -> Response:
    """An error in the form that the asker can use."""
    if _is_api(request):
        fault = Fault(code=reason.code, sentence=reason.sentence, owner=reason.owner.value, remedy=reason.remedy)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return JSONResponse(fault.model_dump(), status_code=status, headers=headers)
    titles = {401: "Log in", 403: "Not allowed", 404: "Not found", 409: "Not possible now", 503: "Not available"}
    return page(request, "error.html", title=titles.get(status, "Something went wrong"), status=status, reason=reason)


async def _hanse_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HanseError)
    if isinstance(error, Unauthenticated) and not _is_api(request):
        root: str = request.scope.get("root_path", "")
        back = request.url.path.removeprefix(root) + (f"?{request.url.query}" if request.url.query else "")
        login = url(request, "/login", next=back if request.method == "GET" and back != "/" else "", why=error.code)
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": login})
        return RedirectResponse(login, status_code=303)
    return answer(request, error.reason, _status(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: ("There is nothing at this address.", "Look in the menu for what you seek."),
        405: ("This address does not take that kind of request.", ""),
    }
    sentence, remedy = sentences.get(error.status_code, (str(error.detail), ""))
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "HTTP_ERROR")
    reason = Reason(code=code, sentence=sentence, owner=Owner.OPERATOR, remedy=remedy)
    response = answer(request, reason, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentences = []
    for item in error.errors()[:5]:
        place: list[Any] = [part for part in item["loc"] if part not in ("query", "path", "body")]
        sentences.append(f"{'.'.join(map(str, place)) or 'The request'}: {item['msg'][:200]}")
    reason = Reason(
        code="INVALID_REQUEST",
        sentence="; ".join(sentences) + ".",
        owner=Owner.OPERATOR,
        remedy="Mend it and try again.",
    )
    return answer(request, reason, 422)


async def _unexpected(request: Request, error: Exception) -> Response:
    logger().error("unexpected error", path=request.url.path, error=repr(error), exc_info=error)
    reason = Reason(
        code="UNEXPECTED",
        sentence="The dashboard made a mistake on this page.",
        owner=Owner.PLATFORM,
        remedy="Its log has the details; the federation itself is not touched.",
    )
    return answer(request, reason, 500)


def add_to(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(HanseError, _hanse_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)
