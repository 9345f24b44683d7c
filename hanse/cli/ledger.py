"""`hanse ledger …`: read the audit trail, and prove it whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, Exit, printable, table
from hanse.errors import OperatorError, Owner, Reason

group = commands.group("ledger", "The ledger: everything that happened, hash-chained.")

_LARGEST_FILE = 16 * 1024 * 1024


@command(group, "verify")
def verify(
    run: Run,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="FILE", show_default=False, help="Heads that a site kept; shows a trail that was cut."
        ),
    ] = None,
    ledger: Annotated[
        str,
        typer.Option(metavar="PATH|URL", show_default=False, help="Check this ledger itself, without the coordinator."),
    ] = "",
) -> Answer:
    """Prove the audit trail whole; the first bad entry is named otherwise (exit 1)."""
    heads = [head for path in against or [] for head in read_heads(path)]
    data = _offline(ledger, heads) if ledger else _online(run, heads)
    data["against"] = len(heads)
    reason = None
    if not data["whole"]:
        reason = Reason(
            code="LEDGER_NOT_WHOLE",
            sentence=data["sentence"],
            owner=Owner.OPERATOR,
            remedy="Keep the database as it is, find out who wrote to it, and restore a backup that verifies.",
        )
    text = f"{data['sentence']}\nhead {data['head']['sequence']} {data['head']['hash']}"
    if heads:
        text += f"\ncompared with {len(heads)} kept head{'s' if len(heads) > 1 else ''}"
    return Answer(data=data, text=text, reason=reason, exit_code=Exit.OK if reason is None else Exit.FAILED)


@command(group, "events")
def events(
    run: Run,
    job: Annotated[
        str, typer.Option(metavar="JOB", show_default=False, help="Only events of this job: id, or name of the newest.")
    ] = "",
    node: Annotated[str, typer.Option(metavar="NODE", show_default=False, help="Only events of this node.")] = "",
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
) -> Answer:
    """List what happened, oldest first."""
    from hanse.cli.views import iso, plain
    from hanse.v1 import control_pb2

    with run.connect() as control:
        if job:
            job = control.call("GetJob", control_pb2.GetJobRequest(job=job)).job.id
        request = control_pb2.ListEventsRequest(job=job, node=node, after=after)
        found = control.pages("ListEvents", request, lambda page: page.events, most=limit)
    rows = [
        (
            str(event.sequence),
            iso(event.at) or "",
            event.kind,
            event.job,
            printable(event.node),
            printable(event.actor),
            _short(event.body),
        )
        for event in found
    ]
    headings = ("NO", "AT", "EVENT", "JOB", "NODE", "BY", "WHAT")
    return Answer(data=[plain(event) for event in found], text=table(headings, rows, empty="There is no such event."))


def read_heads(path: Path) -> list[tuple[int, bytes]]:
    """Heads that were kept: a JSON object `{"sequence", "hash"}`, a list of them, or one a line.

    Raises:
        OperatorError: the file cannot be read or holds something else.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError("too large")
        text = path.read_text(encoding="utf-8")
        documents = _documents(text)
        heads = [(int(item["sequence"]), bytes.fromhex(item["hash"])) for item in documents]
        if not heads or any(len(digest) != 32 or number < 0 for number, digest in heads):
            raise ValueError("no head")
    except OSError as error:
        raise OperatorError(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Check the path.", code="FILE_NOT_READ"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"{path} holds no head of a ledger.",
            remedy='It must hold {"sequence": NUMBER, "hash": "64 hex digits"}, or one such object a line.',
            code="INVALID_HEADS",
        ) from error
    return heads


def _documents(text: str) -> list[Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return document if isinstance(document, list) else [document]


def _online(run: Run, heads: list[tuple[int, bytes]]) -> dict[str, Any]:
    from hanse.v1 import control_pb2, payload_pb2

    request = control_pb2.VerifyLedgerRequest(
        against=[payload_pb2.LedgerHead(sequence=number, hash=digest) for number, digest in heads]
    )
    with run.connect() as control:
        found = control.call("VerifyLedger", request)
    return {
        "whole": found.whole,
        "events": found.events,
        "head": {"sequence": found.head.sequence, "hash": found.head.hash.hex()},
        "first_bad": None if found.whole else found.first_bad,
        "sentence": printable(found.sentence),
    }


def _offline(place: str, heads: list[tuple[int, bytes]]) -> dict[str, Any]:
    try:
        from hanse.ledger import Ledger, verify
    except ImportError as error:
        raise OperatorError(
            f"Checking a ledger itself needs the Python package {error.name}.", remedy="Install hanse[coordinator]."
        ) from error
    url = place if "://" in place else f"sqlite:///{Path(place).expanduser()}"
    with Ledger.open(url, read_only=True) as ledger, ledger.read() as view:
        found = verify(view, heads)
    return {
        "whole": found.whole,
        "events": found.events,
        "head": {"sequence": found.head.sequence, "hash": found.head.hash.hex()},
        "first_bad": found.first_bad,
        "sentence": found.sentence,
    }


def _short(body: bytes, width: int = 100) -> str:
    """The event's own facts, without what the other columns say."""
    try:
        facts = json.loads(body).get("body", {})
    except (ValueError, AttributeError):
        return ""
    text = ", ".join(f"{key}={value}" for key, value in facts.items() if value not in (None, "", {}, []))
    return printable(text if len(text) <= width else text[: width - 1] + "…")
