"""The live channel: one event stream a page, and a poll for where streams do not pass."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from hanse.errors import HanseError, PlatformError
from hanse_dashboard.feed import MOST_STREAMS, Subscription
from hanse_dashboard.state import Dashboard, Desk, Viewer

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_Sequence = Annotated[int, Query(ge=0, lt=2**62)]
_Name = Annotated[str, Query(max_length=200)]


def _status(desk: Dashboard) -> dict[str, Any]:
    presence = desk.coordinator.presence()
    return {"coordinator": presence.answers, "fault": presence.sentence if not presence.answers else ""}


@router.get("/live")
def stream(
    request: Request,
    desk: Desk,
    caller: Viewer,
    after: _Sequence = 0,
    job: _Name = "",
    node: _Name = "",
    last_event_id: Annotated[str, Header(max_length=40)] = "",
) -> StreamingResponse:
    """Changes after a sequence number; a browser that reconnects says the last one it saw."""
    if desk.feed.streams >= MOST_STREAMS:
        raise PlatformError(
            "This replica has as many live pages as it can serve.", remedy="The page asks now and then instead."
        )
    seen = int(last_event_id) if last_event_id.isdigit() and len(last_event_id) < 19 else after
    wanted = Subscription(after=seen, job=job or None, node=node or None)

    def still_welcome() -> bool:
        try:
            desk.gate.caller(request, touch=False)
        except HanseError as error:
            return error.retryable  # a database that is away for a moment logs nobody out
        return True

    return StreamingResponse(
        desk.feed.stream(wanted, status=lambda: _status(desk), still_welcome=still_welcome),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.get("/live/poll")
def poll(desk: Desk, caller: Viewer, after: _Sequence = 0, job: _Name = "", node: _Name = "") -> dict[str, Any]:
    """Whether anything has changed after a sequence number."""
    with desk.read() as view:
        head = view.head().sequence
        if job or node:
            changed = bool(view.events(after=after, limit=1, job=job or None, node=node or None))
        else:
            changed = head > after
    return {"sequence": head, "changed": changed, **_status(desk)}
