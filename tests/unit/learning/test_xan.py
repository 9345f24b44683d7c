"""XAN against torch's own norm layers, against arrays worked out by hand, and in any network."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hanse.errors import OperatorError
from hanse.learning.xan import XAN, assemble_xan, batch_statistics, instance_only, mixing_weights, xan_layers

FAR = 60.0  # a score difference whose softmax is exactly (1, 0) in float32


def images(seed: int, *, batch: int = 5, channels: int = 3, side: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn((batch, channels, side, side), generator=generator) + 1.0


def randomised(layer: XAN, seed: int = 0) -> XAN:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for norm in (layer.batchnorm, layer.instancenorm):
            norm.weight.copy_(1 + torch.rand(3, generator=generator))
            norm.bias.copy_(torch.randn(3, generator=generator))
    return layer


def branches(layer: XAN) -> tuple[nn.BatchNorm2d, nn.InstanceNorm2d]:
    batch, instance = nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True)
    batch.load_state_dict(layer.batchnorm.state_dict())
    instance.load_state_dict(layer.instancenorm.state_dict())
    return batch, instance


def test_an_array_worked_out_by_hand() -> None:
    # Two images of one channel, 0 2 and 4 6 (two pixels each). BN in training: mean 3, variance 5. IN: means 1 and 5,
    # variance 1. Scores 1 and 1: the mean of both.
    x = torch.tensor([[[[0.0, 2.0]]], [[[4.0, 6.0]]]])
    layer = XAN(1, eps=1e-12)
    batch = np.array([-3, -1, 1, 3]) / np.sqrt(5)
    instance = np.array([-1, 1, -1, 1])
    np.testing.assert_allclose(layer(x).detach().numpy().ravel(), (batch + instance) / 2, rtol=1e-6)
    # Running statistics by momentum 0.1; the variance is the unbiased one, 20 / 3.
    assert layer.batchnorm.running_mean.tolist() == pytest.approx([0.3])
    assert layer.batchnorm.running_var.tolist() == pytest.approx([0.9 + 0.1 * 20 / 3])
    with torch.no_grad():
        layer.score_batchnorm.fill_(np.log(3.0))
        layer.score_instancenorm.fill_(0.0)
    np.testing.assert_allclose(layer(x).detach().numpy().ravel(), 0.75 * batch + 0.25 * instance, rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_a_mixture_forced_to_one_branch_is_that_norm_layer(seed: int) -> None:
    layer = randomised(XAN(3), seed)
    batch, instance = branches(layer)
    with torch.no_grad():
        layer.score_batchnorm.fill_(FAR)
        layer.score_instancenorm.fill_(-FAR)
    for step in range(2):
        x = images(seed + step)
        assert torch.equal(layer(x), batch(x))
    assert torch.equal(layer.batchnorm.running_mean, batch.running_mean)
    assert torch.equal(layer.batchnorm.running_var, batch.running_var)
    assert torch.equal(layer.eval()(x), batch.eval()(x))
    with torch.no_grad():
        layer.score_batchnorm.fill_(-FAR)
        layer.score_instancenorm.fill_(FAR)
    assert torch.equal(layer(x), instance(x))
    assert torch.equal(layer.train()(x), instance(x))


def test_weights_sum_to_one_and_begin_at_one_half_each() -> None:
    layer = randomised(XAN(3))
    x = images(3)
    batch, instance = branches(layer)
    assert torch.equal(layer(x), 0.5 * batch(x) + 0.5 * instance(x))
    with torch.no_grad():
        layer.score_batchnorm.fill_(0.3)
        layer.score_instancenorm.fill_(-1.1)
    assert float(layer.weights.sum().detach()) == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("name", ["score_batchnorm", "score_instancenorm"])
def test_the_gradient_of_a_score_is_that_of_finite_differences(name: str) -> None:
    layer = randomised(XAN(3)).double().eval()
    x, target = images(4).double(), images(5).double()
    score = getattr(layer, name)

    def loss() -> torch.Tensor:
        return ((layer(x) - target) ** 2).mean()

    loss().backward()
    step = 1e-5
    with torch.no_grad():
        score += step
        above = float(loss())
        score -= 2 * step
        below = float(loss())
    assert float(score.grad) == pytest.approx((above - below) / (2 * step), rel=1e-6)
    assert abs(float(score.grad)) > 1e-3


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 4.0), st.floats(-3.0, 3.0), st.integers(0, 1000))
def test_contrast_and_brightness_of_an_image_do_not_reach_the_instance_branch(
    contrast: float, brightness: float, seed: int
) -> None:
    layer = randomised(XAN(3), seed).eval()
    x = images(seed, side=8)
    changed = contrast * x + brightness
    with instance_only(layer):
        torch.testing.assert_close(layer(changed), layer(x), rtol=1e-3, atol=1e-3)
    layer.forced = "batch"
    if abs(contrast - 1) > 0.1 or abs(brightness) > 0.1:
        assert float((layer(changed) - layer(x)).abs().max().detach()) > 0.05


def test_a_map_of_one_pixel_is_batch_normalised_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    layer = randomised(XAN(3))
    batch, _ = branches(layer)
    x = images(6, side=1)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(layer(x), batch(x))
        assert torch.equal(layer.eval()(x), batch.eval()(x))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "batch normalisation alone" in caplog.text


def test_batch_statistics_are_those_of_the_batch_and_leave_the_running_ones_alone() -> None:
    layer = randomised(XAN(3)).eval()
    x = images(7)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    expected = branches(layer)
    with batch_statistics(layer):
        shown = layer(x)
    assert torch.equal(shown, 0.5 * expected[0].train()(x) + 0.5 * expected[1](x))
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    assert not layer.batchnorm.training
    assert layer.batchnorm.track_running_stats


# ---- in any network


def network() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4, eps=1e-3, momentum=0.2), nn.ReLU())
    body = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6))
    model = nn.Sequential()
    model.add_module("stem", stem)
    model.add_module("body", body)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.uniform_(layer.bias)
            nn.init.uniform_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    return model


def test_every_batch_normalisation_is_replaced_and_keeps_what_it_learnt() -> None:
    model = network()
    old = {name: value.clone() for name, value in model.state_dict().items()}
    x = images(8, channels=2)
    before = model.eval()(x)
    assert assemble_xan(model) is model
    assert list(xan_layers(model)) == ["stem.1", "body.1"]
    new = model.state_dict()
    for entry in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(new[f"stem.1.batchnorm.{entry}"], old[f"stem.1.{entry}"])
    assert torch.equal(new["body.1.instancenorm.weight"], old["body.1.weight"])
    stem = xan_layers(model)["stem.1"]
    assert (stem.batchnorm.eps, stem.batchnorm.momentum, stem.instancenorm.eps) == (1e-3, 0.2, 1e-3)
    for layer in xan_layers(model).values():
        layer.forced = "batch"
    assert torch.equal(model.eval()(x), before)
    assert len(xan_layers(assemble_xan_again(model))) == 2


def assemble_xan_again(model: nn.Module) -> nn.Module:
    """The BN inside XAN is no layer to be replaced."""
    with pytest.raises(OperatorError, match="no BatchNorm2d"):
        assemble_xan(model)
    return model


def test_stages_scores_and_affine_are_options() -> None:
    model = assemble_xan(network(), stages=["body"], init_scores=(4.0, 0.0), copy_affine="batch_only")
    assert list(xan_layers(model)) == ["body.1"]
    assert isinstance(model.get_submodule("stem.1"), nn.BatchNorm2d)
    assert mixing_weights(model)["body.1"] == pytest.approx(1 / (1 + np.exp(-4)))
    assert xan_layers(model)["body.1"].instancenorm.weight.tolist() == [1.0] * 6
    assert xan_layers(assemble_xan(network(), copy_affine="neither"))["body.1"].batchnorm.bias.tolist() == [0.0] * 6
    with pytest.raises(OperatorError, match="stage 'tail'"):
        assemble_xan(network(), stages=["tail"])
