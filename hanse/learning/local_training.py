"""One round of training at one node: a network, batches of rows, a loss, and an optimiser that goes on where it was.

Shared by every method that trains networks. Nothing here knows of payloads, files or images: rows are numbers, a
`Task` turns them into tensors and says what the loss is. All randomness comes from a seed of job, node and round; on
one thread the same seed gives the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from hanse.errors import MethodError, SiteError
from hanse.learning.arrays import Int64
from hanse.learning.training_options import TrainingOptions

__all__ = ["Loss", "OptimiserState", "Report", "Task", "derived_seed", "row_batches", "train"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""Inputs and targets of a batch to the mean loss over it, a scalar."""
OptimiserState = Mapping[str, Tensor]
"""`PARAMETER/KEY` to a tensor: `conv1.weight/momentum_buffer`."""
Progress = Callable[[float, str], None]


class Task(Protocol):
    """What a network is trained for: rows as tensors, and the loss."""

    def batch(self, rows: Int64, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of rows; randomly changed where a generator is given."""

    def objective(self, network: nn.Module) -> Loss:
        """The loss of a round; asked for when the round's shared arrays are in the network and nothing is trained."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a round of training did. `loss` is the mean over the rows trained on, NaN without any."""

    optimiser: OptimiserState
    steps: int
    rows: int
    loss: float


def derived_seed(*words: object) -> int:
    """A seed below 2^63 from words: the same for the same, and unrelated for others."""
    text = "\x00".join(str(word) for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def row_batches(rows: Int64, batch_size: int, generator: Generator) -> Iterator[Int64]:
    """The rows in random order, batch by batch; a last batch of one row is left out.

    Raises:
        SiteError: fewer than two rows, which have no batch statistics.
    """
    if len(rows) < 2:
        raise SiteError(
            f"This node has {len(rows)} rows to train on; batch statistics need at least two.",
            code="TOO_FEW_ROWS",
            remedy="Offer more rows, or hold out fewer.",
        )
    order = rows[torch.randperm(len(rows), generator=generator).numpy()]
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        if len(batch) > 1 or batch_size == 1:
            yield batch


def train(
    network: nn.Module,
    task: Task,
    rows: Int64,
    options: TrainingOptions,
    *,
    rate: float,
    seed: int,
    shared: Mapping[str, Tensor],
    optimiser: OptimiserState | None = None,
    progress: Progress | None = None,
) -> Report:
    """Train a network in place on rows, at the learning rate of the round.

    `shared` are the round's global arrays by parameter name, towards which the proximal term pulls; `optimiser` is
    what an earlier round left behind.

    Raises:
        MethodError: the loss or a parameter is not finite; the sentence names step and rate.
        SiteError: fewer than two rows.
    """
    network.train()
    loss = task.objective(network)
    parameters = {name: value for name, value in network.named_parameters() if value.requires_grad}
    anchors = [(value, shared[name]) for name, value in parameters.items() if name in shared]
    rule = _rule(parameters, options, rate)
    if optimiser:
        _restore(rule, parameters, optimiser)
    order = torch.Generator().manual_seed(derived_seed(seed, "order"))
    changes = torch.Generator().manual_seed(derived_seed(seed, "augmentation"))
    per_epoch = max(1, math.ceil(len(rows) / options.batch_size))
    expected = options.local_steps or per_epoch * options.local_epochs
    steps, seen, total = 0, 0, 0.0
    for epoch in range(options.local_epochs):
        for batch in row_batches(rows, options.batch_size, order):
            rule.zero_grad(set_to_none=True)
            value = _accumulate(task, loss, batch, options, changes)
            if not math.isfinite(value):
                raise _not_finite(f"The loss became {value}", steps + 1, rate)
            if options.proximal:
                _add_proximal(anchors, options.proximal)
            if options.clip_norm:
                nn.utils.clip_grad_norm_(list(parameters.values()), options.clip_norm)
            rule.step()
            steps, seen, total = steps + 1, seen + len(batch), total + value * len(batch)
            if progress is not None:
                progress(min(steps / expected, 1.0), f"epoch {epoch + 1} of {options.local_epochs}")
            if options.local_steps and steps >= options.local_steps:
                break
        else:
            continue
        break
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise _not_finite(f"The array '{name}' is no longer finite", steps, rate)
    kept = _saved(rule, parameters) if options.keep_optimiser else {}
    return Report(optimiser=kept, steps=steps, rows=seen, loss=total / seen if seen else float("nan"))


def _accumulate(task: Task, loss: Loss, batch: Int64, options: TrainingOptions, changes: Generator) -> float:
    """Add the gradient of the batch's mean loss, piece by piece, and return the loss."""
    total = 0.0
    for piece in _pieces(batch, options.micro_batch_size):
        inputs, targets = task.batch(piece, changes)
        value = loss(inputs, targets) * (len(piece) / len(batch))
        value.backward()  # type: ignore[no-untyped-call]
        total += float(value.detach())
    return total


def _pieces(batch: Int64, size: int) -> list[Int64]:
    """Pieces of at most `size` rows, equal as far as may be, so that none is a single row (unless `size` is 1)."""
    if not size or len(batch) <= size:
        return [batch]
    count = -(-len(batch) // size)
    if size > 1:
        count = min(count, len(batch) // 2)
    return np.array_split(batch, count)


def _add_proximal(anchors: list[tuple[nn.Parameter, Tensor]], strength: float) -> None:
    """The gradient of `strength / 2 * ||w - w_global||^2`."""
    with torch.no_grad():
        for value, anchor in anchors:
            if value.grad is not None:
                value.grad.add_(value - anchor, alpha=strength)


def _rule(parameters: Mapping[str, nn.Parameter], options: TrainingOptions, rate: float) -> Optimizer:
    values, decay = list(parameters.values()), options.weight_decay
    if options.optimiser == "adam":
        return AdamW(values, lr=rate, betas=(options.momentum, 0.999), weight_decay=decay)
    return SGD(values, lr=rate, momentum=options.momentum, weight_decay=decay)


def _saved(rule: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    kept = {}
    for name, parameter in parameters.items():
        for key, value in rule.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                kept[f"{name}/{key}"] = value.detach().to("cpu", copy=True)
    return kept


def _restore(rule: Optimizer, parameters: Mapping[str, nn.Parameter], kept: OptimiserState) -> None:
    for entry, value in kept.items():
        name, _, key = entry.rpartition("/")
        if name in parameters:
            parameter = parameters[name]
            # Adam counts its steps on the CPU; everything else lies where the parameter does.
            device = "cpu" if key == "step" else parameter.device
            rule.state[parameter][key] = value.to(device, copy=True)


def _not_finite(what: str, step: int, rate: float) -> MethodError:
    return MethodError(
        f"{what} in step {step} at learning rate {rate:g}; nothing was sent.",
        remedy="Lower training.learning_rate or set training.clip_norm; look for extreme values in the records.",
        code="NON_FINITE_LOSS",
    )
