"""`hanse node …`: invite, approve, list and revoke the nodes of the federation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, UsageError, fields, printable, table, tone
from hanse.errors import Conflict, NotFound

if TYPE_CHECKING:
    from hanse.cli.connection import Control
    from hanse.v1 import control_pb2

group = commands.group("node", "Nodes: the sites and devices whose records train the models.")

NAME = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")]
_DAY_S = 86_400.0
_LONGEST_S = 7 * _DAY_S


@command(group, "invite")
def invite(
    run: Run,
    name: NAME,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", show_default=False, help="Label of the node; may be repeated."),
    ] = None,
    valid: Annotated[str, typer.Option(metavar="DURATION", help="How long the invitation lasts; at most 7d.")] = "24h",
    pre_approved: Annotated[
        bool, typer.Option("--pre-approved", help="The node is let in without comparing fingerprints.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="For a node that lost its certificate: it keeps its history.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Write the secret here, mode 600."),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="IMAGE",
            envvar="HANSE_AGENT_IMAGE",
            show_default=False,
            help="The agent's image, for the container command that is shown. Else hanse-agent of this release.",
        ),
    ] = "",
) -> Answer:
    """Invite a node: one secret string, good once, and the commands to use it with: pip, container, Kubernetes.

    The secret goes to standard output or to --output FILE; hand it over as you would a password.
    """
    from hanse.cli.views import iso, moment
    from hanse.cli.words import duration, pairs
    from hanse.onboarding import INVITATION, join_command, ways_to_join
    from hanse.security import write_atomically
    from hanse.v1 import control_pb2

    seconds = duration(valid, "--valid")
    if seconds > _LONGEST_S:
        raise UsageError(f"--valid: {valid} is more than 7 days.", remedy="Invite again when it has run out.")
    if seconds > _DAY_S:
        run.note(f"warning: whoever finds the invitation within {valid} can join as {printable(name)}; 24h is safer.")
    if output is not None and output.exists():
        raise Conflict(
            f"{output} exists already and is not overwritten.", remedy="Choose another path.", code="FILE_EXISTS"
        )
    request = control_pb2.InviteNodeRequest(
        name=name, labels=pairs(label or [], "--label"), valid_s=seconds, pre_approved=pre_approved, again=again
    )
    with run.connect() as control:
        invitation = control.call("InviteNode", request)
    data = {"node": name, "id": invitation.id, "expires_at": iso(invitation.expires_at), "pre_approved": pre_approved}
    ways = ways_to_join(image, str(output) if output else INVITATION)
    texts = {way.key: way.text for way in ways}
    shown = "\n\n".join(f"{way.title}: {way.hint}\n  " + way.text.replace("\n", "\n  ") for way in ways)
    until = f"Invitation {invitation.id} for {printable(name)}, good once and until {moment(invitation.expires_at)}."
    after = "" if pre_approved else f"\nThen compare fingerprints: hanse node approve {shlex.quote(name)}"
    if output is None:
        how = join_command("-")
        run.note(f"{until}\nAt the site, with the line below in the file {INVITATION}:\n\n{shown}\n{after}")
        return Answer(data=data | {"invitation": invitation.text, "join": how, "commands": texts}, text=invitation.text)
    write_atomically(output, invitation.text.encode() + b"\n", overwrite=False)
    how = join_command(f"file:{output}")
    return Answer(
        data=data | {"file": str(output), "join": how, "commands": texts},
        text=f"{until}\nBring {output} to the site, and run there, beside agent.yaml:\n\n{shown}\n{after}",
    )


@command(group, "approve")
def approve(
    run: Run,
    name: NAME,
    fingerprint: Annotated[
        str, typer.Option(metavar="WORDS", show_default=False, help="The six words that the site read out.")
    ] = "",
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Let it in without comparing fingerprints.")] = False,
) -> Answer:
    """Let a waiting node in, after comparing its fingerprint with the site."""
    from hanse.cli.views import plain
    from hanse.v1 import control_pb2

    if fingerprint and unchecked:
        raise UsageError("--fingerprint and --unchecked exclude each other.")
    with run.connect() as control:
        if not fingerprint and not unchecked:
            waiting = find_node(control, name)
            if waiting.trust != "pending":
                raise Conflict(f"Node {name} is {waiting.trust}: nothing waits for approval.", code="NOT_PENDING")
            if not run.interactive:
                raise UsageError(
                    "The fingerprint must be compared, and nobody is here to do it.",
                    remedy="Give --fingerprint WORDS as the site reads them out, or --unchecked.",
                    code="NOT_CONFIRMED",
                )
            run.confirm(f"The site must read out this fingerprint of {name}:\n\n    {waiting.fingerprint}\n", yes=False)
            fingerprint = waiting.fingerprint
        request = control_pb2.ApproveNodeRequest(name=name, fingerprint=fingerprint, unchecked=unchecked)
        node = control.call("ApproveNode", request)
    return Answer(data=plain(node), text=f"{printable(node.name)} is {tone(node.trust)}.")


@command(group, "list")
def show_all(
    run: Run,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000,
) -> Answer:
    """List the nodes on two axes: are they trusted, are they there?"""
    from hanse.cli.views import because, moment, plain
    from hanse.v1 import control_pb2

    with run.connect() as control:
        nodes = control.pages("ListNodes", control_pb2.ListNodesRequest(), lambda page: page.nodes, most=limit)
    rows = [
        (
            printable(node.name),
            tone(node.trust),
            tone(node.health),
            moment(node.last_seen),
            moment(node.certificate_expires),
            ", ".join(printable(f"{offer.name}:{offer.rows}") for offer in node.datasets),
            because(node.reason),
        )
        for node in nodes
    ]
    headings = ("NODE", "TRUST", "HEALTH", "LAST SEEN", "CERTIFICATE UNTIL", "DATASETS:ROWS", "")
    text = table(headings, rows, empty="There is no node yet. Invite one: hanse node invite NAME")
    return Answer(data=[plain(node) for node in nodes], text=text)


@command(group, "revoke")
def revoke(
    run: Run,
    name: NAME,
    why: commands.WHY_OPTION,
    yes: commands.YES_OPTION = False,
) -> Answer:
    """Shut a node out at once: its session ends and its certificate is refused."""
    from hanse.cli.views import plain
    from hanse.v1 import control_pb2

    run.confirm(
        f"Node {printable(name)} will be shut out, and running jobs lose it. It comes back only by a new invitation.",
        yes=yes,
        expected=name,
    )
    with run.connect() as control:
        node = control.call("RevokeNode", control_pb2.RevokeNodeRequest(name=name, why=why))
    return Answer(data=plain(node), text=fields([("node", printable(node.name)), ("trust", tone(node.trust))]))


def find_node(control: Control, name: str) -> control_pb2.Node:
    """The node of that name.

    Raises:
        NotFound: there is none.
    """
    from hanse.v1 import control_pb2

    nodes = control.pages("ListNodes", control_pb2.ListNodesRequest(), lambda page: page.nodes, most=100_000)
    for node in nodes:
        if node.name == name:
            found: control_pb2.Node = node
            return found
    raise NotFound(f"There is no node {printable(name)}.", remedy="See `hanse node list`.")
