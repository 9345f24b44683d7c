"""`hanse-agent join`: becoming a node, with an invitation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hanse.cli.command import Run, command
from hanse.cli.output import Answer, UsageError, WaitTimeout
from hanse_agent.cli.arguments import CONFIG, DEFAULT_CONFIG, load

if TYPE_CHECKING:
    from hanse.security import Invitation

TOKEN_VARIABLE = "HANSE_INVITATION"  # noqa: S105 - the name of a variable, not a secret


def add_to(app: typer.Typer) -> None:
    """Register `hanse-agent join`."""
    command(app, "join", state="")(join)


def join(
    run: Run,
    config: CONFIG = DEFAULT_CONFIG,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="file:PATH|-",
            show_default=False,
            help=f"The invitation: file:PATH, or - for standard input. Else the variable {TOKEN_VARIABLE}.",
        ),
    ] = "",
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait for approval: 10m, 2h. Else for ever.")
    ] = "",
) -> Answer:
    """Join a federation with an invitation. Can be interrupted and run again."""
    import asyncio

    from hanse_agent.enrolment import join as enrol
    from hanse_agent.enrolment import joined_before
    from hanse_agent.folder import StateFolder

    timeout = _duration(wait)
    settings = load(config)
    invitation = _invitation(token)
    if invitation is None:
        known = joined_before(StateFolder(settings.state), None)
        if known is None:
            raise UsageError(
                "No invitation was given.", remedy=f"Give --token file:PATH, --token -, or set {TOKEN_VARIABLE}."
            )
        return _joined(known.node, known.peer.not_after.isoformat(), already=True)
    settings.check_datasets()

    async def attempt() -> Answer:
        async with asyncio.timeout(timeout):
            done = await enrol(settings, invitation, lambda step: run.note(f"✓ {step}"))
        return _joined(done.identity.node, done.identity.peer.not_after.isoformat(), already=done.already)

    try:
        return asyncio.run(attempt())
    except TimeoutError:
        raise WaitTimeout(
            f"nobody has approved {invitation.node} within {wait}.",
            remedy="Run the same command again to go on waiting; the fingerprint stays the same.",
        ) from None


def _invitation(source: str) -> Invitation | None:
    """Read it; whether it has expired, the coordinator's clock decides, since ours may be wrong."""
    import os

    from hanse.security import read_invitation

    source = source or os.environ.get(TOKEN_VARIABLE, "")
    return read_invitation(source) if source else None


def _duration(text: str) -> float | None:
    from hanse.settings import parse_duration

    try:
        return parse_duration(text).total_seconds() if text else None
    except ValueError as error:
        raise UsageError(f"{error}.") from None


def _joined(node: str, until: str, *, already: bool) -> Answer:
    text = f"{node} has joined already; its certificate is good until {until}." if already else f"{node} has joined."
    return Answer(data={"node": node, "certificate_until": until, "already": already}, text=text)
