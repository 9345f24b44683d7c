"""`hanse-agent forecast` and `predict`: a finished job's model, at home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.cli.command import Run, command
from hanse.cli.output import Answer, UsageError
from hanse_agent.cli.arguments import CONFIG_OPTION, DEFAULT_CONFIG, load


def add_to(app: typer.Typer) -> None:
    """Register `hanse-agent forecast` and `predict`."""
    command(app, "forecast", state="")(forecast)
    command(app, "predict", state="")(predict)


def forecast(
    run: Run,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Id of the job, or name of the newest one.")],
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to a .csv or .parquet file; else print.")
    ] = None,
    config: CONFIG_OPTION = DEFAULT_CONFIG,
) -> Answer:
    """Forecast the next hours of this node's own series, with intervals: nothing leaves, no coordinator is asked."""
    from dataclasses import asdict

    from hanse_agent.forecasts import forecast as apply

    done = apply(load(config), job, output)
    return Answer(data=asdict(done), text=done.as_text())


def predict(
    run: Run,
    data: Annotated[
        Path,
        typer.Option("--input", metavar="PATH", help="New records, in the form of the job's dataset (a table: CSV)."),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where the predictions go: .csv or .parquet.")
    ],
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Id of the job, or name of the newest one.")] = "",
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FOLDER", help="Instead of a job: where a network was pulled to."),
    ] = None,
    config: CONFIG_OPTION = DEFAULT_CONFIG,
) -> Answer:
    """Apply a finished job's model to new records, here: nothing leaves, and no coordinator is asked."""
    from dataclasses import asdict

    from hanse_agent.predicting import predict as apply
    from hanse_agent.predicting import predict_by_file

    if bool(job) == (model is not None):
        raise UsageError(
            "A model is named either by --job or by --model.",
            remedy="Give --job at a node that took part in the job, else --model and a folder of `hanse model pull`.",
        )
    done = (
        apply(load(config), job, data, output) if model is None else predict_by_file(load(config), model, data, output)
    )
    of = f"{done.name} ({done.job})" if done.job else done.name
    return Answer(data=asdict(done), text=f"{done.rows:,} predictions of {of} are in {done.output}.")
