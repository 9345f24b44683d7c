"""A node's series as a task of a forecaster: windows as tensors, and the figures of its forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Generator, Tensor, nn

from hanse.errors import MethodError, SiteError
from hanse.learning.arrays import Float64, Int64
from hanse.learning.forecaster import quantile_loss
from hanse.learning.forecaster_models import ForecasterConfig, ForecasterModel
from hanse.learning.local_training import Loss
from hanse.learning.quantiles import nominal_coverage, score_quantiles
from hanse.learning.series import Series, check_series
from hanse.learning.series_windows import SeriesWindows, WindowShape
from hanse.learning.training_options import TrainingOptions, UnseenReadOut
from hanse.payload.kinds import MetricSum, RatioSum

ORIGINAL_FRACTION_BITS = 12
"""Figures in the series' own unit may be large (Wh, of a whole city): coarser steps, more room."""
MOST_IN_MEMORY = 16_000_000
"""Windows of a node stay in memory up to so many bytes; beyond it they are made anew for each batch."""


class ForecastTask:
    """Series as a task of a forecaster. See `hanse_agent.learners.networks.NodeTask`.

    `validation`: rows that epochs are chosen by; never trained on.
    """

    def __init__(
        self, group: Sequence[Series], model: ForecasterModel, options: TrainingOptions, device: torch.device
    ) -> None:
        config: ForecasterConfig = model.config
        minimum = max([config.window, *config.lags]) + config.horizon + 2
        for series in group:
            if series.step_minutes != config.step_minutes:
                raise SiteError(
                    f"The series of station '{series.name}' has steps of {series.step_minutes} minutes; the job's have "
                    f"{config.step_minutes}.",
                    code="WRONG_STEP",
                    remedy="Set 'step' of the dataset in agent.yaml to the job's, or take the node out.",
                )
            check_series(series, minimum=minimum)
        self.config = config
        self._device, self._batch = device, options.evaluation_batch_size
        self.windows = SeriesWindows(group, window_shape(config), validation=options.personal.validation)
        self.training: Int64 = self.windows.training
        self.validation: Int64 = self.windows.validation
        self.held_out: Int64 = self.windows.held_out
        # An unseen node is judged by the same rows as any other: it adapts on the rest.
        self.everything: Int64 = self.windows.held_out
        if len(self.training) < 2:
            raise SiteError(
                f"Station '{group[0].name}' has {len(self.training)} whole windows to train on; at least 2 are needed.",
                code="SERIES_TOO_SHORT",
                remedy="Wait for a longer history, or fill the gaps of the series.",
            )
        rows = len(self.training) + len(self.validation) + len(self.held_out)
        self._fits_in_memory = 4 * rows * (model.layout.width + config.horizon) <= MOST_IN_MEMORY
        self._kept: tuple[Int64, Tensor, Tensor] | None = None
        self._quantiles = torch.tensor(config.quantiles, dtype=torch.float32, device=device)

    def batch(self, rows: Int64, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Flat inputs float32 [B, width] and target offsets float32 [B, horizon]; nothing is changed at random."""
        if self._kept is None and self._fits_in_memory:
            self._kept = self._all_windows()
        if self._kept is None:
            inputs, targets = self.windows.inputs(rows), self.windows.targets(rows)
            return torch.from_numpy(inputs).to(self._device), torch.from_numpy(targets).to(self._device)
        place, inputs_kept, targets_kept = self._kept
        chosen = torch.from_numpy(place[rows]).to(self._device)
        return inputs_kept[chosen], targets_kept[chosen]

    def _all_windows(self) -> tuple[Int64, Tensor, Tensor]:
        """Where each row is, and all inputs and targets."""
        rows = np.concatenate([self.training, self.validation, self.held_out])
        place = np.full(int(rows.max()) + 1, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        inputs = torch.from_numpy(self.windows.inputs(rows)).to(self._device)
        return place, inputs, torch.from_numpy(self.windows.targets(rows)).to(self._device)

    def objective(self, network: nn.Module) -> Loss:
        """The pinball loss of the offsets, which are in units of the station's scale already."""
        return lambda inputs, targets: quantile_loss(network(inputs), targets, self._quantiles)

    def loss_on(self, network: nn.Module, rows: Int64) -> float:
        """The mean loss on rows; nothing is learned."""
        network.eval()
        total = 0.0
        with torch.no_grad():
            for part in _parts(rows, self._batch):
                inputs, targets = self.batch(part, None)
                total += float(quantile_loss(network(inputs), targets, self._quantiles)) * len(part)
        return total / len(rows) if len(rows) else float("nan")

    def forecast(self, network: nn.Module, rows: Int64) -> Float64:
        """Forecasts [rows, horizon, Q] in units of each row's level."""
        network.eval()
        parts = []
        with torch.no_grad():
            for part in _parts(rows, self._batch):
                offsets = network(torch.from_numpy(self.windows.inputs(part)).to(self._device)).cpu().numpy()
                parts.append(self.windows.absolute(part, offsets, nonnegative=self.config.nonnegative))
        empty = np.empty((0, self.config.horizon, len(self.config.quantiles)))
        return np.concatenate(parts) if parts else empty

    def evaluate(
        self, network: nn.Module, rows: Int64, reading: UnseenReadOut | None, progress: Callable[[float, str], None]
    ) -> dict[str, MetricSum]:
        """QS, ICP, MIL and the coverage of each quantile, over windows."""
        if reading not in (None, "average"):
            raise MethodError(
                f"The reading '{reading}' is for models with batch normalisation.",
                remedy="Leave unseen_bn and training.also_read out of method_config: forecasters have none.",
                code="WRONG_READING",
            )
        progress(0.5, "evaluating")
        return self.figures(self.forecast(network, rows), rows)

    def evaluate_ensemble(self, networks: list[Callable[[], nn.Module]], rows: Int64) -> dict[str, MetricSum]:
        """The same of the mean of several forecasts; means of ascending quantiles ascend."""
        total = sum((self.forecast(make(), rows) for make in networks[1:]), self.forecast(networks[0](), rows))
        return self.figures(total / len(networks), rows)

    def figures(self, forecast: Float64, rows: Int64) -> dict[str, MetricSum]:
        """The figures of forecasts [rows, horizon, Q] in units of the level."""
        quantiles = self.config.quantiles
        scores = score_quantiles(self.windows.truth(rows), forecast, quantiles)
        levels = self.windows.levels(rows)
        covered = float(scores.icp.mean()) if len(rows) else 0.0
        gap = np.full(min(len(rows), 1), 100.0 * abs(covered - nominal_coverage(quantiles)))
        figures: dict[str, MetricSum] = {
            "qs": RatioSum.of(scores.qs),
            "icp": RatioSum.of(100.0 * scores.icp, ORIGINAL_FRACTION_BITS),
            "icp_gap": RatioSum.of(gap, ORIGINAL_FRACTION_BITS),
            "mil": RatioSum.of(scores.mil),
            "qs_original": RatioSum.of(scores.qs * levels, ORIGINAL_FRACTION_BITS),
            "mil_original": RatioSum.of(scores.mil * levels, ORIGINAL_FRACTION_BITS),
        }
        for place, quantile in enumerate(quantiles):
            figures[f"coverage_{100 * quantile:02g}".replace(".", "_")] = RatioSum.of(scores.below[:, place])
        return figures


def window_shape(config: ForecasterConfig) -> WindowShape:
    """The windows that a forecaster sees."""
    return WindowShape(
        window=config.window,
        horizon=config.horizon,
        lags=config.lags,
        covariates=config.covariates,
        in_steps=config.scaling == "differences",
    )


def _parts(rows: Int64, size: int) -> list[Int64]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
