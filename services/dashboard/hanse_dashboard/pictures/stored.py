"""Where pictures come from: the artifact folder, or the coordinator in the caller's own name."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from hanse.cli.pull import receive
from hanse.errors import NotFound
from hanse.ledger import Picture, View, models
from hanse.payload import Payload
from hanse.security import OperatorToken
from hanse.v1 import control_pb2
from hanse_dashboard.pictures.shown import Shown, show
from hanse_dashboard.state import Dashboard

__all__ = ["PictureRow", "find_picture", "load", "picture_rounds", "picture_rows"]


@dataclass(frozen=True, kw_only=True)
class PictureRow:
    """A picture in a list."""

    id: int
    job: str
    round: int
    name: str
    kind: str
    title: str
    digest: str


def _row(picture: Picture) -> PictureRow:
    return PictureRow(
        id=picture.id,
        job=picture.job,
        round=picture.round,
        name=picture.name,
        kind=picture.kind,
        title=picture.title,
        digest=picture.digest,
    )


def find_picture(view: View, number: int) -> PictureRow:
    """A picture by its number.

    Raises:
        NotFound: there is none.
    """
    table = models.picture
    found = view._first(Picture, view._select(table, Picture).where(table.c.id == number))
    if found is None:
        raise NotFound(f"There is no picture {number}.", code="NO_PICTURE")
    return _row(found)


def picture_rows(view: View, job: str, *, name: str = "", limit: int = 500) -> list[PictureRow]:
    """The pictures of a job, newest first."""
    return [_row(picture) for picture in view.pictures(job, name=name or None, limit=limit)]


def picture_rounds(view: View, picture: PictureRow) -> list[tuple[int, int]]:
    """(round, number) of the same picture in every round."""
    table = models.picture
    statement = select(table.c.round, table.c.id).where(table.c.job == picture.job, table.c.name == picture.name)
    return [(row[0], row[1]) for row in view.rows(statement.order_by(table.c.round, table.c.id))]


def load(desk: Dashboard, token: OperatorToken, picture: PictureRow) -> Shown:
    """A picture, drawn.

    Raises:
        NotFound: its bytes are gone.
        InvalidPayload: it is no picture of its kind.
        HanseError: neither the folder nor the coordinator can give it.
    """
    digest = bytes.fromhex(picture.digest)
    if desk.store is not None and desk.store.exists(digest):
        return show(desk.store.open(digest), picture.kind)
    with desk.coordinator.acting_as(token) as control:
        image = receive(control.stream("PullArtifact", control_pb2.PullArtifactRequest(digest=digest)))
    return show(Payload.from_image(image), picture.kind)
