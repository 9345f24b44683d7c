"""How a whole command line is run: `hanse` and `hanse-agent` end in the same way, whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from hanse.cli.command import Run, command_name
from hanse.cli.output import Cancelled, Exit, UsageError


def run_program(app: typer.Typer, arguments: Sequence[str], *, program: str) -> int:
    """Run a tree of commands; the exit code. No error of the person's shows a traceback."""
    root = typer.main.get_command(app)
    as_json = "--json" in arguments
    try:
        code = root.main(args=list(arguments), prog_name=program, standalone_mode=False)
    except KeyboardInterrupt:
        Run("", json=as_json, program=program).fail(Cancelled("Stopped by the keyboard.").reason)
        return Exit.CANCELLED
    except (typer.Abort, typer.Exit) as end:
        return int(getattr(end, "exit_code", Exit.CANCELLED))
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _usage(error, str(message()), as_json=as_json, program=program)
    return int(code) if isinstance(code, int) else Exit.OK


def _usage(error: Exception, message: str, *, as_json: bool, program: str) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{message}\n")
        return Exit.USAGE
    path = context.command_path if context is not None else program
    name = command_name(context) if context is not None else ""
    failed = UsageError(message.rstrip(".") + ".", remedy=f"See `{path} --help`.")
    Run(name, json=as_json, program=program).fail(failed.reason)
    return Exit.USAGE
