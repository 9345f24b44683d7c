"""Using a trained image model at the site: images that stay here, and the model that came with the last evaluation.

A node that took part reads the model with its own arrays (its batch normalisation), which never were in the file; any
other reads it as unseen nodes do: with the averages that the file holds, or in the way that the job names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import NotFound, OperatorError, SiteError
from hanse.method import Predictions
from hanse.models import Role, load_model
from hanse_agent.datasets.images import SUFFIXES, FolderImages
from hanse_agent.learners.network_state import MODEL_FILE, NetworkState

BATCH = 64
SHARED = frozenset({Role.GLOBAL, Role.SELECTIVE})


def predict(model: Path, images: Path, *, own: Path | None = None, classes: Sequence[str] = ()) -> Predictions:
    """Classify an image, or all images of a folder and the folders in it.

    The columns: `image` (the file), `class` (a name where `classes` gives them, else a number), `chance` of that
    class, and `read`, how the model was read.

    Args:
        model: `model.safetensors`, or the folder that holds it.
        images: a file or a folder.
        own: the learner's state folder of the job, at a node that took part.
        classes: names of the classes in order of number.

    Raises:
        NotFound: no such model file.
        OperatorError: a model that is not installed here, or whose BN this node cannot know.
        SiteError: no images, one that cannot be read, or a state of another model.
    """
    metadata, arrays = _read(model)
    config: dict[str, Any] = json.loads(metadata.get("config", "{}"))
    found: Any = load_model(metadata["model"], config.get("model", {}))
    if classes and len(classes) != found.config.classes:
        raise OperatorError(f"{len(classes)} names were given, and the model has {found.config.classes} classes.")
    mine = NetworkState.load(own).own
    roles, initial = found.roles(), found.initial_state(int(metadata.get("seed", "0")))
    state = {name: mine.get(name, arrays.get(name, initial[name])) for name in initial}
    odd = [name for name in initial if state[name].shape != initial[name].shape]
    if odd:
        raise SiteError(f"The array '{odd[0]}' of the model is not of the model's shape here.", code="STATE_MISMATCH")
    missing = any(
        role not in SHARED and name not in mine and name not in arrays and initial[name].dtype.kind == "f"
        for name, role in roles.items()
    )
    reading, read = _reading(bool(mine), missing, str(config.get("unseen_bn", "average")))
    files = _files(images)
    chances = _chances(found, state, files, reading)
    numbers = chances.argmax(axis=1)
    return Predictions(
        columns={
            "image": np.array([str(file) for file in files]),
            "class": np.array([classes[number] for number in numbers]) if classes else numbers,
            "chance": chances.max(axis=1).astype(np.float32),
            "read": np.array([read] * len(files)),
        }
    )


def _read(model: Path) -> tuple[Mapping[str, str], Mapping[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    path = model / MODEL_FILE if model.is_dir() else model
    if not path.is_file():
        raise NotFound(
            f"There is no finished model in {model}.",
            remedy="Wait for the job's last evaluation, or pull it: hanse model pull JOB -o FOLDER",
            code="NO_MODEL",
        )
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise OperatorError(f"{path} is not a model file: {error}.", code="NO_MODEL") from error
    if "model" not in metadata:
        raise OperatorError(f"{path} does not say which model it is of.", code="NO_MODEL")
    return metadata, arrays


def _reading(own: bool, missing: bool, unseen: str) -> tuple[str, str]:
    if own:
        return "own", "with this node's own batch normalisation"
    if unseen in ("in_only", "batch_stats"):
        return unseen, f"as an unseen node, by {unseen}"
    if missing:
        raise OperatorError(
            "The model's batch normalisation never left the nodes that trained, and this node was not one of them.",
            remedy="Train with unseen_bn in_only or batch_stats, or with bn_upload average_for_unseen.",
            code="NO_UNSEEN_VALUES",
        )
    return "own", "as an unseen node, with the averaged batch normalisation"


def _files(images: Path) -> list[Path]:
    if images.is_file():
        return [images]
    found = sorted(path for path in images.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise SiteError(f"There is no image in {images}.", code="NO_ROWS", remedy=f"Known: {', '.join(SUFFIXES)}.")
    return found


def _chances(model: Any, state: Mapping[str, NDArray[Any]], files: list[Path], reading: str) -> NDArray[np.float64]:
    import torch

    from hanse.learning.training_options import TrainingOptions
    from hanse_agent.learners.images import ImageTask

    network = model.build()
    network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    images = FolderImages(tuple(files), np.zeros(len(files), dtype=np.int64), ())
    options = TrainingOptions(evaluation_batch_size=BATCH)
    task = ImageTask(images, model, options, torch.device("cpu"))
    return task.chances(network, task.everything, reading)  # type: ignore[arg-type]
