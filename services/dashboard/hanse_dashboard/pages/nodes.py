"""Nodes on two axes, and one node with all that left it."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from hanse.errors import OperatorError
from hanse.ledger import Trust
from hanse.v1 import control_pb2
from hanse_dashboard.acting import ActingOperator
from hanse_dashboard.queries import nodes as queries
from hanse_dashboard.queries.egress import egress_rows
from hanse_dashboard.queries.overview import slow_nodes
from hanse_dashboard.queries.trail import event_rows
from hanse_dashboard.render import page, url
from hanse_dashboard.state import Desk, Viewer

router = APIRouter()

Words = Annotated[str, Query(max_length=200)]


def trust_of(word: str) -> list[Trust]:
    """The trust that a filter names.

    Raises:
        OperatorError: no such word.
    """
    try:
        return [Trust(word)] if word else []
    except ValueError:
        raise OperatorError(
            f"“{word}” is no trust of a node.", remedy=f"Known: {', '.join(Trust)}.", code="INVALID_STATE"
        ) from None


def online_of(word: str) -> bool | None:
    """The health that a filter names: connected, or not.

    Raises:
        OperatorError: no such word.
    """
    known = {"": None, "online": True, "offline": False}
    if word not in known:
        raise OperatorError(f"“{word}” is no health of a node.", remedy="Known: online, offline.", code="INVALID_STATE")
    return known[word]


@router.get("/nodes")
def nodes(
    request: Request,
    desk: Desk,
    caller: Viewer,
    trust: Words = "",
    health: Words = "",
    q: Words = "",
    after: Words = "",
) -> Response:
    """All nodes: are they trusted, are they there?"""
    now = time.time()
    with desk.read() as view:
        found = queries.node_rows(
            view,
            now=now,
            coordinator_answers=desk.coordinator.presence().answers,
            slow=slow_nodes(view, now),
            trust=trust_of(trust),
            online=online_of(health),
            text=q,
            after=after,
        )
        counts, head = queries.node_counts(view), view.head().sequence
    return page(
        request,
        "nodes.html",
        title="Nodes",
        live={"after": head},
        found=found,
        counts=counts,
        chosen={"trust": trust, "health": health, "q": q, "after": after},
    )


@router.get("/nodes/{name}")
def node_page(request: Request, desk: Desk, caller: Viewer, name: str, job: Words = "", after: Words = "") -> Response:
    """One node, and what left it: when, to which job, how large."""
    now = time.time()
    with desk.read() as view:
        found = queries.node_detail(
            view,
            name,
            now=now,
            coordinator_answers=desk.coordinator.presence().answers,
            slow=name in slow_nodes(view, now),
        )
        left = egress_rows(view, name, job=job, after=after, limit=25)
        refusals = queries.refusals(view, name)
        events = event_rows(view, node=name, limit=12).rows
    return page(
        request,
        "node.html",
        title=name,
        live={"after": found.sequence, "node": name},
        found=found,
        totals=found.totals[:100],
        left=left,
        refusals=refusals,
        events=events,
        chosen={"job": job, "after": after},
    )


@router.post("/nodes/{name}/revoke")
def revoke(
    request: Request,
    desk: Desk,
    caller: ActingOperator,
    name: str,
    why: Annotated[str, Form(max_length=1000)] = "",
    confirm: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Let a node in no more."""
    if confirm.strip() != name:
        raise OperatorError(
            "The name that was typed is not the node's name, so nothing was revoked.",
            remedy=f"Type {name} to confirm.",
            code="NOT_CONFIRMED",
        )
    with desk.coordinator.acting_as(caller.token) as control:
        control.call("RevokeNode", control_pb2.RevokeNodeRequest(name=name, why=why))
    return RedirectResponse(url(request, f"/nodes/{name}"), status_code=303)
