"""`hanse demo …`: whole federations on this machine."""

from __future__ import annotations

from pathlib import Path
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
        raise _not_installed(error, "demo") from error
    return run_demo(nodes=nodes, rounds=rounds, state=run.state, keep=keep, say=run.note)


@command(group, "images", state="Run in this folder and keep it. Else in a temporary one.")
def images(
    run: Run,
    unseen: Annotated[
        int, typer.Option(metavar="ANGLE", help="The domain that takes no part in training: 0, 15, 30, 45, 60 or 75.")
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of training.")] = 15,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the state folder, also one that was made for this run.")
    ] = False,
) -> Answer:
    """Recognise digits turned by an angle that no node has trained on (gPerXAN).

    Starts a federation with mutual TLS, one agent a domain; one domain is left out of the training and evaluates.
    """
    try:
        from hanse.demos.image_data import ANGLES
        from hanse.demos.images import run_demo
    except ImportError as error:
        raise _not_installed(error, "demo-images") from error
    if unseen not in ANGLES:
        raise OperatorError(f"There is no domain of {unseen} degrees.", remedy=f"Choose one of {list(ANGLES)}.")
    try:
        return run_demo(unseen=unseen, rounds=rounds, state=run.state, keep=keep, say=run.note)
    except ImportError as error:
        raise _not_installed(error, "demo-images") from error


@command(group, "charging", state="Run in this folder and keep it. Else in a temporary one.")
def charging(
    run: Run,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="Real sessions: one .csv or .parquet file a station, with the columns start, end and energy_kwh. "
            "Else generated ones.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of training.")] = 6,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the state folder, also one that was made for this run.")
    ] = False,
) -> Answer:
    """Forecast charging demand (Fed-GAME): each station by a model that fits it, from sessions that stay there.

    Starts a federation with mutual TLS, one agent a station; one station is left out of the training and adapts.
    """
    from hanse.demos.charging import run_demo

    try:
        return run_demo(data=data, rounds=rounds, state=run.state, keep=keep, say=run.note)
    except ImportError as error:
        raise _not_installed(error, "demo-images") from error


def _not_installed(error: ImportError, extra: str) -> OperatorError:
    return OperatorError(
        f"The demo needs the Python package {error.name}.", remedy=f"Install hanse[{extra}].", code="NOT_INSTALLED"
    )
