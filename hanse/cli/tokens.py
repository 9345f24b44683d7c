"""`hanse token …`: who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, fields, printable, table

group = commands.group("token", "Tokens of operators, researchers and viewers.")


@command(group, "create")
def create(
    run: Run,
    name: Annotated[str, typer.Argument(help="Whose token it is.")],
    role: Annotated[str, typer.Option(help="viewer, researcher, operator or admin.")] = "viewer",
    valid: Annotated[str, typer.Option(metavar="DURATION", help="How long it lasts.")] = "30d",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Write the token here, mode 600."),
    ] = None,
) -> Answer:
    """Make a token. It is shown once: on standard output, or in --output FILE."""
    from hanse.cli.views import moment, plain
    from hanse.cli.words import duration
    from hanse.security import Role, write_atomically
    from hanse.v1 import control_pb2

    seconds = duration(valid, "--valid")
    if output is not None and output.exists():
        from hanse.errors import Conflict

        raise Conflict(
            f"{output} exists already and is not overwritten.", remedy="Choose another path.", code="FILE_EXISTS"
        )
    with run.connect() as control:
        request = control_pb2.CreateTokenRequest(name=name, role=Role.parse(role), valid_s=seconds)
        created = control.call("CreateToken", request)
    data = plain(created.token)
    summary = f"token {created.token.id} for {printable(name)}: {role}, until {moment(created.token.expires_at)}"
    if output is None:
        run.note(f"{summary}. It is shown only now:")
        return Answer(data=data | {"secret": created.secret}, text=created.secret)
    write_atomically(output, created.secret.encode() + b"\n", overwrite=False)
    return Answer(data=data | {"file": str(output)}, text=f"{summary}, in {output}")


@command(group, "list")
def show_all(run: Run) -> Answer:
    """List the tokens; secrets are stored nowhere."""
    from hanse.cli.views import moment, plain
    from hanse.v1 import control_pb2

    with run.connect() as control:
        tokens = control.call("ListTokens", control_pb2.ListTokensRequest()).tokens
    rows = [
        (
            token.id,
            printable(token.name),
            token.role,
            moment(token.expires_at),
            f"revoked {moment(token.revoked_at)}" if token.revoked_at else "",
        )
        for token in tokens
    ]
    text = table(("ID", "NAME", "ROLE", "EXPIRES", ""), rows, empty="There is no token.")
    return Answer(data=[plain(token) for token in tokens], text=text)


@command(group, "revoke")
def revoke(
    run: Run,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id, as `hanse token list` shows it.")],
    yes: commands.YES_OPTION = False,
) -> Answer:
    """Make a token worthless at once."""
    from hanse.cli.views import moment, plain
    from hanse.v1 import control_pb2

    run.confirm(f"Token {printable(token_id)} will be refused from now on.", yes=yes)
    with run.connect() as control:
        token = control.call("RevokeToken", control_pb2.RevokeTokenRequest(id=token_id))
    return Answer(
        data=plain(token),
        text=fields([("token", token.id), ("name", printable(token.name)), ("revoked", moment(token.revoked_at))]),
    )
