"""Training a forecaster for one node: early stopping, fine-tuning, and pFedMe's personal model.

Built on `hanse.learning.local_training`. Epochs are chosen by the loss on the node's own validation windows; the state
before the first epoch is a candidate too, so that fine-tuning never makes a model worse there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from hanse.errors import MethodError
from hanse.learning.arrays import Int64
from hanse.learning.forecast_options import MoreauOptions
from hanse.learning.local_training import Loss, Report, Task, derived_seed, row_batches, train
from hanse.learning.training_options import TrainingOptions

__all__ = ["ValidatedTask", "fit_epochs", "train_moreau"]

Progress = Callable[[float, str], None]


class ValidatedTask(Task, Protocol):
    """A task that keeps some rows to choose epochs by."""

    training: Int64
    validation: Int64

    def loss_on(self, network: nn.Module, rows: Int64) -> float:
        """The mean loss on rows; nothing is learned."""


def fit_epochs(
    network: nn.Module,
    task: ValidatedTask,
    options: TrainingOptions,
    *,
    rate: float,
    seed: int,
    epochs: int,
    patience: int,
    names: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Train in place for at most so many epochs and keep the best by validation; no validation rows: the last.

    `names`: the parameters that may change (None: all). An epoch has at most `options.local_steps` steps, where that is
    set. Ends when `patience` epochs in a row were no better.
    """
    chosen = set(names) if names is not None else None
    single = options.model_copy(update={"local_epochs": 1, "proximal": 0.0, "keep_optimiser": True})
    before = {name: value.requires_grad for name, value in network.named_parameters()}
    for name, value in network.named_parameters():
        value.requires_grad_(chosen is None or name in chosen)
    judged = len(task.validation) > 0
    best = task.loss_on(network, task.validation) if judged else math.inf
    kept, report, behind = _copy(network), None, 0
    try:
        for epoch in range(epochs):
            report = train(
                network,
                task,
                task.training,
                single,
                rate=rate,
                seed=derived_seed(seed, "epoch", epoch),
                shared={},
                optimiser=report.optimiser if report is not None else None,
                progress=progress,
            )
            found = task.loss_on(network, task.validation) if judged else -math.inf
            if found < best or not judged:
                best, kept, behind = found, _copy(network), 0
            else:
                behind += 1
                if behind >= patience:
                    break
    finally:
        for name, value in network.named_parameters():
            value.requires_grad_(before[name])
    network.load_state_dict(kept)
    return Report(
        optimiser={}, steps=report.steps if report else 0, rows=report.rows if report else 0, loss=float(best)
    )


def train_moreau(
    network: nn.Module,
    task: Task,
    rows: Int64,
    options: TrainingOptions,
    moreau: MoreauOptions,
    *,
    rate: float,
    seed: int,
    progress: Progress | None = None,
) -> tuple[Report, Mapping[str, Tensor]]:
    """pFedMe (Dinh et al. 2020, algorithm 1) at one node: the network becomes the node's copy `w`; theta is returned.

    On each batch, `inner_steps` steps of `theta <- theta - rate (grad f(theta) + lambda (theta - w))`, then
    `w <- w - eta lambda (w - theta)`.
    """
    network.train()
    loss: Loss = task.objective(network)
    parameters = dict(network.named_parameters())
    copy = {name: value.detach().clone() for name, value in parameters.items()}
    order = torch.Generator().manual_seed(derived_seed(seed, "order"))
    steps, seen, total = 0, 0, 0.0
    expected = options.local_steps or options.local_epochs * max(1, math.ceil(len(rows) / options.batch_size))
    for _ in range(options.local_epochs):
        for batch in row_batches(rows, options.batch_size, order):
            inputs, targets = task.batch(batch, None)
            for _ in range(moreau.inner_steps):
                for parameter in parameters.values():
                    parameter.grad = None
                value = loss(inputs, targets)
                value.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for name, parameter in parameters.items():
                        if parameter.grad is not None:
                            pull = moreau.strength * (parameter - copy[name])
                            parameter.sub_(parameter.grad + pull, alpha=rate)
            if not math.isfinite(float(value.detach())):
                raise MethodError(
                    f"The loss became {float(value.detach())} in step {steps + 1} of pFedMe at rate {rate:g}.",
                    remedy="Lower training.learning_rate, or personal.pfedme.strength.",
                    code="NON_FINITE_LOSS",
                )
            with torch.no_grad():
                for name, parameter in parameters.items():
                    copy[name].add_(parameter - copy[name], alpha=moreau.outer_rate * moreau.strength)
            steps, seen, total = steps + 1, seen + len(batch), total + float(value.detach()) * len(batch)
            if progress is not None:
                progress(min(steps / expected, 1.0), "pFedMe")
            if options.local_steps and steps >= options.local_steps:
                break
        else:
            continue
        break
    theta = {name: value.detach().clone() for name, value in parameters.items()}
    network.load_state_dict(copy, strict=False)
    return Report(optimiser={}, steps=steps, rows=seen, loss=total / seen if seen else math.nan), theta


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
