"""Forecasters in plain torch: an encoder of the last steps, a small MLP, quantiles of the next steps that never cross.

What comes in is one flat row a window (see `Layout`), what comes out are offsets from the last known value in units of
the station's mean difference over so many steps. The last linear layer, `head`, is what Fed-GAME scores between nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

__all__ = ["CALENDAR", "VALUES", "ConvEncoder", "Forecaster", "GraphEncoder", "GruEncoder", "Layout", "quantile_loss"]

VALUES = 2
"""Channels made of the series itself: in units of its level, and relative to the last value."""
CALENDAR = 4
"""Channels of the local clock: sine and cosine of the hour of the day, and of the place in the week."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A flat row: `window` steps of `channels` numbers (values, calendar, covariates), then for each of `lags` what was
    seen so many steps before each target."""

    window: int
    channels: int
    lags: int
    horizon: int

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.window * self.channels + self.lags * self.horizon


class GruEncoder(nn.Module):
    """A gated recurrent unit over the window; what it holds at the end."""

    def __init__(self, channels: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(channels, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """[B, window, channels] to [B, hidden]."""
        state: Tensor = self.rnn(x)[1][-1]
        return state


class ConvEncoder(nn.Module):
    """Causal convolutions of width 3 with doubling dilation and short cuts (temporal convolution, Bai et al. 2018)."""

    def __init__(self, channels: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, hidden)
        self.convolutions = nn.ModuleList(nn.Conv1d(hidden, hidden, 3, dilation=2**i) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """[B, window, channels] to [B, hidden]."""
        y = self.first(x).transpose(1, 2)
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            reach = 2 * convolution.dilation[0]
            y = y + F.relu(convolution(F.pad(y, (reach, 0))))
        last: Tensor = y[:, :, -1]
        return last


class GraphEncoder(nn.Module):
    """A graph-convolutional recurrent unit (GCRN, Seo et al. 2018) over a station and its neighbours.

    The last `neighbours` channels are the neighbours' series; the graph is the star of the station in the middle. Gates
    see each node's input and state, and the mean of those of its neighbours.
    """

    def __init__(self, channels: int, hidden: int, neighbours: int) -> None:
        super().__init__()
        self.neighbours, self.hidden = neighbours, hidden
        self.own = channels - neighbours
        self.gates = nn.Linear(2 * (self.own + hidden), 2 * hidden)
        self.candidate = nn.Linear(2 * (self.own + hidden), hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, window, channels] to [B, hidden]."""
        rows, steps, _ = x.shape
        own, others = x[..., : self.own], x[..., self.own :]
        # A neighbour has its own series in the place of the station's, and the same clock.
        theirs = own[:, :, None, :].repeat(1, 1, self.neighbours, 1)
        theirs[..., 0] = others
        theirs[..., 1] = others - others[:, -1:, :]
        nodes = torch.cat([own[:, :, None, :], theirs], dim=2)
        state = x.new_zeros(rows, 1 + self.neighbours, self.hidden)
        for step in range(steps):
            now = nodes[:, step]
            seen = _with_neighbours(torch.cat([now, state], dim=2))
            reset, update = torch.sigmoid(self.gates(seen)).chunk(2, dim=2)
            new = torch.tanh(self.candidate(_with_neighbours(torch.cat([now, reset * state], dim=2))))
            state = update * state + (1.0 - update) * new
        middle: Tensor = state[:, 0]
        return middle


def _with_neighbours(x: Tensor) -> Tensor:
    """[B, 1 + K, C] to [B, 1 + K, 2 C]: each node's numbers and the mean of its neighbours' in the star."""
    around = torch.cat([x[:, 1:].mean(dim=1, keepdim=True), x[:, :1].expand(-1, x.shape[1] - 1, -1)], dim=1)
    return torch.cat([x, around], dim=2)


class Forecaster(nn.Module):
    """Encoder, hidden layer, and `head`, the last linear layer.

    Quantiles grow outwards from the middle one by softplus, so that they ascend whatever the weights.
    """

    def __init__(self, encoder: nn.Module, *, layout: Layout, encoded: int, width: int, quantiles: int) -> None:
        super().__init__()
        self._layout, self._quantiles, self._middle = layout, quantiles, quantiles // 2
        self.encoder = encoder
        self.hidden = nn.Linear(encoded + layout.lags * layout.horizon, width)
        self.head = nn.Linear(width, layout.horizon * quantiles)
        # At first: the last value stays, and the outermost quantiles are two mean differences away.
        apart = 2.0 / max(1, self._middle)
        with torch.no_grad():
            self.head.weight.mul_(0.1)
            bias = torch.full((quantiles,), math.log(math.expm1(apart)))
            bias[self._middle] = 0.0
            self.head.bias.copy_(bias.repeat(layout.horizon))

    def forward(self, x: Tensor) -> Tensor:
        """Offsets [B, horizon, quantiles], ascending in the last axis, of flat rows [B, layout.width]."""
        layout = self._layout
        cut = layout.window * layout.channels
        encoded = self.encoder(x[:, :cut].reshape(-1, layout.window, layout.channels))
        raw = self.head(F.relu(self.hidden(torch.cat([encoded, x[:, cut:]], dim=1))))
        raw = raw.reshape(-1, layout.horizon, self._quantiles)
        middle = raw[..., self._middle : self._middle + 1]
        above = middle + F.softplus(raw[..., self._middle + 1 :]).cumsum(dim=2)
        below = middle - F.softplus(raw[..., : self._middle]).flip(2).cumsum(dim=2).flip(2)
        return torch.cat([below, middle, above], dim=2)


def quantile_loss(offsets: Tensor, target: Tensor, quantiles: Tensor) -> Tensor:
    """The mean pinball loss, a scalar: offsets [B, H, Q], target [B, H], quantiles [Q]."""
    error = target[:, :, None] - offsets
    return torch.maximum(quantiles * error, (quantiles - 1.0) * error).mean()
