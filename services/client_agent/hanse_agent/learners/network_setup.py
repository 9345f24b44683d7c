"""What a learner of networks knows from the job alone: the model and its roles, and the arrays that it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hanse.errors import InvalidPayload, SiteError
from hanse.learning.compression import CompressionOptions
from hanse.learning.training_options import TrainingOptions, UnseenReadOut
from hanse.method import Assignment
from hanse.models import SHARED, Model, Role
from hanse.payload.models import read_roles
from hanse_agent.learners.network_state import NetworkState

Arrays = Mapping[str, NDArray[Any]]


class NetworkModel(Model, Protocol):
    """A registered model that is a network."""

    def build(self) -> nn.Module:
        """The network, with arbitrary weights."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """What follows from the job alone, kept warm."""

    key: str
    model: NetworkModel
    options: TrainingOptions
    compression: CompressionOptions
    readings: tuple[UnseenReadOut, ...]
    network: nn.Module
    roles: Mapping[str, Role]
    initial: Arrays


def shared_arrays(assignment: Assignment, setup: Setup) -> Arrays:
    """The instruction's arrays, checked against the job's model.

    Raises:
        InvalidPayload: others than the model has here; the sentence names one.
    """
    payload = assignment.instruction
    roles = read_roles(payload)
    wanted = {name: role for name, role in setup.roles.items() if role in SHARED}
    remedy = "Check that this site has the same version of the model's package as the aggregator."
    if payload.header.model_state.model != assignment.job.model or roles != wanted:
        odd = sorted(set(roles.items()) ^ set(wanted.items()))
        raise InvalidPayload(
            f"The instruction's arrays are not those of the model '{assignment.job.model}' here"
            + (f": see '{odd[0][0]}' ({odd[0][1]})." if odd else "."),
            remedy=remedy,
        )
    for name in wanted:
        mine, array = setup.initial[name], payload.arrays[name]
        if array.shape != mine.shape or array.dtype != mine.dtype:
            raise InvalidPayload(
                f"The instruction's array '{name}' is {array.dtype} {array.shape}, and here {mine.dtype} {mine.shape}.",
                remedy=remedy,
            )
    return {name: payload.arrays[name] for name in wanted}


def own_arrays(setup: Setup, kept: NetworkState) -> Arrays:
    """What belongs to the node: as it kept it, or as everybody begins."""
    own = {name: array for name, array in setup.initial.items() if setup.roles[name] not in SHARED}
    return own | {name: array for name, array in kept.own.items() if name in own}


def device_of(options: TrainingOptions) -> torch.device:
    """Where to compute.

    Raises:
        SiteError: the job wants a GPU, and there is none.
    """
    found = torch.cuda.is_available()
    if options.device == "cuda" and not found:
        raise SiteError(
            "The job wants a GPU, and there is none here.",
            code="NO_GPU",
            remedy="Set training.device to auto, or take this node out of the job.",
        )
    if found and options.device != "cpu":
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        return torch.device("cuda")
    return torch.device("cpu")


def is_averaged(array: NDArray[Any]) -> bool:
    """Whether an array takes part in averaging: counters, which are integers, do not."""
    return bool(np.issubdtype(array.dtype, np.floating))
