"""Which learner an averaging method has at a node: the one for the kind of records that the node's dataset holds."""

from __future__ import annotations

from typing import ClassVar

from hanse.errors import MethodError
from hanse.method import Dataset, Learner
from hanse_agent.learners.forecasting import ForecastLearner
from hanse_agent.learners.images import ImageLearner

_LEARNERS: tuple[type[ForecastLearner] | type[ImageLearner], ...] = (ImageLearner, ForecastLearner)


class AveragedLearner:
    """Makes an `ImageLearner` or a `ForecastLearner`. The learner of `fedavg` and `robust`."""

    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = tuple(kind for each in _LEARNERS for kind in each.dataset_kinds)

    def __new__(cls, dataset: Dataset) -> Learner:  # type: ignore[misc]
        """The learner for a dataset.

        Raises:
            MethodError: none is for records of its kind.
        """
        kind = getattr(dataset, "kind", "") or dataset.describe().kind
        for learner in _LEARNERS:
            if kind in learner.dataset_kinds:
                return learner(dataset)
        raise MethodError(
            f"No averaging learner is for datasets of kind '{kind}'.",
            remedy=f"Offer one of: {', '.join(cls.dataset_kinds)}.",
            code="WRONG_KIND",
        )
