"""The tree of commands, and how a run of it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from hanse.cli import authority, demo, jobs, ledger, models, nodes, plugins, tokens, up
from hanse.cli.program import run_program

app = typer.Typer(
    name="hanse",
    help="Federated learning where records stay where they are.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from hanse import __version__

        typer.echo(f"hanse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


up.add_to(app)
for part in (jobs, nodes, models, ledger, tokens, authority, demo, plugins):
    app.add_typer(part.group)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return run_program(app, arguments, program="hanse")
