"""Jobs side by side, and models with where they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from hanse.errors import NotFound
from hanse.v1 import control_pb2
from hanse_dashboard.pictures.curves import chart_data, draw_curves
from hanse_dashboard.queries import metrics
from hanse_dashboard.queries.jobs import find_job, job_detail, job_rows
from hanse_dashboard.queries.models import differences, model_rows
from hanse_dashboard.render import page
from hanse_dashboard.state import Desk, Researcher, Viewer

router = APIRouter()

MOST = 5
Words = Annotated[str, Query(max_length=200)]


@router.get("/compare")
def compare(
    request: Request,
    desk: Desk,
    caller: Viewer,
    job: Annotated[list[str], Query(max_length=20)] = [],  # noqa: B006 - FastAPI copies it
    metric: Words = "",
    all_keys: Annotated[str, Query(alias="all", max_length=5)] = "",
) -> Response:
    """Two to five jobs: curves over each other, last and best values, and what differs in the job files."""
    with desk.read() as view:
        records = [find_job(view, name) for name in dict.fromkeys(job) if name][:MOST]
        details = [job_detail(view, record.id) for record in records]
        names = sorted({(item.name) for detail in details for item in detail.metrics})
        chosen = metric if metric in names else _usual(details, names)
        lines = []
        for record in records:
            for curve in metrics.curves(view, record.id, chosen, nodes=False) if chosen else []:
                if curve.scope in ("pooled", "unseen"):
                    label = f"{record.name} {record.id[-4:]}" + (" (unseen)" if curve.scope == "unseen" else "")
                    lines.append(
                        metrics.Curve(
                            name=label, scope=curve.scope, node=label, rounds=curve.rounds, values=curve.values
                        )
                    )
        recent = job_rows(view, limit=50).rows
        found = differences(records) if len(records) > 1 else []
    data = chart_data(lines)
    for line, curve in zip(data["lines"], lines, strict=False):
        line["name"] = curve.node
    return page(
        request,
        "compare.html",
        title="Compare",
        records=records,
        details=details,
        metric=chosen,
        metrics=names,
        differences=[row for row in found if all_keys or not row.same],
        show_all=bool(all_keys),
        recent=recent,
        curve_data=data,
        curve_picture=draw_curves(lines, f"{chosen} over rounds"),
        chosen=[record.id for record in records],
        most=MOST,
    )


def _usual(details: list[Any], names: list[str]) -> str:
    for detail in details:
        if detail.job.metric and detail.job.metric.name in names:
            return str(detail.job.metric.name)
    return names[0] if names else ""


@router.get("/models")
def models(request: Request, desk: Desk, caller: Viewer, after: Words = "") -> Response:
    """Models, and what each was trained by."""
    with desk.read() as view:
        found = model_rows(view, after=after)
        head = view.head().sequence
    return page(request, "models.html", title="Models", live={"after": head}, found=found, chosen={"after": after})


@router.get("/models/{job}/download")
def download(desk: Desk, caller: Researcher, job: str) -> Response:
    """The model's payload, byte for byte as the ledger knows it by its digest; fetched in the caller's own name."""
    with desk.read() as view:
        record = find_job(view, job)
    if not record.model_digest:
        raise NotFound(f"Job {record.name} has no model yet.", remedy="Wait for its first round.", code="NO_MODEL")

    with desk.coordinator.acting_as(caller.token) as control:
        control.federation()  # a fault is told as a page, before the first byte

    def chunks() -> Iterator[bytes]:
        with desk.coordinator.acting_as(caller.token) as control:
            for chunk in control.stream("PullModel", control_pb2.PullModelRequest(job=record.id)):
                yield chunk.data

    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in record.name) or "model"
    name = json.dumps(f"{safe}-{record.model_digest[:12]}.hanse")
    return StreamingResponse(
        chunks(),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f"attachment; filename={name}", "X-Hanse-Sha256": record.model_digest},
    )
