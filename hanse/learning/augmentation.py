"""Random changes of image tensors, one draw an image: mirror, shifted crop, brightness, contrast and saturation.

Images are float [B, C, H, W] in 0 to 1, before normalisation. All draws come from the given generator (on the CPU),
so that they repeat by seed on any device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Generator, Tensor

from hanse.learning.training_options import Augmentation

__all__ = ["augment"]

_LUMA = (0.299, 0.587, 0.114)


def augment(x: Tensor, options: Augmentation, generator: Generator) -> Tensor:
    """The changed images, float [B, C, H, W]; the same tensor when every option is off."""
    if options.flip:
        x = _flipped(x, options.flip, generator)
    if options.crop:
        x = _cropped(x, options.crop, generator)
    if options.jitter:
        x = _jittered(x, options.jitter, options.jitter_probability, generator)
    return x


def _flipped(x: Tensor, probability: float, generator: Generator) -> Tensor:
    chosen = torch.rand(len(x), generator=generator) < probability
    return torch.where(chosen.to(x.device)[:, None, None, None], x.flip(-1), x)


def _cropped(x: Tensor, pad: int, generator: Generator) -> Tensor:
    count, _, height, width = x.shape
    offsets = torch.randint(0, 2 * pad + 1, (2, count), generator=generator).to(x.device)
    padded = F.pad(x, (pad, pad, pad, pad), mode="replicate")
    rows = offsets[0][:, None] + torch.arange(height, device=x.device)
    columns = offsets[1][:, None] + torch.arange(width, device=x.device)
    images = torch.arange(count, device=x.device)[:, None, None]
    # [B, H, W, C] by advanced indexing over images, rows and columns at once.
    return padded[images, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _jittered(x: Tensor, most: float, probability: float, generator: Generator) -> Tensor:
    factors = 1.0 + most * (2.0 * torch.rand((3, len(x)), generator=generator) - 1.0)
    chosen = torch.rand(len(x), generator=generator) < probability
    factors = torch.where(chosen, factors, torch.ones_like(factors)).to(x.device)
    brightness, contrast, saturation = (each[:, None, None, None] for each in factors)
    x = x * brightness
    x = contrast * x + (1.0 - contrast) * _grey(x).mean(dim=(-1, -2), keepdim=True)
    if x.shape[1] == 3:
        x = saturation * x + (1.0 - saturation) * _grey(x)
    return x.clamp(0.0, 1.0)


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] != 3:
        return x
    weights = torch.tensor(_LUMA, dtype=x.dtype, device=x.device)[:, None, None]
    return (x * weights).sum(dim=1, keepdim=True)
