"""A finished job's model at work at its node: new records in, predictions out, nothing sent.

The model lies in the state that the method's learner has left for the job, or in the folder where somebody pulled it,
for sites that took no part. Whether and how a method predicts is the learner's own affair (`hanse.method.Predictor`);
it is found by its entry point, as for training.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hanse.errors import MethodError, NotFound, OperatorError, SiteError
from hanse.method import Learner, Predictions, Predictor
from hanse_agent.files import read_json
from hanse_agent.folder import StateFolder
from hanse_agent.jobs import JOB
from hanse_agent.registry import learner_class, open_dataset
from hanse_agent.settings import AgentConfig

SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class KeptJob:
    """A job that this node has worked on, as its folder says. `state`: the learner's newest state."""

    job: str
    name: str
    method: str
    dataset: str
    state: Path


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What was done. `job` is empty for a model that was named by its file, which is then the `name`."""

    job: str
    name: str
    rows: int
    output: str


def kept_jobs(root: Path) -> Iterator[KeptJob]:
    """The jobs in a node's folder of jobs, the newest first. Only reads: an agent may be at work in it."""
    folders = [path for path in root.iterdir() if (path / JOB).is_file()] if root.is_dir() else []
    for folder in sorted(folders, key=lambda path: (path / JOB).stat().st_mtime, reverse=True):
        facts = read_json(folder / JOB) or {}
        versions = folder / "versions"
        numbers = [path.name for path in versions.iterdir() if path.name.isdigit()] if versions.is_dir() else []
        if numbers and all(isinstance(facts.get(key), str) for key in ("job", "name", "method", "dataset")):
            named = {key: facts[key] for key in ("job", "name", "method", "dataset")}
            yield KeptJob(**named, state=versions / max(numbers))


def predict(config: AgentConfig, job: str, data: Path, output: Path) -> Predicted:
    """Apply the model of a job to `data`, and write one line a record to `output`.

    Raises:
        NotFound: this node knows no such job, or has not got its finished model.
        MethodError: the job's method does not predict at nodes.
        SiteError: the records do not fit the model, or the output cannot be written.
    """
    _check_suffix(output)
    kept, learner = trained_learner(config, job)
    found = _predictor(kept.method, learner).predict(kept.state, data)
    write_predictions(found, output)
    return Predicted(job=kept.job, name=kept.name, rows=_rows(found), output=str(output))


def predict_by_file(config: AgentConfig, model: Path, data: Path, output: Path) -> Predicted:
    """Apply a network that was pulled (`hanse model pull`) to `data`, as a node does that took no part in its job.

    The names of classes are those of the one dataset in agent.yaml whose kind the method works on; it need not hold
    records.

    Raises:
        NotFound: there is no such model.
        OperatorError: it is no network of Hanse, or agent.yaml declares no dataset of its kind, or several.
        MethodError: its method is not installed here, or does not predict at nodes.
        SiteError: the records do not fit the model, or the output cannot be written.
    """
    from hanse_agent.learners.network_state import read_metadata

    _check_suffix(output)
    method = read_metadata(model)["method"]
    cls = learner_class(method)
    fitting = [name for name, each in sorted(config.datasets.items()) if each.kind in cls.dataset_kinds]
    if len(fitting) != 1:
        raise OperatorError(
            f"agent.yaml declares {len(fitting)} datasets of the kinds that '{method}' works on "
            f"({', '.join(cls.dataset_kinds)}): {', '.join(fitting) or 'none'}; one says what the classes are called.",
            remedy="Declare one under datasets; its records need not be there. Or name another file with --config.",
            code="DATASET_NOT_DECLARED",
        )
    settings = config.datasets[fitting[0]]
    learner = cls(open_dataset(fitting[0], settings.kind, settings.options))
    found = _predictor(method, learner).predict(model, data)
    write_predictions(found, output)
    return Predicted(job="", name=str(model), rows=_rows(found), output=str(output))


def _check_suffix(output: Path) -> None:
    if output.suffix.lower() not in SUFFIXES:
        raise OperatorError(f"{output} has a suffix that is not known.", remedy=f"Use {' or '.join(SUFFIXES)}.")


def _predictor(method: str, learner: Learner) -> Predictor:
    if not isinstance(learner, Predictor):
        raise MethodError(
            f"The method '{method}' does not predict at nodes.",
            remedy="Pull the model (`hanse model pull`) and use it with its own library.",
            code="NO_PREDICTION",
        )
    return learner


def trained_learner(config: AgentConfig, job: str) -> tuple[KeptJob, Learner]:
    """A job that this node has worked on, and its learner over the job's dataset.

    Raises:
        NotFound: this node knows no such job, or no longer declares its dataset.
    """
    kept = _find(StateFolder(config.state).jobs, job)
    settings = config.datasets.get(kept.dataset)
    if settings is None:
        raise NotFound(
            f"The job '{kept.name}' learned from the dataset '{kept.dataset}', which agent.yaml no longer declares.",
            remedy="Declare it again under datasets; its records need not be there.",
            code="DATASET_NOT_DECLARED",
        )
    return kept, learner_class(kept.method)(open_dataset(kept.dataset, settings.kind, settings.options))


def _find(root: Path, wanted: str) -> KeptJob:
    kept = list(kept_jobs(root))
    for each in kept:
        if each.job == wanted:
            return each
    for each in kept:
        if each.name == wanted:
            return each
    known = ", ".join(f"{each.name} ({each.job})" for each in kept[:8]) or "none"
    raise NotFound(f"This node has not worked on a job '{wanted}' (it knows: {known}).", code="UNKNOWN_JOB")


def _rows(found: Predictions) -> int:
    return len(next(iter(found.columns.values()), ()))


def write_predictions(found: Predictions, output: Path) -> None:
    """One line a record to a .csv or .parquet file, which appears when it is whole.

    Raises:
        SiteError: it cannot be written.
    """
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        if output.suffix.lower() == ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(
                pyarrow.table({name: list(each) for name, each in plain_columns(found)}), unfinished
            )
        else:
            with unfinished.open("w", encoding="utf-8", newline="") as file:
                lines = csv.writer(file)
                lines.writerow(found.columns)
                lines.writerows(zip(*(each for _, each in plain_columns(found)), strict=True))
        unfinished.replace(output)
    except OSError as error:
        raise SiteError(
            f"{output} cannot be written: {error.strerror or error}.",
            code="OUTPUT_NOT_WRITABLE",
            remedy="Choose another place.",
        ) from error


def plain_columns(found: Predictions) -> Iterator[tuple[str, list[Any]]]:
    """Columns of plain Python numbers and texts; float32 in its own shortest form."""
    for name, column in found.columns.items():
        values = np.asarray(column)
        if values.dtype == np.float32:
            yield name, [float(str(value)) for value in values]
        else:
            yield name, values.tolist()
