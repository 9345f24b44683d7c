"""The way back to a coordinator: every address in turn, random pauses that grow."""

from __future__ import annotations

from hanse.security import Address
from hanse_agent.reconnecting import FIRST_PAUSE_S, LONGEST_PAUSE_S, OUTAGE_S, SHORT_PAUSE_S, Reconnecting

ONE, TWO = Address("one.example.org", 7443), Address("two.example.org", 7443)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_address_is_tried_before_a_longer_pause() -> None:
    way = Reconnecting()
    tried, pauses = [], []
    for _ in range(6):
        tried.append(way.address([ONE, TWO]))
        pauses.append(way.failed(2))
    assert tried == [ONE, TWO] * 3
    assert all(pause <= FIRST_PAUSE_S for pause in pauses[::2])
    assert all(0.5 * FIRST_PAUSE_S * 2**k <= pause <= FIRST_PAUSE_S * 2**k for k, pause in enumerate(pauses[1::2]))


def test_the_address_that_was_good_is_kept_while_the_session_lasts() -> None:
    way = Reconnecting()
    way.failed(2)
    way.connected()
    assert way.address([ONE, TWO]) == TWO


def test_pauses_stay_short_for_a_while_and_then_grow_up_to_a_bound() -> None:
    clock = Clock()
    way = Reconnecting(clock)
    early = [way.failed(1) for _ in range(30)]
    assert max(early) <= SHORT_PAUSE_S
    clock.now = OUTAGE_S
    late = [way.failed(1) for _ in range(30)]
    assert all(0.5 * LONGEST_PAUSE_S <= pause <= LONGEST_PAUSE_S for pause in late)
    assert len(set(late)) > 1  # nodes do not come back all at once
    way.connected()
    assert way.failed(1) <= FIRST_PAUSE_S
