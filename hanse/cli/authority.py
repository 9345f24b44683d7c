"""`hanse authority …`: the federation's certificate authority, on this machine.

These commands work on files alone; whoever may read the authority's key may run them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, fields

if TYPE_CHECKING:
    from hanse.security import Authority

group = commands.group("authority", "The certificate authority: who belongs to the federation.")

FOLDER = Annotated[
    Path | None,
    typer.Option(
        "--authority",
        metavar="DIR",
        show_default=False,
        help="The authority's folder. Else `authority` in the state folder.",
    ),
]


@command(group, "init")
def init(
    run: Run,
    authority: FOLDER = None,
    name: Annotated[str, typer.Option(help="What certificates call the issuer.")] = "Hanse authority",
) -> Answer:
    """Make the authority, once for the life of a federation. An existing one is never overwritten."""
    from hanse.security import Authority

    folder = _folder(run, authority)
    return _answer(Authority.create(folder, name=name), folder)


@command(group, "show")
def show(run: Run, authority: FOLDER = None) -> Answer:
    """Show the authority's name, expiry and the hash that invitations carry."""
    from hanse.security import Authority

    folder = _folder(run, authority)
    return _answer(Authority.load(folder), folder)


@command(group, "issue")
def issue(
    run: Run,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Name of the service: coordinator, aggregator, …")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for service.crt and service.key (mode 600).")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME|IP", show_default=False, help="A name it is reached by; may be repeated."),
    ] = None,
    valid: Annotated[str, typer.Option(metavar="DURATION", help="How long the certificate lasts.")] = "90d",
    authority: FOLDER = None,
) -> Answer:
    """Issue a certificate for a service of this federation. Services that run keep their old one until they reload."""
    from datetime import timedelta

    from hanse.cli.views import iso
    from hanse.cli.words import duration
    from hanse.security import Authority, Identity, write_atomically

    lifetime = timedelta(seconds=duration(valid, "--valid"))
    issuer = Authority.load(_folder(run, authority))
    pair = issuer.issue(Identity.service(service), hosts=host or [], lifetime=lifetime)
    certificate, key = output / "service.crt", output / "service.key"
    write_atomically(key, pair.key_pem)
    write_atomically(certificate, pair.certificate_pem, mode=0o644)
    write_atomically(output / "authority.crt", issuer.certificate_pem, mode=0o644)
    until = iso(pair.certificate.not_valid_after_utc.timestamp())
    data = {"service": service, "certificate": str(certificate), "key": str(key), "expires_at": until}
    return Answer(data=data, text=fields([(name, str(value)) for name, value in data.items()]))


def _folder(run: Run, given: Path | None) -> Path:
    import os

    if given is not None:
        return given
    return (run.state or Path(os.environ.get("HANSE_STATE") or "hanse-state")) / "authority"


def _answer(authority: Authority, folder: Path) -> Answer:
    from hanse.cli.views import iso

    certificate = authority.certificate
    data: dict[str, Any] = {
        "folder": str(folder),
        "name": certificate.subject.rfc4514_string(),
        "sha256": authority.sha256.hex(),
        "expires_at": iso(certificate.not_valid_after_utc.timestamp()),
    }
    return Answer(data=data, text=fields([(name, str(value)) for name, value in data.items()]))
