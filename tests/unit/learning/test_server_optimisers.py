"""Server optimisers against steps worked out by hand from the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from hanse.learning.server_optimisers import MOMENTS, ServerOptions, step


def stepped(options: ServerOptions, values: float, means: list[float]) -> tuple[float, list[float]]:
    """The value after steps with these mean differences, and the moments."""
    moments = [options.fresh_moment(name, (1,)) for name in options.moments]
    value = np.array([values])
    for mean in means:
        value = step(options, value, np.array([mean]), *moments)
    return float(value[0]), [float(moment[0]) for moment in moments]


def test_plain_averaging_adds_the_mean_times_the_rate():
    assert stepped(ServerOptions(), 1.0, [0.5, 0.25]) == (1.75, [])
    assert stepped(ServerOptions(learning_rate=0.5), 1.0, [0.5]) == (1.25, [])


def test_momentum_by_hand():
    # v = 0.5; w = 1.5; v = 0.5 * 0.5 + 1 = 1.25; w = 2.75
    assert stepped(ServerOptions(optimiser="momentum", beta1=0.5), 1.0, [0.5, 1.0]) == (2.75, [1.25])


def test_adam_by_hand():
    options = ServerOptions(optimiser="adam", beta1=0.5, beta2=0.75, tau=0.5, learning_rate=1.0)
    # m = 1; v = 0.75 * 0.25 + 0.25 * 4 = 1.1875; w = 1 / (sqrt(1.1875) + 0.5)
    value, moments = stepped(options, 0.0, [2.0])
    assert moments == [1.0, 1.1875]
    assert value == pytest.approx(1.0 / (1.1875**0.5 + 0.5), rel=1e-12)


def test_yogi_moves_its_second_moment_by_the_sign_of_the_difference():
    options = ServerOptions(optimiser="yogi", beta1=0.0, beta2=0.5, tau=2.0, learning_rate=1.0)
    # v = 4 - 0.5 * 1 * sign(4 - 1) = 3.5; then 3.5 - 0.5 * 16 * sign(3.5 - 16) = 11.5
    value, moments = stepped(options, 0.0, [1.0, 4.0])
    assert moments == [4.0, 11.5]
    assert value == pytest.approx(1 / (3.5**0.5 + 2) + 4 / (11.5**0.5 + 2), rel=1e-12)


@pytest.mark.parametrize("optimiser", sorted(MOMENTS))
def test_a_mean_of_nothing_leaves_a_fresh_model_where_it_is(optimiser):
    assert stepped(ServerOptions(optimiser=optimiser), 3.25, [0.0])[0] == 3.25


def test_rates_differ_by_optimiser_and_unknown_keys_are_refused():
    assert [ServerOptions(optimiser=name).rate for name in ("none", "momentum", "adam", "yogi")] == [1, 1, 0.01, 0.01]
    for wrong in ({"optimizer": "adam"}, {"optimiser": "sgd"}, {"beta1": 1.0}, {"learning_rate": 0}):
        with pytest.raises(ValidationError):
            ServerOptions.model_validate(wrong)
