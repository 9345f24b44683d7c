"""Image classifiers at the node: images as batches of tensors, and the figures of a classifier."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from hanse.errors import MethodError, SiteError
from hanse.images import Images
from hanse.learning.arrays import Float64, Int64
from hanse.learning.augmentation import augment
from hanse.learning.classification import Reading, guided_loss, log_losses, probabilities
from hanse.learning.local_training import Loss
from hanse.learning.metrics import Confusion
from hanse.learning.networks.image_models import ImageModel, ImageModelConfig
from hanse.learning.training_options import PublishedGperxan, TrainingOptions, UnseenReadOut
from hanse.learning.xan import xan_layers
from hanse.method import Dataset, Predictions
from hanse.payload.kinds import ConfusionSum, MetricSum, RatioSum
from hanse_agent.datasets.images import ImagesDataset
from hanse_agent.learners.network_setup import NetworkModel
from hanse_agent.learners.networks import NetworkLearner

MOST_IN_MEMORY = 512_000_000
"""Decoded images of a node stay in memory up to so many bytes; beyond it they are decoded again and again."""
LOSS_FRACTION_BITS = 20


class ImageTask:
    """Images as a task of a classifier. See `hanse_agent.learners.networks.NodeTask`."""

    def __init__(self, images: Images, model: ImageModel, options: TrainingOptions, device: torch.device) -> None:
        config: ImageModelConfig = model.config
        if len(images.labels) and (images.labels.min() < 0 or images.labels.max() >= config.classes):
            bad = int(np.flatnonzero((images.labels < 0) | (images.labels >= config.classes))[0])
            raise SiteError(
                f"{images.name(bad)} is of class {int(images.labels[bad])}; the job has {config.classes} classes.",
                code="CLASS_UNKNOWN",
                remedy="Number the classes from 0 in the job's order, or leave these images out.",
            )
        self._images, self._options, self._config = images, options, config
        self._classifier, self._device = model.classifier, device
        self._mean = _per_channel(config.mean, device)
        self._std = _per_channel(config.std, device)
        self.training: Int64 = np.flatnonzero(~images.held_out)
        self.held_out: Int64 = np.flatnonzero(images.held_out)
        self.everything: Int64 = np.arange(len(images.labels))
        self._pixels: NDArray[np.uint8] | None = None

    def batch(self, rows: Int64, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Normalised images float32 [B, C, S, S] and classes int64 [B]."""
        x = torch.from_numpy(self._decoded(rows)).to(self._device).float() / 255.0
        if generator is not None:
            x = augment(x, self._options.augmentation, generator)
        targets = torch.from_numpy(self._images.labels[rows]).to(self._device)
        return (x - self._mean) / self._std, targets

    def objective(self, network: nn.Module) -> Loss:
        """Cross-entropy, and gPerXAN's guide where the job has one."""
        return guided_loss(network, classifier=self._classifier, guide=self._options.guide)

    def evaluate(
        self, network: nn.Module, rows: Int64, reading: UnseenReadOut | None, progress: Callable[[float, str], None]
    ) -> dict[str, MetricSum]:
        """The confusion matrix and the sum of log-losses."""
        if reading == "in_only" and not xan_layers(network):
            raise MethodError("The reading 'in_only' is for models with norm: xan.", code="NO_XAN")
        how: Reading = reading if reading in ("in_only", "batch_stats") else "own"
        return self._figures(self.chances(network, rows, how, progress), rows)

    def evaluate_ensemble(self, networks: list[Callable[[], nn.Module]], rows: Int64) -> dict[str, MetricSum]:
        """The same of the mean of the networks' probabilities."""
        total: Float64 | None = None
        for make in networks:
            chances = self.chances(make(), rows)
            total = chances if total is None else total + chances
        assert total is not None
        return self._figures(total / len(networks), rows)

    def chances(
        self,
        network: nn.Module,
        rows: Int64,
        reading: Reading = "own",
        progress: Callable[[float, str], None] | None = None,
    ) -> Float64:
        """Class probabilities float64 [rows, classes]."""
        size = self._options.evaluation_batch_size
        return probabilities(
            network, lambda part: self.batch(part, None)[0], rows, batch_size=size, reading=reading, progress=progress
        )

    def _figures(self, chances: Float64, rows: Int64) -> dict[str, MetricSum]:
        labels = self._images.labels[rows]
        losses = log_losses(chances, labels)
        predicted = chances.argmax(axis=1) if len(rows) else labels
        confusion = Confusion.of(labels, predicted, self._config.classes).array
        return {"confusion": ConfusionSum(confusion), "log_loss": RatioSum.of(losses, LOSS_FRACTION_BITS)}

    def _decoded(self, rows: Int64) -> NDArray[np.uint8]:
        size, channels, count = self._config.size, self._config.channels, len(self._images.labels)
        if self._pixels is None and count * channels * size * size <= MOST_IN_MEMORY:
            self._pixels = self._images.pixels(self.everything, size=size, channels=channels)
        if self._pixels is not None:
            return self._pixels[rows]
        return self._images.pixels(rows, size=size, channels=channels)


class ImageLearner(NetworkLearner):
    """The learner of `fedavg` on images; FedProx, FedBN and the guide are options of it."""

    dataset_kinds: ClassVar[tuple[str, ...]] = ("images",)

    def task(self, records: Any, model: NetworkModel, options: TrainingOptions, device: torch.device) -> ImageTask:
        """Images and an image model."""
        if not isinstance(model, ImageModel):
            raise MethodError(f"{type(model).__name__} is no model of images.", code="WRONG_MODEL")
        return ImageTask(records, model, options, device)

    def predict(self, state: Path, data: Path) -> Predictions:
        """Classify images (a file or a folder) with the model that is the job's result; see `hanse.method.Predictor`.

        A node that trained reads it with its own batch normalisation of the model's round (see
        `image_predictions`), any other as unseen nodes do.
        """
        from hanse_agent.learners.image_predictions import predict

        return predict(state, data, own=state, classes=_class_names(self._dataset))


class GperxanLearner(ImageLearner):
    """The learner of `gperxan`: the same, with the published defaults."""

    training: ClassVar[type[TrainingOptions]] = PublishedGperxan


def _class_names(dataset: Dataset) -> tuple[str, ...]:
    """The names that agent.yaml gives, without reading a record; else what the dataset tells, if it can be read."""
    if isinstance(dataset, ImagesDataset):
        return dataset.options.classes
    try:
        return tuple(json.loads(dataset.describe().facts.get("classes", "[]")))
    except SiteError:
        return ()


def _per_channel(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device=device)[:, None, None]
