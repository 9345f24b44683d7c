"""Which of the coordinators to call next, and how long to pause before: all addresses are tried in turn."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from hanse.security import Address

FIRST_PAUSE_S = 0.2
SHORT_PAUSE_S = 2.0
LONGEST_PAUSE_S = 15.0
OUTAGE_S = 60.0
"""For so long after a connection was lost pauses stay short: a standby takes over, or a coordinator restarts."""


class Reconnecting:
    """The way back to a coordinator. Pauses are random, so that nodes which lost one together do not return together;
    they grow with each round over all addresses, and stay short for the first minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = 0
        self._failures = 0
        self._since = clock()

    def address(self, addresses: Sequence[Address]) -> Address:
        """The address to try now: the one that was good last, or the next after one that was not."""
        return addresses[self._turn % len(addresses)]

    def connected(self) -> None:
        """There is a session; pauses begin anew when it ends."""
        self._failures = 0

    def failed(self, addresses: int) -> float:
        """The attempt, or the session, has ended; returns how many seconds to wait before the next attempt."""
        if not self._failures:
            self._since = self._clock()
        self._failures += 1
        self._turn += 1
        rounds, left = divmod(self._failures, addresses)
        if left:
            return random.uniform(0, FIRST_PAUSE_S)  # noqa: S311 - jitter, no secret
        longest = SHORT_PAUSE_S if self._clock() - self._since < OUTAGE_S else LONGEST_PAUSE_S
        return random.uniform(0.5, 1) * min(longest, FIRST_PAUSE_S * 2.0 ** min(rounds - 1, 20))  # noqa: S311
