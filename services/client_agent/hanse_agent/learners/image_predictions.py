"""Using a trained image model at the site: images that stay here, and the model that is the job's result.

A node that took part reads the model with its own arrays (its batch normalisation) of that model's round, which never
were in the file. Where it did not train in that round, it takes those that it had then, and says so. Any other node
reads it as unseen nodes do: with the averages that the file holds, or in the way that the job names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import OperatorError, SiteError
from hanse.method import Predictions
from hanse.models import SHARED, load_model
from hanse_agent.datasets.images import SUFFIXES, FolderImages
from hanse_agent.learners.network_state import NetworkState, members_of, read_model

BATCH = 64
PRETRAINED = ("weights", "weights_sha256")
_REMEDY = "Pull it again, and check that this site has the version of Hanse that it was trained with."


def predict(model: Path, images: Path, *, own: Path | None = None, classes: Sequence[str] = ()) -> Predictions:
    """Classify an image, or all images of a folder and the folders in it.

    The columns: `image` (the file), `class` (a name where `classes` gives them, else a number), `chance` of that
    class, and `read`, how the model was read.

    Args:
        model: `model.safetensors`, or the folder that holds it.
        images: a file or a folder.
        own: the learner's state folder of the job, at a node that took part. It holds the node's own arrays of the
            newest round, and of the one whose model is the job's result.
        classes: names of the classes in order of number.

    Raises:
        NotFound: no such model file.
        OperatorError: a model that is not installed here, or whose BN this node cannot know.
        SiteError: no images, one that cannot be read, or a state of another model.
    """
    metadata, arrays = read_model(model)
    config: dict[str, Any] = json.loads(metadata.get("config", "{}"))
    told = dict(config.get("model", {}))
    # Pretrained weights are where training started; whoever only reads the model need not have them.
    found: Any = load_model(metadata["model"], {key: value for key, value in told.items() if key not in PRETRAINED})
    if classes and len(classes) != found.config.classes:
        raise OperatorError(f"{len(classes)} names were given, and the model has {found.config.classes} classes.")
    rounds = int(metadata.get("rounds", "0"))
    mine_of, mine = NetworkState.load(own).own_of(rounds)
    if not any(array.dtype.kind == "f" for array in mine.values()):
        mine_of = 0  # counters alone: every array that is computed with is everybody's
    seed = int(metadata.get("seed", "0"))
    roles, initial = found.roles(), found.initial_state(seed)
    absent = [name for name, role in roles.items() if role in SHARED and name not in arrays]
    if absent:
        raise SiteError(
            f"The model's file lacks the array '{absent[0]}', and {len(absent)} in all.",
            code="STATE_MISMATCH",
            remedy=_REMEDY,
        )
    missing = any(
        role not in SHARED and name not in mine and name not in arrays and initial[name].dtype.kind == "f"
        for name, role in roles.items()
    )
    if missing and any(told.get(key) for key in PRETRAINED):
        initial = load_model(metadata["model"], told).initial_state(seed)  # what BN began with
    state = {name: mine.get(name, arrays.get(name, initial[name])) for name in initial}
    odd = [name for name in initial if state[name].shape != initial[name].shape]
    if odd:
        raise SiteError(
            f"The array '{odd[0]}' of the model is not of the model's shape here.",
            code="STATE_MISMATCH",
            remedy=_REMEDY,
        )
    members = {} if mine_of else members_of(arrays)
    unseen = str(config.get("unseen_bn", "average"))
    reading, read = _reading(mine_of, rounds, unseen, missing=missing, members=bool(members))
    files = _files(images)
    states = [{**state, **each} for each in members.values()] if reading == "client_ensemble" else [state]
    how = "own" if reading == "client_ensemble" else reading
    chances = np.mean([_chances(found, each, files, how) for each in states], axis=0)
    numbers = chances.argmax(axis=1)
    return Predictions(
        columns={
            "image": np.array([str(file) for file in files]),
            "class": np.array([classes[number] for number in numbers]) if classes else numbers,
            "chance": chances.max(axis=1).astype(np.float32),
            "read": np.array([read] * len(files)),
        }
    )


def _reading(own_of: int, rounds: int, unseen: str, *, missing: bool, members: bool) -> tuple[str, str]:
    """How norm layers are read, and the words for it. `own_of`: the round of the node's own arrays, 0 without any."""
    if own_of:
        how = "with this node's own batch normalisation"
        if own_of == rounds:
            return "own", f"{how} (round {rounds})"
        return "own", f"{how} of round {own_of}: of round {rounds}, whose model this is, it has none"
    if unseen in ("in_only", "batch_stats"):
        return unseen, f"as an unseen node, by {unseen}"
    if unseen == "client_ensemble" and members:
        return unseen, "as an unseen node, by the mean of the models of all nodes that trained"
    if missing:
        raise OperatorError(
            "The model here comes without batch normalisation, which never left the nodes that trained, or went to "
            "unseen nodes alone; and this node did not train.",
            remedy="A file that is pulled (hanse model pull) holds the averages, unless the job says bn_upload never; "
            "then train with unseen_bn in_only or batch_stats.",
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
