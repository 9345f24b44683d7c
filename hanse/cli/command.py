"""How a command is made: shared options, the envelope, and errors that never show a traceback.

A command is a function of a `Run` and its own options that returns an `Answer`:

    @command(group, "list")
    def list_tokens(run: Run) -> Answer: ...

`--json` (and `--state`, for commands that speak to a federation) are added here, so that no command lacks them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from hanse.cli.output import Answer, Cancelled, Exit, UsageError, envelope, error_line, exit_for, write_envelope
from hanse.errors import HanseError, Owner, Reason

if TYPE_CHECKING:
    from hanse.cli.connection import Control

P = ParamSpec("P")

JSON_OPTION = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
STATE_HELP = "State folder of the federation, for its client.yaml. Else HANSE_STATE, else ./hanse-state."
YES_OPTION = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
WHY_OPTION = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; it goes into the ledger.")]


def group(name: str, text: str) -> typer.Typer:
    """A group of commands (`hanse NAME …`)."""
    return typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode=None)


class Run:
    """One run of a command: how it talks to the person and to the federation."""

    def __init__(self, command: str, *, json: bool = False, state: Path | None = None, program: str = "hanse") -> None:
        self.program = program
        self.command = command
        self.json = json
        self.state = state
        self.answered = False

    @property
    def interactive(self) -> bool:
        """Whether somebody is there to answer a question."""
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """Progress and prose, on standard error."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    def confirm(self, question: str, *, yes: bool, expected: str = "yes") -> None:
        """Ask before something that cannot be undone; the person types `expected`.

        Raises:
            UsageError: nobody is there to ask and `--yes` was not given.
            Cancelled: the answer was another.
        """
        if yes:
            return
        if not self.interactive:
            raise UsageError(f"{question} Nobody is here to confirm it.", remedy="Give --yes.", code="NOT_CONFIRMED")
        print(f"{question}\nType '{expected}' to go on: ", end="", file=sys.stderr, flush=True)  # noqa: T201
        if sys.stdin.readline().strip() != expected:
            raise Cancelled("Not confirmed; nothing was changed.")

    @contextmanager
    def connect(self) -> Iterator[Control]:
        """A channel to the coordinator's control port, with the operator's token."""
        from hanse.cli.connection import Control, find_connection

        with Control(find_connection(self.state)) as control:
            yield control

    def give(self, answer: Answer) -> None:
        """Print an answer: once a run. Long commands (`up`) call it before they end."""
        self.answered = True
        if self.json:
            ok = answer.reason is None and answer.exit_code is Exit.OK
            write_envelope(envelope(self.command, answer.data, reason=answer.reason, ok=ok, **answer.extra))
        elif answer.text:
            print(answer.text, flush=True)  # noqa: T201
        if answer.reason is not None and answer.exit_code is not Exit.OK:
            self.note(error_line(answer.reason, self.program))

    def fail(self, reason: Reason) -> None:
        """Print an error: one line on standard error, and the envelope where one is owed."""
        if self.json and not self.answered:
            write_envelope(envelope(self.command, reason=reason))
        self.note(error_line(reason, self.program))


def command(
    owner: typer.Typer, name: str, *, state: str = STATE_HELP
) -> Callable[[Callable[Concatenate[Run, P], Answer | None]], Callable[Concatenate[Run, P], Answer | None]]:
    """Register a function as `hanse … NAME`; its docstring is the help.

    The function stays callable as it is written. `state` is the help of `--state`; empty: no such option.
    """

    def register(
        function: Callable[Concatenate[Run, P], Answer | None],
    ) -> Callable[Concatenate[Run, P], Answer | None]:
        def entry(context: typer.Context, **options: Any) -> None:
            run = Run(
                command_name(context),
                json=options.pop("as_json"),
                state=options.pop("state", None),
                program=str(context.command_path).partition(" ")[0],
            )
            raise typer.Exit(perform(run, lambda: function(run, **options)))  # type: ignore[call-arg]

        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [
            inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own),
        ]
        folder = Annotated[Path | None, typer.Option("--state", metavar="DIR", show_default=False, help=state)]
        shared: list[tuple[str, Any, Any]] = [("state", folder, None)] if state else []
        for key, annotation, default in (*shared, ("as_json", JSON_OPTION, False)):
            parameters.append(
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            )
        entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        entry.__annotations__ = {p.name: p.annotation for p in parameters}
        entry.__doc__ = function.__doc__
        owner.command(name)(entry)
        return function

    return register


def perform(run: Run, work: Callable[[], Answer | None]) -> int:
    """Do the work of one command; whatever happens becomes an answer or an error with an exit code."""
    try:
        answer = work()
        if answer is not None:
            run.give(answer)
            return answer.exit_code
        return Exit.OK
    except HanseError as error:
        run.fail(error.reason)
        return exit_for(error)
    except KeyboardInterrupt:
        run.fail(Cancelled("Stopped by the keyboard.").reason)
        return Exit.CANCELLED
    except BrokenPipeError:  # the reader (`| head`) has what it wanted
        sys.stderr.close()
        return Exit.OK
    except Exception as error:  # noqa: BLE001 - people never see a traceback; HANSE_DEBUG brings it back
        return _unexpected(run, error)


def command_name(context: Any) -> str:
    """`job submit` for `hanse job submit`."""
    return str(context.command_path).partition(" ")[2]


def _unexpected(run: Run, error: Exception) -> int:
    import os
    import traceback

    if os.environ.get("HANSE_DEBUG"):
        traceback.print_exception(error)
    said = " ".join(str(error).split())
    run.fail(
        Reason(
            code="UNEXPECTED",
            sentence=f"An unexpected {type(error).__name__}: {said}."
            if said
            else f"An unexpected {type(error).__name__}.",
            owner=Owner.PLATFORM,
            remedy="It is a fault of Hanse; HANSE_DEBUG=1 shows where.",
        )
    )
    return Exit.FAILED
