"""Series and their windows: nothing of the future in the inputs, nothing of the test in the scale, no energy lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import SiteError
from hanse.learning.series import FLOOR, Series, check_series, fit_scale, origins
from hanse.learning.series_baselines import persistence, seasonal_naive
from hanse.learning.series_sessions import overlapping, spread_energy
from hanse.learning.series_windows import SeriesWindows, WindowShape

SHAPE = WindowShape(window=5, horizon=3, lags=(24,))


def series(values: np.ndarray, **changes: Any) -> Series:
    count = len(values)
    given_ = {
        "name": "north",
        "start": np.datetime64("2024-01-01T00:00", "m"),
        "step_minutes": 60,
        "values": np.asarray(values, dtype=np.float64),
        "week_minute": np.arange(count, dtype=np.int64) * 60 % 10080,
        "training": round(0.8 * count),
        "covariates": np.empty((count, 0), dtype=np.float32),
    }
    return Series(**(given_ | changes))


def demand(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, 3.0, count)


def test_inputs_end_at_the_origin_and_targets_begin_after_it() -> None:
    windows = SeriesWindows([series(np.arange(1.0, 101.0))], SHAPE, validation=0.0)
    row = windows.training[:1]
    assert row[0] == 23  # the first whose lag of 24 steps before each target is there
    level = windows.scales[0].level
    flat = windows.inputs(row)[0]
    channels = 6
    assert np.allclose(flat[: 5 * channels : channels] * level, np.arange(20.0, 25.0), atol=1e-4)
    assert np.allclose(windows.truth(row)[0] * level, [25, 26, 27])
    steps = windows.scales[0].steps
    assert np.allclose(windows.targets(row)[0], np.array([1, 2, 3]) / level / steps, rtol=1e-6)
    seen = np.clip((np.array([1, 2, 3]) - 24) / level / steps, -10, 10)
    assert np.allclose(flat[5 * channels :], seen, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), origin=st.integers(30, 150), garbage=st.floats(-1e6, 1e6))
def test_nothing_after_the_origin_reaches_the_inputs(seed: int, origin: int, garbage: float) -> None:
    values = demand(200, seed)
    changed = values.copy()
    changed[origin + 1 :] = garbage
    rows = np.array([origin])
    # The scale is fitted on the training part: give both the same one by changing nothing there.
    first = SeriesWindows([series(values, training=30)], SHAPE, validation=0.0).inputs(rows)
    second = SeriesWindows([series(changed, training=30)], SHAPE, validation=0.0).inputs(rows)
    assert np.array_equal(first, second)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), garbage=st.floats(-1e6, 1e6))
def test_nothing_held_out_reaches_the_scale_or_the_training_windows(seed: int, garbage: float) -> None:
    values = demand(200, seed)
    changed = values.copy()
    changed[160:] = garbage
    first, second = (SeriesWindows([series(each)], SHAPE, validation=0.1) for each in (values, changed))
    assert first.scales[0].level == second.scales[0].level
    assert np.array_equal(first.scales[0].steps, second.scales[0].steps)
    for rows in (first.training, first.validation):
        assert np.array_equal(first.inputs(rows), second.inputs(rows))
        assert np.array_equal(first.targets(rows), second.targets(rows))


def test_training_validation_and_test_windows_share_no_target() -> None:
    windows = SeriesWindows([series(demand(300))], SHAPE, validation=0.2)
    parts = [
        {int(t) + h for t in rows for h in (1, 2, 3)}
        for rows in (windows.training, windows.validation, windows.held_out)
    ]
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]
    assert min(parts[2]) == 240
    assert max(parts[2]) == 299


def test_windows_with_an_unknown_value_are_left_out() -> None:
    values = demand(200)
    values[100] = np.nan
    train, held = origins(series(values), window=5, lags=(24,), horizon=3)
    used = np.concatenate([train, held])
    around = {100 + back for back in range(5)} | {99, 98, 97} | {100 + 24 - h for h in (1, 2, 3)}
    assert not around & set(used.tolist())
    assert {96, 105, 120, 124} <= set(used.tolist())


def test_several_series_keep_their_own_scale_and_windows() -> None:
    one, two = series(demand(200)), series(1000 * demand(220, 1), name="south")
    together = SeriesWindows([one, two], SHAPE, validation=0.1)
    alone = SeriesWindows([two], SHAPE, validation=0.1)
    assert np.array_equal(together.inputs(alone.training + 200), alone.inputs(alone.training))
    assert set(together.owners(together.held_out).tolist()) == {0, 1}
    assert np.array_equal(together.training[together.owners(together.training) == 1], alone.training + 200)


def test_the_scale_is_robust_and_has_a_floor() -> None:
    values = demand(1000)
    peak = values.copy()
    peak[10] = 1e6
    assert fit_scale(series(peak), 2).level < 1.1 * fit_scale(series(values), 2).level
    slow = np.full(1000, 5.0)
    slow[0] = 4.9
    assert np.array_equal(fit_scale(series(slow), 2).steps, [FLOOR, FLOOR])


def test_a_short_history_is_the_end_of_the_training_part() -> None:
    whole = series(demand(24 * 70))
    recent = whole.recent(4)
    assert recent.training == 24 * 28
    assert np.array_equal(recent.values[recent.training :], whole.values[whole.training :])
    assert recent.times()[-1] == whole.times()[-1]


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        (np.full(100, 3.0), "SERIES_CONSTANT", "station 'north' is constant.* row 1 to row 80 is 3"),
        (np.full(100, np.nan), "SERIES_EMPTY", r"station 'north' has no value .*rows 1 to 80"),
        (np.concatenate([demand(10), np.full(90, np.nan)]), "SERIES_TOO_SHORT", "10 known values"),
    ],
)
def test_a_series_that_teaches_nothing_is_refused(values: np.ndarray, code: str, words: str) -> None:
    with pytest.raises(SiteError, match=words) as caught:
        check_series(series(values), minimum=24)
    assert caught.value.code == code


def test_the_floors_are_what_they_say() -> None:
    values = np.tile(np.arange(24.0), 50)
    weekly = series(values)
    rows = np.array([1000])
    forecast = seasonal_naive(weekly, rows, horizon=3, quantiles=(0.05, 0.5, 0.95))
    assert np.allclose(forecast, values[1001:1004][None, :, None])  # a perfect season has no residuals
    still = persistence(weekly, rows, horizon=3, quantiles=(0.5,))
    assert np.allclose(still[0, :, 0], values[1000] + np.array([1, 2, 3]))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_spreading_keeps_all_energy_and_agrees_with_counting_minutes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    begin = np.array(data.draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count)), dtype=np.float64)
    length = np.array(data.draw(st.lists(st.integers(0, 400), min_size=count, max_size=count)), dtype=np.float64)
    energy = np.array(data.draw(st.lists(st.floats(0, 100), min_size=count, max_size=count)))
    found = spread_energy(begin, begin + length, energy, start=0.0, step=60.0, steps=24)
    assert np.isclose(found.sum(), energy.sum(), atol=1e-6)
    assert (found > -1e-9).all()
    minutes = np.zeros(24 * 60)
    for b, n, e in zip(begin.astype(int), length.astype(int), energy, strict=True):
        minutes[b : b + max(n, 1)] += e / max(n, 1)
    assert np.allclose(found, minutes.reshape(24, 60).sum(axis=1), atol=1e-6)


def test_overlapping_sessions_are_counted() -> None:
    begin, end = np.array([0.0, 10.0, 20.0, 5.0]), np.array([10.0, 20.0, 30.0, 25.0])
    most, busy = overlapping(begin, end)
    assert (most, busy.tolist()) == (2, [False, True, True, True])
