"""A small convolutional network for small images: three convolutions and one linear layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

__all__ = ["SmallCNN"]


class SmallCNN(nn.Module):
    """Three blocks of convolution, norm and ReLU with `width`, 2 and 4 times `width` maps, then `fc`.

    Images [B, channels, S, S], S at least 8; features [B, 16 * width]: the maps averaged over a 2 x 2 grid.
    """

    def __init__(self, *, classes: int, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.bn2: nn.Module = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=False)
        self.bn3: nn.Module = nn.BatchNorm2d(4 * width)
        self.fc = nn.Linear(16 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        """What the classifier sees: [B, 16 * width]."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.bn3(self.conv3(x)))
        return torch.flatten(F.adaptive_avg_pool2d(x, 2), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores [B, classes]."""
        scores: Tensor = self.fc(self.features(x))
        return scores
