"""Small labelled images in memory, and jobs over them, for tests of methods that train networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from hanse.jobs import JobSpecification
from hanse.method import HELD_OUT, DatasetDescription
from hanse_agent.datasets.images import ArrayImages

SIDE = 8


class MemoryImages:
    """A dataset of kind `images` that lies in memory."""

    Options: ClassVar[type[BaseModel]] = BaseModel

    def __init__(self, images: ArrayImages) -> None:
        self.images = images

    def describe(self) -> DatasetDescription:
        facts = {HELD_OUT: str(int(self.images.held_out.sum()))}
        return DatasetDescription(name="d", kind="images", rows=len(self.images.labels), facts=facts)

    def load(self) -> ArrayImages:
        return self.images


def bars(rows: int, *, seed: int, brightness: float = 1.0, held_out: float = 0.25, classes: int = 2) -> MemoryImages:
    """Images of 8 x 8 with a bright row (class 0), column (class 1) or diagonal (class 2) on noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    x = rng.integers(0, 90, (rows, SIDE, SIDE))
    for image, label in zip(x, labels, strict=True):
        place = rng.integers(1, SIDE - 1)
        if label == 0:
            image[place] = 220
        elif label == 1:
            image[:, place] = 220
        else:
            np.fill_diagonal(image, 220)
    pixels = np.clip(x * brightness, 0, 255).astype(np.uint8)
    return MemoryImages(ArrayImages(Path("memory"), pixels, labels.astype(np.int64), rng.random(rows) < held_out))


def domains(nodes: int = 3, rows: int = 40) -> dict[str, MemoryImages]:
    """Nodes whose images differ in brightness."""
    return {f"node-{i}": bars(rows, seed=i, brightness=0.5 + 0.3 * i) for i in range(nodes)}


def image_job(method: str = "gperxan", *, rounds: int = 2, **changes: Any) -> JobSpecification:
    """A job of a tiny network; changes that are no keys of the job go to the method, `model` and `training` by key."""
    own = {key: changes.pop(key) for key in list(changes) if key in JobSpecification.model_fields and key != "model"}
    norm = "xan" if method == "gperxan" else "batch"
    model = {"classes": 2, "size": SIDE, "width": 2, "norm": norm, **changes.pop("model", {})}
    training = {"learning_rate": 0.05, "batch_size": 8, **changes.pop("training", {})}
    return JobSpecification.model_validate(
        {
            "name": "test",
            "method": method,
            "dataset": "d",
            "model": "small_cnn",
            "rounds": rounds,
            "evaluation": {"every": 1},
            "selection": {"quorum": 1.0},
            "method_config": {"model": model, "training": training, **changes},
            **own,
        }
    )
