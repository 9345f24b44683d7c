"""Training and judging a classifier: cross-entropy with gPerXAN's guide, and predictions in several ways.

The guide (Le et al., CVPR 2024): with z the features and h the node's own classifier,
`L = CE(h(z), y) + guide * CE(h_global(z), y)`, where h_global is the classifier as it came at the start of the
round. It is frozen: it gets no gradient, and its loss moves the features alone [official code].
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from hanse.errors import MethodError
from hanse.learning.arrays import Float64, Int64
from hanse.learning.local_training import Loss
from hanse.learning.xan import batch_statistics, instance_only

__all__ = ["Reading", "guided_loss", "log_losses", "probabilities"]

Reading = Literal["own", "in_only", "batch_stats"]


def guided_loss(network: nn.Module, *, classifier: str, guide: float) -> Loss:
    """The loss of a round. With a guide, the network must have `features(x)`, and `classifier` must be what follows.

    The frozen copy is made here: call it when the round's global arrays have been loaded.
    """
    if not guide:
        return lambda inputs, targets: F.cross_entropy(network(inputs), targets)
    own = network.get_submodule(classifier)
    frozen = copy.deepcopy(own).requires_grad_(False)
    features: Callable[[Tensor], Tensor] = network.features  # type: ignore[assignment]

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        z = features(inputs)
        return F.cross_entropy(own(z), targets) + guide * F.cross_entropy(frozen(z), targets)

    return loss


def probabilities(
    network: nn.Module,
    batch: Callable[[Int64], Tensor],
    rows: Int64,
    *,
    batch_size: int,
    reading: Reading = "own",
    progress: Callable[[float, str], None] | None = None,
) -> Float64:
    """Class probabilities float64 [rows, classes].

    `reading` says what norm layers do: `own` statistics and mixture; `in_only`, the IN branch of XAN alone;
    `batch_stats`, BN by the statistics of the batch. Batches are as equal as may be, so that none is tiny.
    """
    network.eval()
    ways: dict[str, Any] = {"own": nullcontext, "in_only": instance_only, "batch_stats": batch_statistics}
    parts: list[Float64] = []
    pieces: Sequence[Int64] = np.array_split(rows, max(1, -(-len(rows) // batch_size))) if len(rows) else []
    with torch.no_grad(), ways[reading]() if reading == "own" else ways[reading](network):
        for place, piece in enumerate(pieces):
            scores = network(batch(piece)).double()
            parts.append(torch.softmax(scores, dim=1).cpu().numpy())
            if progress is not None:
                progress((place + 1) / len(pieces), "evaluating")
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def log_losses(chances: Float64, labels: Int64) -> Float64:
    """Minus the logarithm of each row's chance of its own class, at most 100, float64 [rows].

    Raises:
        MethodError: a probability is not a number: the model has diverged.
    """
    if not len(labels):
        return np.zeros(0)
    own = chances[np.arange(len(labels)), labels]
    if not np.isfinite(own).all():
        raise MethodError(
            "The model puts out numbers that are not finite.",
            remedy="Lower training.learning_rate.",
            code="NON_FINITE_LOSS",
        )
    losses: Float64 = -np.log(np.maximum(own, np.exp(-100.0)))
    return losses
