"""`hanse-agent approvals …`: a person's word on the jobs that wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, printable, table
from hanse_agent.cli.arguments import CONFIG_OPTION, DEFAULT_CONFIG, load

if TYPE_CHECKING:
    from hanse_agent.approvals import Approvals

group = commands.group("approvals", "Jobs that wait for a person's word at this site.")
JOB = Annotated[str, typer.Argument(metavar="JOB", help="Id or name of the job.")]


@command(group, "list", state="")
def list_approvals(run: Run, config: CONFIG_OPTION = DEFAULT_CONFIG) -> Answer:
    """List the jobs that have asked for approval here, those that wait first."""
    from dataclasses import asdict

    found = _approvals(config).list()
    rows = [[item.job, printable(item.name), item.method, item.dataset, item.state, item.since] for item in found]
    shown = table(["JOB", "NAME", "METHOD", "DATASET", "STATE", "SINCE"], rows, empty="No job has asked for approval.")
    return Answer(data=[asdict(item) for item in found], text=shown)


@command(group, "approve", state="")
def approve(run: Run, job: JOB, config: CONFIG_OPTION = DEFAULT_CONFIG) -> Answer:
    """Let a job run here. A running agent tells the coordinator within a second or two."""
    from dataclasses import asdict

    said = _approvals(config).say(job, "approved")
    return Answer(data=asdict(said), text=f"{said.name} ({said.job}) is approved.")


@command(group, "refuse", state="")
def refuse(run: Run, job: JOB, why: commands.WHY_OPTION = "", config: CONFIG_OPTION = DEFAULT_CONFIG) -> Answer:
    """Refuse a job; also one that was approved before: its next assignment is refused."""
    from dataclasses import asdict

    said = _approvals(config).say(job, "refused", why)
    return Answer(data=asdict(said), text=f"{said.name} ({said.job}) is refused.")


def _approvals(config: Path) -> Approvals:
    from hanse_agent.approvals import Approvals
    from hanse_agent.folder import StateFolder

    return Approvals(StateFolder(load(config).state).approvals)
