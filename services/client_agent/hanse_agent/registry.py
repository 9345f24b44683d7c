"""What is installed at this site: datasets and learners, found by their entry points.

Names are listed without importing anything; a class is imported when it is asked for, which happens in worker
processes (they need numpy and more) and in short-lived commands, never in an idle agent.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hanse.errors import MethodError, OperatorError
from hanse.method import Dataset, Learner
from hanse.settings import validate

DATASETS = "hanse.datasets"
LEARNERS = "hanse.learners"


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def installed_kinds() -> tuple[str, ...]:
    """The kinds of dataset that this installation can read."""
    return tuple(sorted(_points(DATASETS)))


def installed_methods() -> tuple[str, ...]:
    """The methods that this installation has a learner for."""
    return tuple(sorted(_points(LEARNERS)))


def dataset_class(kind: str) -> type[Any]:
    """The class that reads datasets of a kind.

    Raises:
        OperatorError: no such kind is installed, or its package cannot be imported.
    """
    point = _points(DATASETS).get(kind)
    if point is None:
        raise OperatorError(
            f"no dataset kind '{kind}' is installed here.",
            remedy=f"Use one of: {', '.join(installed_kinds()) or 'none is installed'}.",
            code="UNKNOWN_DATASET_KIND",
        )
    found: type[Any] = _load(point, OperatorError)
    return found


def open_dataset(name: str, kind: str, options: dict[str, Any]) -> Dataset:
    """Make the dataset that a block of `agent.yaml` describes; nothing is read yet.

    Raises:
        OperatorError: an unknown kind, or a wrong or unknown option; the sentence names key and value.
    """
    found = dataset_class(kind)
    dataset: Dataset = found(name, validate(found.Options, options, source=f"datasets.{name}"))
    return dataset


def learner_class(method: str) -> type[Learner]:
    """The learner of a method.

    Raises:
        MethodError: none is installed, or its package cannot be imported.
    """
    point = _points(LEARNERS).get(method)
    if point is None:
        raise MethodError(
            f"no learner for method '{method}' is installed here.",
            remedy=f"Install the package that holds it (installed: {', '.join(installed_methods()) or 'none'}).",
            code="METHOD_NOT_INSTALLED",
        )
    found: type[Learner] = _load(point, MethodError)
    return found


def _load(point: EntryPoint, blame: type[OperatorError] | type[MethodError]) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise blame(
            f"'{point.name}' ({point.value}) cannot be imported: {error}.",
            remedy="Install what it needs, for instance pip install 'hanse[agent]'.",
            code="NOT_IMPORTABLE",
        ) from error
