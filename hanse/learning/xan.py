"""XAN: batch and instance normalisation of one input, mixed by two learnt scores (gPerXAN, Le et al., CVPR 2024).

For x [B, C, H, W]:  u = BN(x),  v = IN(x),  (a_b, a_n) = softmax(s_b, s_n),  output = a_b u + a_n v.  One pair of
scores a layer, both 1 at first, so that both weigh one half. IN has an affine transformation and no running
statistics. Names and numbers are those of the official code; `assemble_xan` works on any torch model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from hanse.errors import OperatorError

__all__ = ["XAN", "assemble_xan", "batch_statistics", "instance_only", "mixing_weights", "xan_layers"]

logger = logging.getLogger(__name__)

Copying = Literal["both", "batch_only", "neither"]


class XAN(nn.Module):
    """One norm layer of both kinds over `channels` feature maps.

    `init_scores` are (s_b, s_n). `forced` overrides the mixture: `batch` or `instance` alone. A map of one pixel has
    no instance statistics: there the output is BN's, and a warning says so once a layer.
    """

    score_batchnorm: nn.Parameter
    score_instancenorm: nn.Parameter

    def __init__(
        self,
        channels: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        init_scores: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        super().__init__()
        self.batchnorm = nn.BatchNorm2d(channels, eps=eps, momentum=momentum)
        self.score_batchnorm = nn.Parameter(torch.tensor(float(init_scores[0])))
        self.instancenorm = nn.InstanceNorm2d(channels, eps=eps, affine=True, track_running_stats=False)
        self.score_instancenorm = nn.Parameter(torch.tensor(float(init_scores[1])))
        self.forced: Literal["batch", "instance"] | None = None
        self._warned = False

    @property
    def weights(self) -> Tensor:
        """(a_b, a_n): the softmax of the scores."""
        weights: Tensor = torch.softmax(torch.stack((self.score_batchnorm, self.score_instancenorm)), dim=0)
        return weights

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [B, C, H, W]; the shape stays."""
        if self.forced == "batch" or x.shape[-1] * x.shape[-2] == 1:
            if self.forced != "batch":
                self._warn()
            batch: Tensor = self.batchnorm(x)
            return batch
        instance: Tensor = self.instancenorm(x)
        if self.forced == "instance":
            return instance
        weights = self.weights
        mixed: Tensor = weights[0] * self.batchnorm(x) + weights[1] * instance
        return mixed

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "a feature map of one pixel has no instance statistics: this layer of %d channels is batch "
                "normalisation alone; use larger images or fewer strides",
                self.batchnorm.num_features,
            )

    def extra_repr(self) -> str:
        """What `print` shows of the layer."""
        return f"{self.batchnorm.num_features}"


def assemble_xan(
    model: nn.Module,
    *,
    stages: Sequence[str] = (),
    init_scores: tuple[float, float] = (1.0, 1.0),
    copy_affine: Copying = "both",
) -> nn.Module:
    """Put XAN in the place of every BatchNorm2d of a model, in place, and return the model.

    `stages` limits it to layers whose name is one of these or lies below it (`layer1`, `layer2.0`); all layers when
    empty, as published. `copy_affine` says where the old layer's scale and shift go: to `both` branches (our choice,
    which keeps pretrained convolutions useful), to BN alone, or to neither; running statistics go to BN in the first
    two cases. `init_scores` (4, 0) starts near the pretrained network.

    Raises:
        OperatorError: a stage under which there is no BatchNorm2d, or no such layer at all.
    """
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d) and not _inside_xan(model, name)
    }
    for stage in stages:
        if not any(_below(name, stage) for name in found):
            raise OperatorError(f"There is no batch normalisation under the stage '{stage}' of this model.")
    chosen = {name: bn for name, bn in found.items() if not stages or any(_below(name, s) for s in stages)}
    if not chosen:
        raise OperatorError("This model has no BatchNorm2d that XAN could take the place of.")
    for name, old in chosen.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, _converted(old, init_scores, copy_affine))
    return model


def xan_layers(model: nn.Module) -> dict[str, XAN]:
    """The XAN layers of a model by name, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, XAN)}


def mixing_weights(model: nn.Module) -> dict[str, float]:
    """The weight a_b of batch normalisation in each XAN layer (a_n is the rest to 1)."""
    return {name: float(layer.weights[0].detach()) for name, layer in xan_layers(model).items()}


@contextmanager
def instance_only(model: nn.Module) -> Iterator[None]:
    """Within, XAN layers put out their IN branch alone."""
    layers = list(xan_layers(model).values())
    before = [layer.forced for layer in layers]
    try:
        for layer in layers:
            layer.forced = "instance"
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            layer.forced = old


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Within, batch normalisation takes the statistics of the very batch and changes none of its running ones."""
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    try:
        for layer in layers:
            layer.training, layer.track_running_stats = True, False
        yield
    finally:
        for layer, (training, tracked) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracked


def _converted(old: nn.BatchNorm2d, init_scores: tuple[float, float], copy_affine: Copying) -> XAN:
    new = XAN(old.num_features, eps=old.eps, momentum=old.momentum, init_scores=init_scores)
    with torch.no_grad():
        if copy_affine != "neither":
            _copy(old, new.batchnorm, "weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        if copy_affine == "both":
            _copy(old, new.instancenorm, "weight", "bias")
    device = next((tensor.device for tensor in (*old.parameters(), *old.buffers())), None)
    return new.to(device) if device is not None and device.type != "meta" else new


def _copy(source: nn.Module, target: nn.Module, *names: str) -> None:
    for name in names:
        value = getattr(source, name, None)
        if value is not None and not value.is_meta:
            getattr(target, name).copy_(value)


def _below(name: str, stage: str) -> bool:
    return name == stage or name.startswith(f"{stage}.")


def _inside_xan(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), XAN)
