"""The ledger's pages: one search box, the entries, one entry, and the proof that the trail is whole."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from hanse.errors import Conflict, NotFound
from hanse.ledger import Verification, verify
from hanse_dashboard.acting import ActingViewer
from hanse_dashboard.queries import trail as queries
from hanse_dashboard.render import page, url
from hanse_dashboard.state import Dashboard, Desk, Viewer

router = APIRouter()

Words = Annotated[str, Query(max_length=200)]


@router.get("/ledger")
def ledger(
    request: Request,
    desk: Desk,
    caller: Viewer,
    q: Words = "",
    job: Words = "",
    node: Words = "",
    kind: Words = "",
    actor: Words = "",
    after: Words = "",
) -> Response:
    """The newest entries, or what was searched for."""
    with desk.read() as view:
        hits = queries.find(view, q)
        found = queries.event_rows(view, job=job, node=node, kind=kind, actor=actor, after=after, limit=50)
        kinds, head = queries.known_kinds(view), view.head()
    if len(hits) == 1 and hits[0].kind == "event":
        return RedirectResponse(url(request, f"/ledger/{hits[0].sequence}"), status_code=303)
    return page(
        request,
        "ledger.html",
        title="Ledger",
        live={"after": head.sequence},
        found=found,
        hits=hits,
        q=q,
        kinds=kinds,
        head=head,
        chosen={"job": job, "node": node, "kind": kind, "actor": actor, "after": after},
    )


@router.get("/ledger/{sequence}")
def entry_page(request: Request, desk: Desk, caller: Viewer, sequence: str) -> Response:
    """One entry and its proof."""
    if not sequence.isdecimal() or len(sequence) > 18:
        raise NotFound(f"“{sequence[:40]}” is no entry.", remedy="Entries have numbers.", code="NO_EVENT")
    with desk.read() as view:
        found = queries.entry(view, int(sequence))
    return page(request, "entry.html", title=f"Entry {found.event.sequence}", found=found)


@router.post("/ledger/verify")
def verify_page(request: Request, desk: Desk, caller: ActingViewer) -> Response:
    """Read the whole trail and prove it, here and now, without the coordinator."""
    begun = time.monotonic()
    result = verify_now(desk)
    return page(
        request, "verified.html", title="The trail was checked", result=result, seconds=time.monotonic() - begun
    )


def verify_now(desk: Dashboard) -> Verification:
    """The proof, one at a time.

    Raises:
        Conflict: somebody else's is under way.
    """
    with desk.verifying() as free:
        if not free:
            raise Conflict(
                "Somebody is checking the trail at this moment.", remedy="Try again when it is done.", code="VERIFYING"
            )
        with desk.read() as view:
            return verify(view)
