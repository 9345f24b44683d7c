"""Forecasters as registered models (`hanse.models`): `gru_forecaster`, `conv_forecaster`, `gcrn_forecaster`.

A job names one under `model:` and configures it under `method_config.model`. torch is imported when a network is built,
not before. The last linear layer has the role `selective`; the whole head by option.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from hanse.learning.networks.building import initial_state, no_torch
from hanse.models import Role
from hanse.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from hanse.learning.forecaster import Layout

__all__ = [
    "ConvForecaster",
    "ForecasterConfig",
    "ForecasterModel",
    "GcrnForecaster",
    "GcrnForecasterConfig",
    "GruForecaster",
]


class ForecasterConfig(Settings):
    """`method_config.model` of a forecaster. The defaults are the method's (methods: 2 layers of 128)."""

    window: int = Field(12, ge=2, le=2016)
    """Steps of the past that the encoder sees."""
    horizon: int = Field(6, ge=1, le=288)
    """Steps that are forecast."""
    quantiles: tuple[float, ...] = (0.05, 0.5, 0.95)
    """Ascending, an odd number of them: the middle one is what the others are measured from."""
    lags: tuple[int, ...] = (24,)
    """Also shown: what was seen so many steps before each target. 24: the same hour yesterday, in hourly data."""
    hidden: int = Field(128, ge=1, le=4096)
    """Width of the encoder."""
    layers: int = Field(2, ge=1, le=16)
    """Layers of the encoder."""
    head_width: int = Field(16, ge=1, le=4096)
    """Width of the layer before the last."""
    step_minutes: int = Field(60, ge=5, le=60)
    """The step that the series of all nodes have."""
    covariates: tuple[str, ...] = ()
    """Further columns of the nodes' series that the encoder sees (price, weather), known up to the origin."""
    selective: Literal["last_layer", "head"] = "last_layer"
    """What Fed-GAME scores between nodes: the last linear layer, or the whole MLP head."""
    scaling: Literal["differences", "level"] = "differences"
    """Offsets, and with them the loss, are in units of the station's mean difference over so many steps, or of its
    level."""
    nonnegative: bool = True
    """Demand is never below zero: forecasts are cut there."""

    @model_validator(mode="after")
    def _fits(self) -> ForecasterConfig:
        given = self.quantiles
        if len(given) % 2 == 0 or list(given) != sorted(set(given)) or given[0] <= 0 or given[-1] >= 1:
            raise ValueError("quantiles must be an odd number of ascending numbers between 0 and 1")
        if any(lag < self.horizon for lag in self.lags):
            raise ValueError("every lag must be at least the horizon: what is shown must be known at the origin")
        if 60 % self.step_minutes:
            raise ValueError("step_minutes must divide an hour")
        if len(set(self.covariates)) != len(self.covariates):
            raise ValueError("covariates lists a name twice")
        return self


class ForecasterModel(ABC):
    """A forecaster of one kind. See `hanse.models.Model`."""

    Config: ClassVar[type[BaseModel]] = ForecasterConfig

    def __init__(self, config: ForecasterConfig) -> None:
        self.config = config

    @property
    def layout(self) -> Layout:
        """What a row of inputs is made of."""
        from hanse.learning.forecaster import CALENDAR, VALUES, Layout

        config = self.config
        return Layout(
            window=config.window,
            channels=VALUES + CALENDAR + len(config.covariates),
            lags=len(config.lags),
            horizon=config.horizon,
        )

    def build(self) -> nn.Module:
        """The network, with weights from torch's generator."""
        from hanse.learning.forecaster import Forecaster

        config, layout = self.config, self.layout
        return Forecaster(
            self.encoder(layout.channels),
            layout=layout,
            encoded=config.hidden,
            width=config.head_width,
            quantiles=len(config.quantiles),
        )

    @abstractmethod
    def encoder(self, channels: int) -> nn.Module:
        """The encoder of this kind."""

    def initial_state(self, seed: int) -> Mapping[str, NDArray[Any]]:
        """The whole state before training; see `building.initial_state`."""
        return initial_state(self.build, seed)

    def roles(self) -> Mapping[str, Role]:
        """`selective` for the head, `global` for the rest."""
        try:
            import torch
        except ImportError as error:
            raise no_torch(error) from error
        with torch.device("meta"):
            names = list(self.build().state_dict())
        starts = ("head.", "hidden.") if self.config.selective == "head" else ("head.",)
        return {name: Role.SELECTIVE if name.startswith(starts) else Role.GLOBAL for name in names}


class GruForecaster(ForecasterModel):
    """A gated recurrent unit."""

    def encoder(self, channels: int) -> nn.Module:
        """See `GruEncoder`."""
        from hanse.learning.forecaster import GruEncoder

        return GruEncoder(channels, self.config.hidden, self.config.layers)


class ConvForecaster(ForecasterModel):
    """Temporal convolutions."""

    def encoder(self, channels: int) -> nn.Module:
        """See `ConvEncoder`."""
        from hanse.learning.forecaster import ConvEncoder

        return ConvEncoder(channels, self.config.hidden, self.config.layers)


class GcrnForecasterConfig(ForecasterConfig):
    """A graph-convolutional recurrent forecaster: its covariates are the neighbours' series."""

    layers: Literal[1] = 1
    """One layer."""

    @model_validator(mode="after")
    def _has_neighbours(self) -> GcrnForecasterConfig:
        if not self.covariates:
            raise ValueError("covariates must name the columns that hold the neighbours' series")
        return self


class GcrnForecaster(ForecasterModel):
    """A baseline: it needs the neighbours' series at each node, which a federation of strangers does not have."""

    Config: ClassVar[type[BaseModel]] = GcrnForecasterConfig

    def encoder(self, channels: int) -> nn.Module:
        """See `GraphEncoder`."""
        from hanse.learning.forecaster import GraphEncoder

        return GraphEncoder(channels, self.config.hidden, len(self.config.covariates))
