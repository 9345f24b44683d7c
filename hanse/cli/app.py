"""The tree of commands, and how a run of it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from hanse.cli import authority, demo, jobs, ledger, models, nodes, tokens, up
from hanse.cli.command import Run, command_name
from hanse.cli.output import Cancelled, Exit, UsageError

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
for part in (jobs, nodes, models, ledger, tokens, authority, demo):
    app.add_typer(part.group)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code and never raises."""
    root = typer.main.get_command(app)
    as_json = "--json" in arguments
    try:
        code = root.main(args=list(arguments), prog_name="hanse", standalone_mode=False)
    except KeyboardInterrupt:
        Run("", json=as_json).fail(Cancelled("Stopped by the keyboard.").reason)
        return Exit.CANCELLED
    except (typer.Abort, typer.Exit) as end:
        return int(getattr(end, "exit_code", Exit.CANCELLED))
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _usage(error, message(), as_json=as_json)
    return int(code) if isinstance(code, int) else Exit.OK


def _usage(error: Exception, message: str, *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{message}\n")
        return Exit.USAGE
    path = context.command_path if context is not None else "hanse"
    failed = UsageError(message.rstrip(".") + ".", remedy=f"See `{path} --help`.")
    Run(command_name(context) if context is not None else "", json=as_json).fail(failed.reason)
    return Exit.USAGE
