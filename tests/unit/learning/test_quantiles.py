"""Quantile scores and forecasts: against scikit-learn, and whatever the weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_pinball_loss

from hanse.learning.quantiles import nominal_coverage, pinball, score_quantiles

torch = pytest.importorskip("torch")

from hanse.errors import OperatorError  # noqa: E402
from hanse.learning.forecaster import quantile_loss  # noqa: E402
from hanse.models import Role, load_model  # noqa: E402

QUANTILES = (0.05, 0.5, 0.95)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 30), steps=st.integers(1, 6))
def test_the_loss_is_that_of_scikit_learn_in_numpy_and_in_torch(seed: int, rows: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    truth, forecast = rng.normal(size=(rows, steps)), rng.normal(size=(rows, steps, 3))
    wanted = np.mean(
        [mean_pinball_loss(truth.ravel(), forecast[:, :, i].ravel(), alpha=q) for i, q in enumerate(QUANTILES)]
    )
    assert np.isclose(pinball(truth, forecast, QUANTILES).mean(), wanted)
    loss = quantile_loss(torch.tensor(forecast), torch.tensor(truth), torch.tensor(QUANTILES, dtype=torch.float64))
    assert np.isclose(float(loss), wanted)


def test_the_scores_by_hand() -> None:
    truth = np.array([[1.0, 2.0]])
    forecast = np.array([[[0.0, 1.0, 2.0], [2.004, 3.0, 4.0]]])
    scores = score_quantiles(truth, forecast, QUANTILES)
    assert scores.icp.tolist() == [1.0]  # 2 is below 2.004 by less than 0.005: it touches
    assert np.isclose(scores.mil[0], (2.0 + 1.996) / 2)
    losses = [0.05 * 1, 0, 0.05 * 1, 0.95 * 0.004, 0.5 * 1, 0.05 * 2]
    assert np.isclose(scores.qs[0], np.mean(losses))
    assert scores.below.tolist() == [[0.5, 1.0, 1.0]]
    assert np.isclose(nominal_coverage(QUANTILES), 0.9)


@pytest.mark.parametrize("name", ["gru_forecaster", "conv_forecaster", "gcrn_forecaster"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.floats(0.1, 50))
def test_quantiles_never_cross_whatever_the_weights(name: str, seed: int, size: float) -> None:
    config = {"hidden": 4, "layers": 1, "head_width": 4, "horizon": 3, "quantiles": [0.05, 0.25, 0.5, 0.75, 0.95]}
    config["covariates"] = ["a", "b"]
    model = load_model(name, config)
    network = model.build()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    rows = torch.randn(7, model.layout.width, generator=generator)
    offsets = network(rows)
    assert offsets.shape == (7, 3, 5)
    assert bool((offsets.diff(dim=2) >= 0).all())


@pytest.mark.parametrize("name", ["gru_forecaster", "conv_forecaster"])
def test_the_last_layer_is_selective_and_the_whole_head_by_option(name: str) -> None:
    plain = load_model(name, {"hidden": 4, "layers": 1})
    roles = plain.roles()
    assert set(roles) == set(plain.initial_state(0))
    assert {key for key, role in roles.items() if role is Role.SELECTIVE} == {"head.weight", "head.bias"}
    whole = load_model(name, {"hidden": 4, "layers": 1, "selective": "head"}).roles()
    chosen = {key for key, role in whole.items() if role is Role.SELECTIVE}
    assert chosen == {"head.weight", "head.bias", "hidden.weight", "hidden.bias"}
    first, again = plain.initial_state(3), plain.initial_state(3)
    assert all(np.array_equal(array, again[key]) for key, array in first.items())


def test_the_default_forecaster_has_the_size_of_the_method() -> None:
    """The selective part is half a per mille to two of an exchange (methods 2.7)."""
    for horizon, share in ((3, 0.050), (6, 0.100), (12, 0.199)):
        state = load_model("gru_forecaster", {"horizon": horizon}).initial_state(0)
        head = sum(array.size for name, array in state.items() if name.startswith("head."))
        everything = sum(array.size for array in state.values())
        assert round(100 * head / (2 * everything), 3) == pytest.approx(share, abs=0.0015)


@pytest.mark.parametrize(
    "config",
    [{"quantiles": [0.1, 0.9]}, {"quantiles": [0.5, 0.1, 0.9]}, {"lags": [3]}, {"step_minutes": 7}, {"horizonn": 3}],
)
def test_a_configuration_that_makes_no_sense_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(OperatorError, match="gru_forecaster"):
        load_model("gru_forecaster", config)
