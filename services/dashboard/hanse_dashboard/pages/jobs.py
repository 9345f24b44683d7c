"""Jobs: the list, one job, one round, and what can be done to a job."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from hanse.errors import NotFound, OperatorError
from hanse.ledger import JobState, View
from hanse.v1 import control_pb2
from hanse_dashboard.acting import ActingResearcher
from hanse_dashboard.pictures.curves import chart_data, draw_curves
from hanse_dashboard.pictures.grid import draw_grid
from hanse_dashboard.pictures.timeline import draw_timeline
from hanse_dashboard.queries.jobs import find_job, job_counts, job_detail, job_rows
from hanse_dashboard.queries.metrics import curves, metric_names, metrics_of_round
from hanse_dashboard.queries.models import differences, last_good_job
from hanse_dashboard.queries.rounds import RoundDetail, grid, round_detail
from hanse_dashboard.queries.trail import event_rows
from hanse_dashboard.render import page, url
from hanse_dashboard.state import Dashboard, Desk, Viewer

router = APIRouter()

_ACTIONS = {"cancel": "CancelJob", "pause": "PauseJob", "resume": "ResumeJob"}
Words = Annotated[str, Query(max_length=200)]


def states_of(word: str) -> list[JobState]:
    """The job states that a filter names.

    Raises:
        OperatorError: no such state.
    """
    if not word:
        return []
    groups = {"active": [JobState.SUBMITTED, JobState.WAITING, JobState.RUNNING, JobState.PAUSED]}
    try:
        return groups.get(word) or [JobState(word)]
    except ValueError:
        known = ", ".join(["active", *JobState])
        raise OperatorError(
            f"“{word}” is no state of a job.", remedy=f"Known: {known}.", code="INVALID_STATE"
        ) from None


@router.get("/jobs")
def jobs(
    request: Request,
    desk: Desk,
    caller: Viewer,
    state: Words = "",
    method: Words = "",
    q: Words = "",
    after: Words = "",
) -> Response:
    """Jobs, newest first."""
    with desk.read() as view:
        found = job_rows(view, states=states_of(state), method=method, text=q, after=after)
        counts, head = job_counts(view), view.head().sequence
    return page(
        request,
        "jobs.html",
        title="Jobs",
        live={"after": head},
        found=found,
        counts=counts,
        active=sum(counts.get(word, 0) for word in states_of("active")),
        chosen={"state": state, "method": method, "q": q, "after": after},
    )


@router.get("/jobs/{job}")
def job_page(
    request: Request,
    desk: Desk,
    caller: Viewer,
    job: str,
    metric: Words = "",
    until: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> Response:
    """One job."""
    with desk.read() as view:
        record = find_job(view, job)
        if record.id != job:
            return RedirectResponse(url(request, f"/jobs/{record.id}"), status_code=303)
        found = job_detail(view, record.id)
        cells = grid(view, record.id, until=until)
        names = metric_names(view, record.id)
        chosen = metric or (found.job.metric.name if found.job.metric else names[0][0] if names else "")
        lines = curves(view, record.id, chosen) if chosen else []
        last = round_detail(view, record.id, cells.last) if cells.rounds else None
        good = last_good_job(view, record)
        context: dict[str, Any] = {
            "found": found,
            "grid": cells,
            "metric": chosen,
            "metrics": [name for name, _ in names],
            "lines": lines,
            "last": last,
            "good": good,
            "changes": [row for row in differences([good, record]) if not row.same] if good else [],
            "events": event_rows(view, job=record.id, limit=12).rows,
            "pictures": newest_pictures(view, record.id),
        }
    return page(
        request,
        "job.html",
        title=record.name,
        live={"after": found.sequence, "job": record.id},
        grid_picture=draw_grid(cells, lambda n: url(request, f"/jobs/{record.id}/rounds/{n}"), _node_link(request)),
        curve_picture=draw_curves(lines, f"{chosen} over rounds"),
        curve_data=chart_data(lines),
        timeline=_timeline(request, last),
        **context,
    )


def _node_link(request: Request) -> Any:
    return lambda node: url(request, f"/nodes/{node}")


def _timeline(request: Request, detail: RoundDetail | None) -> Any:
    return draw_timeline(detail, time.time(), _node_link(request)) if detail else ""


def newest_pictures(view: View, job: str, *, round_number: int | None = None) -> list[Any]:
    """The newest picture of each name, or those of a round."""
    found: dict[str, Any] = {}
    for picture in view.pictures(job, limit=None if round_number is not None else 60):
        if round_number is None or picture.round == round_number:
            found.setdefault(picture.name, picture)
    return sorted(found.values(), key=lambda picture: picture.name)


@router.get("/jobs/{job}/rounds/{number}")
def round_page(request: Request, desk: Desk, caller: Viewer, job: str, number: int) -> Response:
    """One round: who was asked, who answered when, and what came out."""
    if not 0 <= number < 2**31:
        raise NotFound(f"There is no round {number}.", code="NO_ROUND")
    with desk.read() as view:
        record = find_job(view, job)
        found = round_detail(view, record.id, number)
        cells = grid(view, record.id, until=number, width=1)
        pictures = newest_pictures(view, record.id, round_number=number)
        head = view.head().sequence
    metrics = metrics_of_round(found)
    return page(
        request,
        "round.html",
        title=f"Round {number}",
        live={"after": head, "job": record.id} if found.closed_at is None else None,
        job=record,
        found=found,
        span_of=cells,
        timeline=_timeline(request, found),
        pictures=pictures,
        metrics=metrics,
        scopes={scope for item in metrics for scope in (*item.whole, *(["node"] if item.nodes else []))},
    )


@router.post("/jobs/{job}/{action}")
def change(
    request: Request,
    desk: Desk,
    caller: ActingResearcher,
    job: str,
    action: str,
    why: Annotated[str, Form(max_length=1000)] = "",
    confirm: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Cancel, pause or resume, in the caller's own name."""
    change_job(desk, caller.token, job, action, why, confirm=confirm)
    return RedirectResponse(url(request, f"/jobs/{job}"), status_code=303)


def change_job(desk: Dashboard, token: Any, job: str, action: str, why: str, *, confirm: str | None = None) -> Any:
    """Ask the coordinator to change a job.

    Raises:
        NotFound: no such action or job.
        OperatorError: a cancellation whose confirmation is not the job's name.
        HanseError: the coordinator's own reason.
    """
    if action not in _ACTIONS:
        raise NotFound(
            f"“{action[:40]}” is nothing that can be done to a job.", remedy=f"Known: {', '.join(_ACTIONS)}."
        )
    if action == "cancel" and confirm is not None:
        with desk.read() as view:
            name = find_job(view, job).name
        if confirm.strip() != name:
            raise OperatorError(
                "The name that was typed is not the job's name, so nothing was cancelled.",
                remedy=f"Type {name} to confirm.",
                code="NOT_CONFIRMED",
            )
    with desk.coordinator.acting_as(token) as control:
        return control.call(_ACTIONS[action], control_pb2.ChangeJobRequest(job=job, why=why))
