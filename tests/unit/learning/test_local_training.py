"""One round at one node: steps worked out by hand, a guide that stands still, and the same bits for the same seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from hanse.errors import MethodError, SiteError
from hanse.learning.classification import guided_loss, log_losses, probabilities
from hanse.learning.local_training import derived_seed, row_batches, train
from hanse.learning.networks.small_cnn import SmallCNN
from hanse.learning.training_options import TrainingOptions
from tests.unit.learning.repeatable import trained

ROWS = np.arange(6)


class Line:
    """y = w x with squared error: the gradient of the mean is mean(2 x (w x - y))."""

    def __init__(self, x: list[float], y: list[float]) -> None:
        self.x, self.y = (torch.tensor(each, dtype=torch.float32)[:, None] for each in (x, y))
        self.seen: list[list[int]] = []

    def batch(self, rows: Any, generator: Generator | None) -> tuple[Tensor, Tensor]:
        self.seen.append(sorted(rows.tolist()))
        return self.x[rows], self.y[rows]

    def objective(self, network: nn.Module) -> Any:
        return lambda inputs, targets: F.mse_loss(network(inputs), targets)


def line(weight: float = 1.0) -> nn.Linear:
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, weight)
    return network


def options(**changes: Any) -> TrainingOptions:
    plain = {"momentum": 0.0, "weight_decay": 0.0, "batch_size": 2, "learning_rate": 0.1}
    return TrainingOptions.model_validate(plain | changes)


def fit(network: nn.Module, task: Any, rows: Any, told: TrainingOptions, **more: Any) -> Any:
    return train(network, task, rows, told, **{"rate": told.learning_rate, "seed": 1, "shared": {}, **more})


def test_a_step_worked_out_by_hand() -> None:
    network = line()
    # w = 1; rows (1, 3) and (2, 3): gradient mean(2*1*(1-3), 2*2*(2-3)) = (-4 - 4) / 2 = -4; w = 1 + 0.4.
    report = fit(network, Line([1, 2], [3, 3]), np.arange(2), options())
    assert network.weight.item() == pytest.approx(1.4)
    assert report.loss == pytest.approx((4 + 1) / 2)
    assert (report.steps, report.rows) == (1, 2)


def test_weight_decay_momentum_and_the_proximal_pull_add_up() -> None:
    network, told = line(), options(momentum=0.5, weight_decay=0.25, proximal=2.0)
    task = Line([1, 2], [3, 3])
    # The anchor lies at 0: proximal adds 2 * (1 - 0), decay 0.25 * 1. Step: 1 - 0.1 * (-4 + 2 + 0.25) = 1.175.
    first = fit(network, task, np.arange(2), told, shared={"weight": torch.zeros(1, 1)})
    assert network.weight.item() == pytest.approx(1.175)
    assert first.optimiser["weight/momentum_buffer"].item() == pytest.approx(-1.75)
    # The next round: gradient mean(2 (w-3), 4 (2w-3)) = 5 w - 9 = -3.125, pulls 2.35 and 0.29375, momentum -0.875.
    second = fit(network, task, np.arange(2), told, shared={"weight": torch.zeros(1, 1)}, optimiser=first.optimiser)
    buffer = -1.75 * 0.5 + (5 * 1.175 - 9 + 2 * 1.175 + 0.25 * 1.175)
    assert second.optimiser["weight/momentum_buffer"].item() == pytest.approx(buffer)
    assert network.weight.item() == pytest.approx(1.175 - 0.1 * buffer)


def test_a_round_at_rate_zero_moves_no_weight() -> None:
    network = line()
    fit(network, Line([1, 2], [3, 3]), np.arange(2), options(momentum=0.9), rate=0.0)
    assert network.weight.item() == 1.0


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9))
def test_pieces_of_a_batch_give_the_gradient_of_the_whole(batch: int, piece: int) -> None:
    x = np.linspace(0.1, 1, batch).tolist()
    whole, parts = line(), line()
    fit(whole, Line(x, x[::-1]), np.arange(batch), options(batch_size=batch))
    task = Line(x, x[::-1])
    fit(parts, task, np.arange(batch), options(batch_size=max(batch, piece), micro_batch_size=piece))
    assert parts.weight.item() == pytest.approx(whole.weight.item(), rel=1e-6)
    assert all(2 <= len(rows) <= max(piece, 3) for rows in task.seen)


def test_a_last_batch_of_one_row_is_left_out_and_one_row_alone_is_refused() -> None:
    batches = list(row_batches(np.arange(7), 3, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == [3, 3]
    assert [len(b) for b in row_batches(np.arange(8), 3, torch.Generator().manual_seed(0))] == [3, 3, 2]
    with pytest.raises(SiteError, match="1 rows to train on") as caught:
        fit(line(), Line([1], [1]), np.arange(1), options())
    assert caught.value.code == "TOO_FEW_ROWS"


def test_steps_can_be_limited_and_epochs_repeated() -> None:
    task = Line([0.1] * 6, [1] * 6)
    assert fit(line(), task, ROWS, options(local_epochs=3)).steps == 9
    assert fit(line(), task, ROWS, options(local_epochs=3, local_steps=4)).steps == 4


@pytest.mark.parametrize("broken", [{"learning_rate": 1e30, "local_epochs": 20}, {"learning_rate": 1e-3}])
def test_a_loss_that_is_not_finite_ends_the_round_with_a_reason(broken: dict[str, Any]) -> None:
    y = [3.0, float("nan")] if broken["learning_rate"] < 1 else [3.0, 3.0]
    with pytest.raises(MethodError, match="nothing was sent") as caught:
        fit(line(), Line([1, 2], y), np.arange(2), options(**broken))
    assert caught.value.code == "NON_FINITE_LOSS"
    assert "learning_rate" in caught.value.remedy


def test_gradients_are_clipped_to_a_norm() -> None:
    network = line()
    fit(network, Line([1, 2], [3, 3]), np.arange(2), options(clip_norm=0.5))
    assert network.weight.item() == pytest.approx(1.05)


def test_adam_goes_on_where_it_was() -> None:
    task, told = Line([1, 2], [3, 3]), options(optimiser="adam", momentum=0.9)
    whole, parts = line(), line()
    fit(whole, task, np.arange(2), options(optimiser="adam", momentum=0.9, local_epochs=2))
    first = fit(parts, task, np.arange(2), told)
    fit(parts, task, np.arange(2), told, optimiser=first.optimiser)
    assert parts.weight.item() == pytest.approx(whole.weight.item(), rel=1e-6)
    assert fit(line(), task, np.arange(2), options(optimiser="adam", keep_optimiser=False)).optimiser == {}


# ---- gPerXAN's guide


def classifier(seed: int = 0) -> SmallCNN:
    torch.manual_seed(seed)
    return SmallCNN(classes=3, width=2)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((6, 1, 8, 8), generator=generator), torch.randint(0, 3, (6,), generator=generator)


@pytest.mark.parametrize("guide", [0.0, 0.25, 0.5, 1.0])
def test_at_the_first_step_of_a_round_the_loss_is_one_plus_lambda_cross_entropies(guide: float) -> None:
    network = classifier()
    x, y = batch()
    loss = guided_loss(network, classifier="fc", guide=guide)(x, y)
    assert float(loss.detach()) == pytest.approx((1 + guide) * float(F.cross_entropy(network(x), y).detach()), rel=1e-6)


def test_the_guide_moves_the_features_alone_and_stands_still() -> None:
    network, plain = classifier(), classifier()
    x, y = batch()
    loss = guided_loss(network, classifier="fc", guide=0.5)
    frozen = [cell.cell_contents for cell in loss.__closure__ or () if isinstance(cell.cell_contents, nn.Linear)]
    guide = next(layer for layer in frozen if layer is not network.fc)
    before = guide.weight.clone()
    loss(x, y).backward()
    F.cross_entropy(plain(x), y).backward()
    assert torch.allclose(network.fc.weight.grad, plain.fc.weight.grad, rtol=1e-5)  # the own classifier: plain CE
    assert torch.allclose(network.conv1.weight.grad, 1.5 * plain.conv1.weight.grad, rtol=1e-3, atol=1e-7)
    assert guide.weight.grad is None
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    assert torch.equal(guide.weight, before)
    assert not torch.equal(network.fc.weight, before)


def test_without_lambda_gradients_are_those_of_cross_entropy() -> None:
    network, plain = classifier(), classifier()
    x, y = batch()
    guided_loss(network, classifier="fc", guide=0.0)(x, y).backward()
    F.cross_entropy(plain(x), y).backward()
    for mine, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_probabilities_come_in_equal_batches_and_losses_are_bounded() -> None:
    network = classifier()
    x, _ = batch()
    sizes: list[int] = []

    def rows(part: Any) -> Tensor:
        sizes.append(len(part))
        return x[part]

    found = probabilities(network, rows, np.arange(6), batch_size=5)
    assert sizes == [3, 3]
    np.testing.assert_allclose(found, torch.softmax(network.eval()(x).double(), 1).detach().numpy())
    assert log_losses(np.array([[1.0, 0.0]]), np.array([1])).tolist() == [100.0]
    with pytest.raises(MethodError, match="not finite"):
        log_losses(np.array([[np.nan, 0.0]]), np.array([0]))


# ---- repeatability


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = trained(5)
        assert trained(6) != here
    finally:
        torch.set_num_threads(before)
    command = [sys.executable, "-m", "tests.unit.learning.repeatable", "5"]
    other = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert other.stdout.strip() == here


def test_seeds_are_words_apart() -> None:
    assert derived_seed(1, "a", 2) == derived_seed(1, "a", 2)
    assert len({derived_seed(1, "a", 2), derived_seed(1, "a", 3), derived_seed(1, "a2"), derived_seed(1, "b", 2)}) == 4
    assert 0 <= derived_seed(0) < 2**63
