"""When a certificate is renewed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from hanse_agent.renewal import SHORTEST, renewal_due

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def identity(until: datetime) -> Any:
    return SimpleNamespace(peer=SimpleNamespace(not_after=until))


def test_it_is_renewed_after_two_thirds_of_the_time_that_it_is_held() -> None:
    assert renewal_due(identity(NOW + timedelta(days=9)), NOW) == NOW + timedelta(days=6)


@pytest.mark.parametrize("left", [timedelta(seconds=1), timedelta(0), timedelta(days=-30)])
def test_a_clock_that_is_far_ahead_makes_no_storm_of_renewals(left: timedelta) -> None:
    assert renewal_due(identity(NOW + left), NOW) == NOW + SHORTEST
