"""Forecasting at the site: the newest records, which stay here, and the model that the node used last.

Beside the model lies what it was: the node's own, or the common one; and the scales that it was trained with, so that a
series that has grown since is still read in the same units.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from hanse.errors import NotFound, SiteError
from hanse.learning.series import Series, SeriesScale
from hanse.learning.series_windows import SeriesWindows, WindowShape
from hanse.method import Dataset, Predictions
from hanse.models import load_model
from hanse.payload.safetensors import read_safetensors
from hanse_agent.learners.network_state import MODEL_FILE

__all__ = ["USE_FILE", "forecast", "keep_use"]

USE_FILE = "forecaster.json"
_SAID = {
    "global": "the common model",
    "fitted": "this node's own model",
    "finetuned": "the common model, fine-tuned here",
    "adapted": "the common model, adapted to this node",
    "received": "the common model with this node's update",
    "refined": "the common model with this node's update, trained here",
}


def keep_use(folder: Path, model: str, windows: SeriesWindows) -> None:
    """Write down which model the node uses, and the scales of its series."""
    scales = {
        series.name: {"level": scale.level, "steps": scale.steps.tolist()}
        for series, scale in zip(windows.series, windows.scales, strict=True)
    }
    (folder / USE_FILE).write_text(json.dumps({"model": model, "scales": scales}), encoding="utf-8")


def forecast(state: Path, dataset: Dataset) -> Predictions:
    """The next steps of each series of the dataset.

    The columns: `station`, `time` (when the step begins, by the station's clock), `step`, one column a quantile
    (`q05`, `q50`, `q95`) in the unit of the series, `unit`, and `model`.

    Raises:
        NotFound: no evaluation has come to this node yet.
        SiteError: the newest records are not complete, or what is kept cannot be read.
    """
    metadata, arrays, use = _read(state)
    config: dict[str, Any] = json.loads(metadata["config"])
    model: Any = load_model(metadata["model"], config.get("model", {}))
    settings = model.config
    group: tuple[Series, ...] = dataset.load()
    windows = SeriesWindows(
        group,
        WindowShape(
            window=settings.window,
            horizon=settings.horizon,
            lags=settings.lags,
            covariates=settings.covariates,
            in_steps=settings.scaling == "differences",
        ),
        validation=0.0,
        scales=[_scale(use, series) for series in group],
    )
    rows = np.array([windows.last_origin(number) for number in range(len(group))], dtype=np.int64)
    offsets = _offsets(model, arrays, windows.inputs(rows))
    ahead = windows.absolute(rows, offsets, nonnegative=settings.nonnegative) * windows.levels(rows)[:, None, None]
    return Predictions(columns=_columns(group, ahead, settings.quantiles, _SAID[use["model"]]))


def _columns(
    group: tuple[Series, ...], ahead: NDArray[np.float64], quantiles: tuple[float, ...], model: str
) -> Mapping[str, NDArray[Any]]:
    horizon = ahead.shape[1]
    columns: dict[str, NDArray[Any]] = {
        "station": np.repeat([series.name for series in group], horizon),
        "time": np.array([time for series in group for time in _times(series, horizon)]),
        "step": np.tile(np.arange(1, horizon + 1), len(group)),
    }
    for place, quantile in enumerate(quantiles):
        name = f"q{100 * quantile:02g}".replace(".", "_")
        columns[name] = ahead[:, :, place].reshape(-1).astype(np.float32)
    columns["unit"] = np.repeat([series.unit for series in group], horizon)
    columns["model"] = np.repeat([model], horizon * len(group))
    return columns


def _times(series: Series, horizon: int) -> list[str]:
    step = np.timedelta64(series.step_minutes, "m")
    times = series.times()[-1] + step * np.arange(1, horizon + 1)
    if not series.zone:
        return [str(time) for time in times]
    zone = ZoneInfo(series.zone)
    seconds = times.astype("datetime64[s]").astype(np.int64).tolist()
    return [datetime.fromtimestamp(moment, zone).isoformat(timespec="minutes") for moment in seconds]


def _offsets(model: Any, arrays: Mapping[str, NDArray[Any]], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    import torch

    network = model.build()
    try:
        network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    except RuntimeError as error:
        raise SiteError(
            f"The kept arrays do not fit the model: {' '.join(str(error).split())[:300]}",
            code="STATE_MISMATCH",
            remedy="Use the version of Hanse that the job ran with.",
        ) from error
    network.eval()
    with torch.no_grad():
        offsets: NDArray[np.float32] = network(torch.from_numpy(inputs)).numpy()
    return offsets


def _scale(use: Mapping[str, Any], series: Series) -> SeriesScale:
    found = use["scales"].get(series.name)
    if found is None:
        raise SiteError(
            f"The job did not learn from a station '{series.name}' (it knows: {', '.join(use['scales'])}).",
            code="STATION_UNKNOWN",
            remedy="Give the station its old name under 'station' in agent.yaml.",
        )
    return SeriesScale(level=float(found["level"]), steps=np.array(found["steps"], dtype=np.float64))


def _read(state: Path) -> tuple[Mapping[str, str], Mapping[str, NDArray[Any]], Mapping[str, Any]]:
    path = state / MODEL_FILE
    if not path.is_file() or not (state / USE_FILE).is_file():
        raise NotFound(
            "No forecaster of the job has come to this node yet.",
            remedy="Wait for the job's next evaluation.",
            code="NO_MODEL",
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            metadata = dict(file.metadata() or {})
        arrays = read_safetensors(np.fromfile(path, dtype=np.uint8), str(path))
        use: dict[str, Any] = json.loads((state / USE_FILE).read_text(encoding="utf-8"))
    except (SafetensorError, OSError, ValueError) as error:
        raise SiteError(
            f"What this node keeps of the job ({state}) cannot be read: {error}",
            code="STATE_DAMAGED",
            remedy="Restore the agent's state folder from a backup, or start a new job.",
        ) from error
    return metadata, arrays, use
