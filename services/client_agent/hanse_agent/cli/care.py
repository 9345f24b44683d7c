"""The commands that look after a node: `doctor`, `report`, `leave`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, Exit, UsageError
from hanse.errors import HanseError, Owner, Reason
from hanse_agent.cli.arguments import CONFIG, DEFAULT_CONFIG

if TYPE_CHECKING:
    from hanse.configuration import Loaded
    from hanse_agent.doctor import Finding
    from hanse_agent.settings import AgentConfig

DEFAULT_IDLE = "65s"
IDLE = Annotated[
    str,
    typer.Option("--idle", metavar="DURATION", help="How long an idle connection has to hold; 0s leaves it out."),
]


def add_to(app: typer.Typer) -> None:
    """Register `hanse-agent doctor`, `report` and `leave`."""
    command(app, "doctor", state="")(doctor)
    command(app, "report", state="")(report)
    command(app, "leave", state="")(leave)


def doctor(
    run: Run,
    config: CONFIG = DEFAULT_CONFIG,
    pre: Annotated[
        str,
        typer.Option(
            "--pre",
            metavar="HOST:PORT",
            help="Before any invitation: examine the way to this coordinator, and this machine. CONFIG may be missing.",
        ),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="file:PATH|-",
            show_default=False,
            help="An invitation that was not used yet: file:PATH, or - for standard input. It is not used up.",
        ),
    ] = "",
    idle: IDLE = DEFAULT_IDLE,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
) -> Answer:
    """Examine whether this machine is fit to be a node: the way to the coordinator, clock, disk, data, policy.

    Exit code 0: all is well; 1: something failed. Each failing line says cause, remedy and where it is explained.
    """
    from hanse_agent.doctor import State, text

    findings = _examined(run, config, pre=pre, token=token, idle=idle)
    bad = [item for item in findings if item.state is State.FAILED or (strict and item.state is State.WARNING)]
    data = {"healthy": not bad, "checks": [item.document() for item in findings]}
    if not bad:
        return Answer(data=data, text=text(findings))
    reason = Reason(
        code="DOCTOR",
        sentence=f"{len(bad)} of {len(findings)} checks failed: {', '.join(item.check for item in bad)}.",
        owner=Owner.SITE,
        remedy="Each line says what helps; begin with the first.",
    )
    return Answer(data=data, text=text(findings), reason=reason, exit_code=Exit.FAILED)


def report(
    run: Run,
    config: CONFIG = DEFAULT_CONFIG,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The archive (zip) to write.")] = Path(
        "hanse-report.zip"
    ),
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--log",
            metavar="FILE",
            show_default=False,
            help="A log of the agent; its last lines are taken. May be repeated.",
        ),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Replace the site's own words: hosts, datasets, columns, paths, labels.")
    ] = False,
    idle: IDLE = "0s",
) -> Answer:
    """Pack what helps others to help into one archive: no keys, no secrets, no records."""
    from hanse_agent.report import make_report

    loaded = _loaded(config)
    findings = _examined(run, config, pre="", token="", idle=idle)
    files = make_report(loaded, findings, logs=log or [], output=output, redact=redact)
    shown = "\n".join(f"  {name}" for name in files)
    how = (
        "Hosts, datasets and paths are replaced." if redact else "Hosts, datasets and paths stand in it; see --redact."
    )
    return Answer(
        data={"file": str(output), "contents": files, "redacted": redact},
        text=f"{output} holds\n{shown}\nNo key, no secret and no record is in it. {how} Look before you send it.",
    )


def leave(
    run: Run,
    config: CONFIG = DEFAULT_CONFIG,
    journal: Annotated[
        bool, typer.Option("--journal", help="Remove the egress journal as well, which is otherwise kept.")
    ] = False,
    yes: commands.YES_OPTION = False,
) -> Answer:
    """Leave the federation: remove the node's key, certificate and all states from this machine.

    Datasets and agent.yaml stay, and so does the journal of what left.
    """
    from dataclasses import asdict

    from hanse_agent.leaving import leave as remove

    state = _loaded(config).settings.state
    run.confirm(
        f"Key, certificate and states in {state} are removed. The node comes back only by a new invitation.", yes=yes
    )
    left = remove(state, journal=journal)
    if not left.removed:
        return Answer(data=asdict(left), text=f"There is nothing to remove in {state}.")
    kept = f"\nKept: {', '.join(str(state / name) for name in left.kept)}" if left.kept else ""
    after = f"\nTell the operator: hanse node revoke {shlex.quote(left.node)} --why 'left'" if left.node else ""
    return Answer(data=asdict(left), text=f"{left.node or 'The node'} has left; {state} is cleared.{kept}{after}")


def _loaded(path: Path) -> Loaded[AgentConfig]:
    from hanse_agent.settings import AgentConfig

    return AgentConfig.configuration(path)


def _examined(run: Run, path: Path, *, pre: str, token: str, idle: str) -> list[Finding]:
    from hanse import logs
    from hanse.security import Address, read_invitation
    from hanse.settings import parse_duration
    from hanse_agent.doctor import examine, subject
    from hanse_agent.doctor.findings import failure, ok

    if pre and token:
        raise UsageError(
            "--pre is for the time before an invitation, and --token gives one.", remedy="Give one of them."
        )
    try:
        seconds = parse_duration(idle).total_seconds()
    except ValueError as error:
        raise UsageError(f"--idle: {error}.") from None
    logs.configure(level="error")  # findings say it all
    config, read = None, []
    if not pre or path.exists():
        try:
            config = _loaded(path).settings
            read = [ok("configuration", f"{path} is read")]
        except HanseError as error:
            read = [failure("configuration", error, "The file is not what an agent can work with.")]
    who = subject(config, Address.parse(pre) if pre else None, read_invitation(token) if token else None)
    return [*read, *asyncio.run(examine(who, idle_s=seconds, tell=run.note))]
