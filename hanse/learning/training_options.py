"""What a node does with a model in one round: the options of local training, and the learning rate's closed form.

The job file's `method_config.training`. The defaults are those of a plain FedAvg client; `PublishedGperxan` has
those of the official gPerXAN code (Le et al., CVPR 2024). This module needs no torch.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from hanse.learning.forecast_options import PersonalOptions
from hanse.settings import Settings

__all__ = ["Augmentation", "PublishedGperxan", "Schedule", "TrainingOptions", "UnseenReadOut", "learning_rate"]

Schedule = Literal["published", "standard", "constant"]
UnseenReadOut = Literal["average", "in_only", "batch_stats", "client_ensemble"]


class Augmentation(Settings):
    """Random changes of training images, made anew in every epoch; all off unless asked for."""

    flip: float = Field(0.0, ge=0, le=1)
    """Probability of a left-right mirror image."""
    crop: int = Field(0, ge=0, le=256)
    """Pad by so many pixels on every side (with the edge's own values) and cut the old size out at random."""
    jitter: float = Field(0.0, ge=0, lt=1)
    """Largest relative change of brightness, contrast and saturation."""
    jitter_probability: float = Field(0.5, ge=0, le=1)
    """Probability that an image's colours are changed at all."""


class TrainingOptions(Settings):
    """Local training of one round at one node; the same for every node of a job."""

    optimiser: Literal["sgd", "adam"] = "sgd"
    """The rule of a step. `adam` decouples the weight decay (AdamW)."""
    learning_rate: float = Field(0.01, gt=0)
    """Before the schedule."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Of SGD; the first beta of Adam."""
    weight_decay: float = Field(5e-4, ge=0)
    """On every parameter, those of norm layers included."""
    schedule: Schedule = "constant"
    """Over rounds. `published`: cosine, stepped before the round, so that the last round trains with rate 0;
    `standard`: cosine, stepped after the round."""
    keep_optimiser: bool = True
    """Momentum lives on at the node from round to round; else every round starts with none."""
    local_epochs: int = Field(1, ge=1, le=10_000)
    """Passes over the node's training rows a round."""
    local_steps: int = Field(0, ge=0)
    """At most so many optimiser steps a round; 0: whole epochs."""
    batch_size: int = Field(32, ge=1)
    """Rows behind one optimiser step. A last batch of a single row is left out: it has no batch statistics."""
    micro_batch_size: int = Field(0, ge=0)
    """Compute a batch in pieces of so many rows and add their gradients, for small machines; 0: in one piece.
    Batch statistics are then those of the pieces."""
    clip_norm: float = Field(0.0, ge=0)
    """Scale the gradient down to this Euclidean norm; 0: never."""
    proximal: float = Field(0.0, ge=0)
    """FedProx: adds `proximal / 2 * ||w - w_global||^2` over the shared parameters (Li et al., MLSys 2020)."""
    guide: float = Field(0.0, ge=0)
    """gPerXAN's lambda: adds `guide * CE(h_global(z), y)`, the round's global classifier being frozen."""
    augmentation: Augmentation = Augmentation()
    """Of training images."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. `auto`: on the GPU if there is one. Bytes repeat only on the same kind of device."""
    also_read: tuple[UnseenReadOut, ...] = ()
    """Further ways in which unseen nodes read the model, each with figures of its own (`batch_stats_accuracy`); see
    `unseen_bn` of the method gperxan."""
    evaluation_batch_size: int = Field(256, ge=2)
    """Rows at once when evaluating; the `batch_stats` read-out takes its statistics over these."""
    personal: PersonalOptions = PersonalOptions()
    """What makes a forecaster the node's own; for datasets of series alone."""

    @model_validator(mode="after")
    def _pieces_are_smaller(self) -> TrainingOptions:
        if self.micro_batch_size > self.batch_size:
            raise ValueError("micro_batch_size is larger than batch_size")
        return self


class PublishedGperxan(TrainingOptions):
    """The defaults of gPerXAN's official code; every one may be changed."""

    learning_rate: float = Field(0.002, gt=0)
    """As published, for ResNet-50 at 224x224 from pretrained weights."""
    schedule: Schedule = "published"
    """As published."""
    guide: float = Field(0.5, ge=0)
    """As published (hard-coded there)."""


def learning_rate(base: float, schedule: Schedule, round_number: int, rounds: int) -> float:
    """The learning rate of a round, counted from 1, of a job of so many rounds.

    `published`: `base * (1 + cos(pi r / R)) / 2`, which is 0 in round R [official code]; `standard`: the same with
    `r - 1`.
    """
    if schedule == "constant":
        return base
    place = round_number if schedule == "published" else round_number - 1
    if place >= rounds:
        return 0.0  # exactly: the cosine of pi is -1, but round-off must not train
    return base * (1.0 + math.cos(math.pi * place / rounds)) / 2.0
