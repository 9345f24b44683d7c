"""`hanse-agent status` and `egress`: what a node is and does, and what has left it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hanse.cli.command import Run, command
from hanse.cli.output import Answer, UsageError, fields, printable, table
from hanse_agent.cli.arguments import CONFIG, CONFIG_OPTION, DEFAULT_CONFIG, load


def add_to(app: typer.Typer) -> None:
    """Register `hanse-agent status` and `egress`."""
    command(app, "status", state="")(status)
    command(app, "egress", state="")(egress)


def status(run: Run, config: CONFIG = DEFAULT_CONFIG) -> Answer:
    """Show who this node is, whether it is connected, what it does and what went wrong last."""
    from hanse_agent.status import read_status

    found = read_status(load(config))
    return Answer(data=found, text=_status_text(found))


def _status_text(found: dict[str, Any]) -> str:
    connection, error, certificate = found["connection"], found["last_error"] or {}, found["certificate"]
    work = [
        f"{printable(item['job_name'])} round {item['round']}, {item['phase']}: {item['stage']}"
        + (f" {item['fraction']:.0%}" if item["fraction"] is not None else "")
        for item in found["work"]
    ]
    data = [
        f"{item['name']}: " + (item.get("unavailable") or f"{item['rows']:,} rows ({item['kind']})")
        for item in found["datasets"]
    ]
    connected = [str(connection[key]) for key in ("state", "coordinator", "since") if key in connection]
    joined = found["node"] or "has not joined; run hanse-agent join"
    until = f"until {certificate['until']}{' (EXPIRED)' if certificate['expired'] else ''}" if certificate else ""
    return fields(
        [
            ("node", joined),
            ("state", found["state"]),
            ("certificate", until),
            ("agent", f"running, process {found['pid']}" if found["running"] else "not running"),
            ("connection", " ".join(connected)),
            ("clock", _clock(found["clock_skew_s"])),
            ("datasets", "; ".join(data)),
            ("methods", ", ".join(found["methods"])),
            ("work", "; ".join(work) or ("none: waiting for the coordinator" if found["running"] else "")),
            ("approvals", ", ".join(found["waiting_for_approval"])),
            ("last error", f"{error['when']} {error['sentence']} {error['remedy']} [{error['code']}]" if error else ""),
        ]
    )


def _clock(skew: float | None) -> str:
    if skew is None or abs(skew) < 1:
        return ""
    return f"{abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} the coordinator's"


def egress(
    run: Run,
    config: CONFIG_OPTION = DEFAULT_CONFIG,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only of this job (id or name).")] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Only since then: 24h, 7d, or 2026-01-31T08:00Z.")
    ] = "",
) -> Answer:
    """List everything that has left this site, from the journal that is written before it leaves."""
    from hanse_agent.egress import EgressJournal
    from hanse_agent.folder import StateFolder

    journal = EgressJournal(StateFolder(load(config).state).egress)
    found = list(journal.entries(job=job, since=_moment(since)))
    rows = [
        [
            str(line["when"]),
            str(line["event"]),
            printable(str(line["job_name"])),
            str(line["round"]),
            str(line["phase"]),
            str(line["kind"]),
            f"{line['bytes']:,}",
            str(line["digest"])[:12],
        ]
        for line in found
    ]
    head = ["WHEN", "EVENT", "JOB", "ROUND", "PHASE", "KIND", "BYTES", "DIGEST"]
    return Answer(data=found, text=table(head, rows, empty="Nothing has left this site."))


def _moment(text: str) -> Any:
    from datetime import UTC, datetime

    from hanse.settings import parse_duration

    if not text:
        return None
    try:
        return datetime.now(UTC) - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is no moment.", remedy="Write 24h, 7d, or 2026-01-31T08:00Z.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
