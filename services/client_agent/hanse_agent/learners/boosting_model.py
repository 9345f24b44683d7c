"""The finished model at the node: kept when it is delivered, and put to use on rows that nobody else sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import NotFound, SiteError
from hanse.learning.binning import check_values
from hanse.learning.booster import allowed_name
from hanse.method import Predictions
from hanse.payload import Payload
from hanse.payload.boosting import MODEL
from hanse.payload.kinds import read_document
from hanse_agent.datasets.columns import NUMERIC
from hanse_agent.datasets.npz_source import NpzNames
from hanse_agent.datasets.sources import open_source

_IMAGE = "model.payload"


def keep_model(model: Payload, folder: Path) -> None:
    """Write a delivered model into the learner's state.

    Raises:
        InvalidPayload: it is not a model of this method.
    """
    read_document(model, MODEL)
    model.write(folder / _IMAGE)


def predict_table(state: Path, data: Path) -> Predictions:
    """Predictions for the rows of a CSV, Parquet or npz file that has the model's columns, in any order.

    The columns are `prediction` (the class's name, or its number, or the value) and, for classes, the probability of
    each (`probability_NAME`). Missing values are fine.

    Raises:
        NotFound: the finished model has not come to this node.
        SiteError: a column is missing, is not numeric, or holds an infinite value; the sentence names it.
    """
    import xgboost

    if not (state / _IMAGE).is_file():
        raise NotFound(
            "The finished model of this job has not come to this node.",
            remedy="It comes when the job ends while the node is connected, unless the job says deliver_model: false; "
            "`hanse model pull` gives it to a researcher.",
            code="MODEL_NOT_HERE",
        )
    payload = Payload.open(state / _IMAGE)
    document = read_document(payload, MODEL)
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(payload.arrays["model.ubj"].tobytes()))
    names = tuple(booster.feature_names or ())
    values = _read(data, names)
    scores = booster.predict(xgboost.DMatrix(values, feature_names=list(names), nthread=1))
    return _answers(np.asarray(scores), str(document["objective"]), tuple(document.get("classes", ())))


def _read(data: Path, names: tuple[str, ...]) -> NDArray[np.float32]:
    source = open_source(data, NpzNames(features="X", feature_names="feature_names"))
    place = {allowed_name(name): name for name in source.columns}
    missing = [name for name in names if name not in place]
    if missing:
        raise SiteError(
            f"{data} lacks {len(missing)} of the model's {len(names)} columns: {', '.join(missing[:8])}"
            + (" …" if len(missing) > 8 else "."),
            code="COLUMN_MISSING",
            remedy="Give a file with all columns that the model was trained on; empty cells are missing values.",
        )
    wrong = [name for name in names if source.columns[place[name]] not in NUMERIC]
    if wrong:
        raise SiteError(
            f"The column '{wrong[0]}' of {data} is not numeric.",
            code="COLUMN_NOT_NUMERIC",
            remedy="Correct the file.",
        )
    values = source.numbers(tuple(place[name] for name in names))
    check_values(values, names)
    return values


def _answers(scores: NDArray[np.float32], objective: str, classes: tuple[str, ...]) -> Predictions:
    if objective == "reg:squarederror":
        return Predictions(columns={"prediction": scores})
    if objective == "binary:logistic":
        scores = np.stack([1 - scores, scores], axis=1)
    names = classes if len(classes) == scores.shape[1] else tuple(str(k) for k in range(scores.shape[1]))
    best = scores.argmax(axis=1)
    columns: dict[str, NDArray[Any]] = {"prediction": np.array(names, dtype=object)[best] if classes else best}
    for k, name in enumerate(names):
        columns[f"probability_{name}"] = scores[:, k]
    return Predictions(columns=columns)
