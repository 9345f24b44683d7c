"""A picture of a round, drawn, and its numbers under it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import HTMLResponse

from hanse.errors import NotFound
from hanse_dashboard.pictures import stored
from hanse_dashboard.render import page
from hanse_dashboard.state import Desk, Viewer

router = APIRouter()

_MOST_ROWS = 200


@router.get("/pictures/{number}/preview")
def preview(request: Request, desk: Desk, caller: Viewer, number: str) -> Response:
    """The drawing alone, for a page that shows several."""
    with desk.read() as view:
        picture = stored.find_picture(view, _known(number))
    shown = stored.load(desk, caller.token, picture)
    return HTMLResponse(shown.drawings[0][1] if shown.drawings else "")


def _known(number: str) -> int:
    if not number.isdecimal() or len(number) > 18:
        raise NotFound(f"“{number[:40]}” is no picture.", code="NO_PICTURE")
    return int(number)


@router.get("/pictures/{number}")
def picture_page(request: Request, desk: Desk, caller: Viewer, number: str) -> Response:
    """One picture."""
    with desk.read() as view:
        picture = stored.find_picture(view, _known(number))
        rounds = stored.picture_rounds(view, picture)
        job = view.job(picture.job)
    shown = stored.load(desk, caller.token, picture)
    place = next(index for index, (_, key) in enumerate(rounds) if key == picture.id)
    return page(
        request,
        "picture.html",
        title=picture.title.replace("`", ""),
        job=job,
        picture=picture,
        shown=shown,
        rows=shown.numbers.rows[:_MOST_ROWS],
        before=rounds[place - 1] if place else None,
        after=rounds[place + 1] if place + 1 < len(rounds) else None,
    )
