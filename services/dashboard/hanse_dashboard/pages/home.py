"""The first page, and the page of keys and words."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from hanse_dashboard.queries.overview import Overview, overview
from hanse_dashboard.render import page
from hanse_dashboard.state import Desk, Viewer
from hanse_dashboard.words import STATES

router = APIRouter()


@router.get("/")
def home(request: Request, desk: Desk, caller: Viewer) -> Response:
    """Is the federation healthy, whose move is it, what is next?"""
    with desk.read() as view:
        found = overview(view, time.time())
    answers = desk.coordinator.presence().answers
    return page(
        request,
        "home.html",
        title="Overview",
        live={"after": found.head},
        found=found,
        verdict=_verdict(found, answers=answers),
    )


def _verdict(found: Overview, *, answers: bool) -> tuple[str, str, str]:
    """(tone, icon, sentence): what a person must know in the first second."""
    if not answers:
        return "bad", "warning", "The coordinator does not answer: no job moves."
    bad = sum(item.tone == "bad" for item in found.attention)
    if found.attention:
        count = len(found.attention)
        words = "One thing needs somebody." if count == 1 else f"{count} things need somebody."
        return ("bad", "warning", words) if bad else ("warn", "warning", words)
    approved, online = found.nodes.get("approved", 0), found.nodes.get("online", 0)
    if not approved:
        return "idle", "mail", "No node has joined yet. Invite the first one."
    running = found.jobs.get("running", 0)
    jobs = "no job runs" if not running else "one job runs" if running == 1 else f"{running} jobs run"
    nodes = f"{online} of {approved} nodes are online"
    return "good", "check", f"All is well: {nodes}, {jobs}."


@router.get("/help")
def words(request: Request, desk: Desk, caller: Viewer) -> Response:
    """Keys, and what the words on the pages mean."""
    return page(request, "help.html", title="Keys and words", states=STATES)
