"""What a server makes of the mean difference: the step of the global model, as pure functions over arrays.

`none` is federated averaging with a server learning rate (McMahan et al., AISTATS 2017), `momentum` is FedAvgM (Hsu,
Qi, Brown, arXiv 1909.06335), `adam` and `yogi` are FedAdam and FedYogi (Reddi et al., ICLR 2021, algorithm 2; without
bias correction, as there). Moments are float32 arrays of the model's shapes; they are the optimiser's whole state.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hanse.learning.arrays import Float32, Float64

Optimiser = Literal["none", "momentum", "adam", "yogi"]

MOMENTS: dict[Optimiser, tuple[str, ...]] = {
    "none": (),
    "momentum": ("m",),
    "adam": ("m", "v"),
    "yogi": ("m", "v"),
}
"""The names of each optimiser's moments."""


class ServerOptions(BaseModel):
    """The server's optimiser and its parameters; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimiser: Optimiser = "none"
    """`none`: add the mean difference; `momentum`: FedAvgM; `adam`: FedAdam; `yogi`: FedYogi."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Of the server; 1 for `none` and `momentum`, 0.01 for `adam` and `yogi` when left out."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment (the momentum of FedAvgM)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the second moment."""
    tau: Annotated[float, Field(gt=0)] = 1e-3
    """Adaptivity of FedAdam and FedYogi: added to the root of the second moment, which begins at its square."""

    @property
    def rate(self) -> float:
        """The learning rate in force."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.01 if self.optimiser in ("adam", "yogi") else 1.0

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of the moments."""
        return MOMENTS[self.optimiser]

    def fresh_moment(self, name: str, shape: tuple[int, ...]) -> Float32:
        """A moment before the first step."""
        return np.full(shape, self.tau**2 if name == "v" else 0.0, dtype=np.float32)


def step(options: ServerOptions, values: Float64, mean: Float64, *moments: Float32) -> Float64:
    """New values after one step.

    Args:
        options: which optimiser.
        values: the model's numbers [n].
        mean: the mean difference over the nodes [n]; it is overwritten.
        moments: as `options.moments` names them, each [n]; they are overwritten with their next state.
    """
    if options.optimiser == "none":
        return _added(values, mean, options.rate)
    first = moments[0]
    if options.optimiser == "momentum":
        momentum = options.beta1 * first.astype(np.float64)
        momentum += mean
        first[:] = momentum
        return _added(values, momentum, options.rate)
    momentum = options.beta1 * first.astype(np.float64)
    momentum += (1.0 - options.beta1) * mean
    second = moments[1].astype(np.float64)
    square = np.square(mean, out=mean)
    if options.optimiser == "adam":
        second *= options.beta2
        second += (1.0 - options.beta2) * square
    else:
        second -= (1.0 - options.beta2) * square * np.sign(second - square)
    first[:], moments[1][:] = momentum, second
    momentum /= np.sqrt(second) + options.tau
    return _added(values, momentum, options.rate)


def _added(values: Float64, change: Float64, rate: float) -> Float64:
    if rate != 1.0:
        np.multiply(change, rate, out=change)
    return np.add(values, change, out=change)
