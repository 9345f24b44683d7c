"""The earlier model that a job continues from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload, OperatorError
from hanse.learning.booster import allowed_name, from_json
from hanse.learning.parameters import BoostingParameters
from hanse.learning.trees import Forest
from hanse.payload import Payload
from hanse.payload.boosting import MODEL, Schema
from hanse.payload.kinds import read_document


@dataclass(frozen=True, kw_only=True, eq=False)
class BaseModel:
    """A model as trees: base margins float32 [K], the trees of `rounds` rounds, and what it was trained on."""

    margins: NDArray[np.float32]
    forest: Forest
    features: tuple[str, ...]
    classes: tuple[str, ...]
    rounds: int

    @classmethod
    def read(cls, payload: Payload, parameters: BoostingParameters) -> BaseModel:
        """The model of an earlier job of this method.

        Raises:
            OperatorError: it is of another objective or number of classes, or not a model of this method at all.
        """
        try:
            document = read_document(payload, MODEL)
            if document.get("objective") != parameters.objective:
                raise _misfit(f"was trained for {document.get('objective')}, not for {parameters.objective}")
            margins, forest, features = from_json(payload.arrays["model.json"].tobytes())
        except (InvalidPayload, KeyError) as error:
            raise OperatorError(f"The earlier model cannot be read: {error}", code="MODEL_UNREADABLE") from error
        if len(margins) != parameters.outputs:
            raise _misfit(f"has {len(margins)} outputs, not {parameters.outputs}")
        return cls(
            margins=margins,
            forest=forest,
            features=features,
            classes=tuple(document.get("classes", ())),
            rounds=len(forest) // len(margins),
        )

    def check_schema(self, schema: Schema) -> None:
        """Raise `OperatorError` that names the first difference unless the job has the model's columns and classes."""
        own = [allowed_name(name) for name in schema.features]
        different = _first_difference(self.features, own)
        if different is not None:
            theirs, ours = different
            raise _misfit(
                f"was trained on {len(self.features)} columns and the job has {len(own)}; the first that differs is "
                f"'{theirs}' in the model and '{ours}' in the job"
            )
        if self.classes and schema.classes and self.classes != schema.classes:
            raise _misfit(f"has the classes {list(self.classes)[:20]}, and the job {list(schema.classes)[:20]}")


def _first_difference(left: Sequence[str], right: Sequence[str]) -> tuple[str, str] | None:
    for place in range(max(len(left), len(right))):
        a = left[place] if place < len(left) else "(none)"
        b = right[place] if place < len(right) else "(none)"
        if a != b:
            return a, b
    return None


def _misfit(how: str) -> OperatorError:
    return OperatorError(
        f"The earlier model {how}.",
        remedy="Continue from a job over the same columns, classes and objective; 'features' in the job file picks and "
        "orders columns.",
        code="MODEL_DOES_NOT_FIT",
    )
