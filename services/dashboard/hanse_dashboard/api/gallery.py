"""Pictures and their numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from hanse_dashboard.api.parameters import As
from hanse_dashboard.api.tables import AS_FILE, Format, csv_file, safe
from hanse_dashboard.pictures import stored
from hanse_dashboard.queries.jobs import find_job
from hanse_dashboard.state import Desk, Viewer

router = APIRouter()


@dataclass(frozen=True, kw_only=True)
class PictureDocument:
    """A picture's numbers."""

    picture: stored.PictureRow
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@router.get("/jobs/{job}/pictures", response_model=list[stored.PictureRow], responses=AS_FILE)
def job_pictures(
    desk: Desk,
    caller: Viewer,
    job: Annotated[str, Path(max_length=200)],
    name: Annotated[str, Query(max_length=200)] = "",
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """The pictures of a job, newest first."""
    with desk.read() as view:
        found = stored.picture_rows(view, find_job(view, job).id, name=name)
    return csv_file(found, "pictures") if format is Format.CSV else found


@router.get("/pictures/{number}", response_model=PictureDocument, responses=AS_FILE)
def picture(
    desk: Desk,
    caller: Viewer,
    number: Annotated[int, Path(ge=1, lt=2**62)],
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """The numbers behind a picture."""
    with desk.read() as view:
        found = stored.find_picture(view, number)
    numbers = stored.load(desk, caller.token, found).numbers
    if format is Format.JSON:
        return PictureDocument(picture=found, columns=numbers.columns, rows=numbers.rows)
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([safe(column) for column in numbers.columns])
    writer.writerows([[safe(value) for value in row] for row in numbers.rows])
    headers = {"Content-Disposition": f'attachment; filename="picture-{number}.csv"'}
    return Response(buffer.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)
