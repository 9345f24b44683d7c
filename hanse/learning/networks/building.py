"""How a registered network is made where torch may be missing. Importing this loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import OperatorError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["initial_state", "no_torch"]


def initial_state(build: Callable[[], nn.Module], seed: int) -> Mapping[str, NDArray[Any]]:
    """The whole state of a network before training, in the order of torch's `state_dict`; the same for the same seed.

    Raises:
        OperatorError: torch is not installed here.
    """
    try:
        import torch
    except ImportError as error:
        raise no_torch(error) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build()
    return {name: np.array(tensor.numpy(), order="C") for name, tensor in module.state_dict().items()}


def no_torch(error: ImportError) -> OperatorError:
    """The error that torch cannot be imported."""
    return OperatorError(
        f"Networks need torch, which cannot be imported here ({error}).",
        remedy="Install it: pip install 'hanse[torch]'.",
        code="NOT_IMPORTABLE",
    )
