"""The learning rate over rounds, and what the options refuse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import OperatorError
from hanse.learning.training_options import PublishedGperxan, TrainingOptions, learning_rate
from hanse.settings import validate


def test_the_published_trace_of_four_rounds_ends_with_a_round_at_rate_zero() -> None:
    trace = [learning_rate(0.002, "published", r, 4) for r in (1, 2, 3, 4)]
    half = math.sqrt(0.5)
    assert trace == pytest.approx([0.001 * (1 + half), 0.001, 0.001 * (1 - half), 0.0])
    assert trace[-1] == 0.0


def test_the_standard_trace_begins_at_the_full_rate() -> None:
    half = math.sqrt(0.5)
    trace = [learning_rate(1.0, "standard", r, 4) for r in (1, 2, 3, 4)]
    assert trace == pytest.approx([1.0, (1 + half) / 2, 0.5, (1 - half) / 2])


@given(st.integers(1, 300), st.floats(1e-4, 1.0))
def test_rates_fall_and_the_standard_schedule_is_one_round_behind(rounds: int, base: float) -> None:
    published = [learning_rate(base, "published", r, rounds) for r in range(1, rounds + 1)]
    standard = [learning_rate(base, "standard", r, rounds) for r in range(1, rounds + 1)]
    assert published == sorted(published, reverse=True)
    assert published[-1] == 0.0
    assert standard[1:] == published[:-1]
    assert learning_rate(base, "constant", rounds, rounds) == base


def test_the_published_defaults() -> None:
    options = PublishedGperxan()
    found = options.learning_rate, options.momentum, options.weight_decay, options.batch_size, options.guide
    assert found == (0.002, 0.9, 5e-4, 32, 0.5)
    assert (options.schedule, options.local_epochs, options.keep_optimiser) == ("published", 1, True)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"lr": 0.1}, "unknown key 'lr'"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"batch_size": 4, "micro_batch_size": 8}, "micro_batch_size is larger"),
        ({"augmentation": {"rotate": 1}}, "augmentation.rotate"),
    ],
)
def test_wrong_options_are_refused_by_name(document: dict[str, object], sentence: str) -> None:
    with pytest.raises(OperatorError, match=sentence):
        validate(TrainingOptions, document, source="training")
