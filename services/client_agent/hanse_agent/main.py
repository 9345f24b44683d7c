"""`hanse-agent`: the site operator's command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from hanse.cli.program import run_program
from hanse_agent.cli import applying, approving, care, joining, running, showing
from hanse_agent.environment import honour_capitals

app = typer.Typer(
    name="hanse-agent",
    help="A node of a federation: trains on records that stay here.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from hanse import __version__

        typer.echo(f"hanse-agent {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for part in (joining, running, showing, applying, care):
    part.add_to(app)
app.add_typer(approving.group)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code and shows no traceback."""
    honour_capitals()
    return run_program(app, arguments, program="hanse-agent")


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
