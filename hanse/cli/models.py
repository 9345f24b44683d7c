"""`hanse model …`: take a trained model home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer

group = commands.group("model", "Models that jobs have trained.")


@command(group, "pull")
def pull(
    run: Run,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, or name of the newest job of that name.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR|FILE",
            show_default="the job's name",
            help="Folder, or file for a single one.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the flag's name
        str, typer.Option(metavar="NAME", show_default=False, help="A format that the method exports; else its own.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
) -> Answer:
    """Download a job's model; its SHA-256 is checked against the ledger's."""
    from hanse.cli.pull import fetch_model, write_files
    from hanse.cli.views import amount

    with run.connect() as control:
        model = fetch_model(control, job, format=format)
    target = output or Path(model.job_name.replace(" ", "-"))
    written = write_files(model.files, target, overwrite=force)
    data = {
        "job": model.job_id,
        "sha256": model.digest.hex(),
        "files": [{"path": str(path), "bytes": path.stat().st_size} for path in written],
    }
    lines = [f"{path}  {amount(path.stat().st_size)}" for path in written]
    return Answer(data=data, text="\n".join((*lines, f"sha256 {model.digest.hex()} of job {model.job_id}: verified")))
