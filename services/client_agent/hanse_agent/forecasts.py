"""`hanse-agent forecast`: the next hours of this node's own series, with intervals. Nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hanse.cli.output import table
from hanse.errors import MethodError, OperatorError
from hanse.method import Predictions
from hanse_agent.predicting import SUFFIXES, plain_columns, trained_learner, write_predictions
from hanse_agent.settings import AgentConfig

__all__ = ["Forecasted", "ForecastsOwnSeries", "forecast"]


@runtime_checkable
class ForecastsOwnSeries(Protocol):
    """What a learner offers beside `perform` that forecasts from the node's own newest records."""

    def forecast(self, state: Path) -> Predictions:
        """The next steps, by the model that the learner has kept in its state folder.

        Raises:
            NotFound: no model has come to this node.
            SiteError: the newest records are not complete.
        """


@dataclass(frozen=True, kw_only=True)
class Forecasted:
    """What was forecast: `rows` are one step each, as `columns` name them."""

    job: str
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    output: str = ""

    def as_text(self) -> str:
        """A table for a person."""
        if self.output:
            return f"{len(self.rows):,} steps, forecast by {self.name} ({self.job}), are in {self.output}."
        shown: Sequence[Sequence[str]] = [
            [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in self.rows
        ]
        return table([name.upper() for name in self.columns], shown, empty="Nothing to forecast.")


def forecast(config: AgentConfig, job: str, output: Path | None) -> Forecasted:
    """Forecast the node's series by a job's model; written to `output` (.csv or .parquet) where one is given.

    Raises:
        NotFound: this node knows no such job, or no model of it has come here.
        MethodError: the job's method forecasts nothing.
        SiteError: the newest records are not complete, or the output cannot be written.
    """
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise OperatorError(f"{output} has a suffix that is not known.", remedy=f"Use {' or '.join(SUFFIXES)}.")
    kept, learner = trained_learner(config, job)
    if not isinstance(learner, ForecastsOwnSeries):
        raise MethodError(
            f"The method '{kept.method}' forecasts nothing on the dataset '{kept.dataset}'.",
            remedy="Use hanse-agent predict for models that judge single records.",
            code="NO_FORECAST",
        )
    with chdir(config.folder):  # what relative paths in agent.yaml are relative to
        found = learner.forecast(kept.state.absolute())
    if output is not None:
        write_predictions(found, output)
    columns = dict(plain_columns(found))
    return Forecasted(
        job=kept.job,
        name=kept.name,
        columns=tuple(columns),
        rows=tuple(zip(*columns.values(), strict=True)),
        output=str(output) if output is not None else "",
    )
