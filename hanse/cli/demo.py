"""`hanse demo …`: whole federations on this machine, on real data."""

from __future__ import annotations

from typing import Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer
from hanse.errors import OperatorError

group = commands.group("demo", "Whole federations on this machine, on real data.")


@group.callback()
def _demo() -> None:
    pass


@command(group, "activity", state="Run in this folder and keep it. Else in a temporary one.")
def activity(
    run: Run,
    nodes: Annotated[
        int, typer.Option(min=2, max=10, help="So many people, each a node with a process of its own.")
    ] = 10,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Boosting rounds.")] = 30,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the state folder, also one that was made for this run.")
    ] = False,
) -> Answer:
    """Recognise exercises from smart-watch recordings that stay with each person (FedSCS-XGB).

    Starts a federation with mutual TLS, one agent a person, trains, and compares with central and local training.
    """
    try:
        from hanse.demos.activity import run_demo
    except ImportError as error:
        raise OperatorError(
            f"The demo needs the Python package {error.name}.", remedy="Install hanse[demo].", code="NOT_INSTALLED"
        ) from error
    return run_demo(nodes=nodes, rounds=rounds, state=run.state, keep=keep, say=run.note)
