"""ResNet-18 and ResNet-50 (He et al., CVPR 2016) in plain torch.

The names and shapes of the state are torchvision's (of which this shares no code), so that its pretrained weights
load. The stride of a bottleneck is in its 3 x 3 convolution, as there. `stem: small` leaves out what shrinks small
images (28 or 32 pixels) to nothing: the first stride and the pooling; names stay, the first kernel is 3 x 3.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

__all__ = ["BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet50"]

Stem = Literal["large", "small"]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a short cut."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, maps: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, maps, 3, stride=stride, padding=1, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.bn2: nn.Module = nn.BatchNorm2d(maps)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, maps, H / stride, W / stride]."""
        short: Tensor = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + short)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a short cut; four times as many maps come out."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, maps: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, maps, 1, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, stride=stride, padding=1, bias=False)
        self.bn2: nn.Module = nn.BatchNorm2d(maps)
        self.conv3 = nn.Conv2d(maps, 4 * maps, 1, bias=False)
        self.bn3: nn.Module = nn.BatchNorm2d(4 * maps)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, 4 * maps, H / stride, W / stride]."""
        short: Tensor = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + short)


class ResNet(nn.Module):
    """A residual network of four stages, whose first has `width` maps (64 in the paper)."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        classes: int,
        channels: int = 3,
        width: int = 64,
        stem: Stem = "large",
    ) -> None:
        super().__init__()
        kernel, stride = (7, 2) if stem == "large" else (3, 1)
        self._pooled = stem == "large"
        self.conv1 = nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(width)
        inputs = width
        for i, depth in enumerate(depths):
            maps = width * 2**i
            stage = _stage(block, inputs, maps, depth, stride=1 if i == 0 else 2)
            self.add_module(f"layer{i + 1}", stage)
            inputs = maps * block.expansion
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """What the classifier sees: [B, 8 * width * expansion]."""
        x = F.relu(self.bn1(self.conv1(x)))
        if self._pooled:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for i in range(1, 5):
            x = self.get_submodule(f"layer{i}")(x)
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores [B, classes] of images [B, channels, H, W]."""
        scores: Tensor = self.fc(self.features(x))
        return scores


def resnet18(*, classes: int, channels: int = 3, width: int = 64, stem: Stem = "large") -> ResNet:
    """20 norm layers; 11.7 million parameters with 1,000 classes."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=classes, channels=channels, width=width, stem=stem)


def resnet50(*, classes: int, channels: int = 3, width: int = 64, stem: Stem = "large") -> ResNet:
    """53 norm layers of 26,560 channels; 25.6 million parameters with 1,000 classes."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes, channels=channels, width=width, stem=stem)


def _stage(block: type[BasicBlock | Bottleneck], inputs: int, maps: int, depth: int, *, stride: int) -> nn.Sequential:
    outputs = maps * block.expansion
    downsample = None
    if stride != 1 or inputs != outputs:
        downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
    blocks = [block(inputs, maps, stride, downsample)]
    blocks += [block(outputs, maps, 1, None) for _ in range(1, depth)]
    return nn.Sequential(*blocks)
