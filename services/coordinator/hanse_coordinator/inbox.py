"""What waits to be taken by a job's task. Contributions that wait at the same time are taken together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from hanse_coordinator.aggregation import Acknowledged, AggregationFailed, OutcomeReady
from hanse_coordinator.inputs import Delivered, Input, Wake

__all__ = ["Inbox", "Item"]

Item = Input | Acknowledged | OutcomeReady | AggregationFailed

MOST_TOGETHER = 256
"""Contributions recorded in one transaction: more would keep everybody else from the ledger for long."""


class Inbox:
    """Inputs in the order in which they came. Putting never blocks."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._filled = asyncio.Event()

    def put(self, item: Item) -> None:
        """Hand in an input."""
        self._items.append(item)
        self._filled.set()

    async def get(self) -> list[Item]:
        """The next input; a contribution comes with those behind it.

        While one is written to the ledger others arrive: writing them in one transaction costs little more than
        writing one. No contribution overtakes a command, a node that connects or fails, or an outcome.
        """
        await self._filled.wait()
        taken = [self._items.popleft()]
        if isinstance(taken[0], Delivered):
            taken += self._more(taken[0])
        if not self._items:
            self._filled.clear()
        return taken

    def drain(self) -> Iterator[Item]:
        """All that is left."""
        while self._items:
            yield self._items.popleft()
        self._filled.clear()

    def _more(self, first: Delivered) -> list[Item]:
        """The contributions that may be taken with the first: each for an assignment of its own."""
        assignments, more, passed = {first.assignment}, list[Item](), list[Item]()
        while self._items and len(more) < MOST_TOGETHER - 1:
            item = self._items[0]
            if isinstance(item, Delivered) and item.assignment not in assignments:
                assignments.add(item.assignment)
                more.append(item)
            elif isinstance(item, Wake | Acknowledged):  # they say nothing about who contributes
                passed.append(item)
            else:
                break
            self._items.popleft()
        self._items.extendleft(reversed(passed))
        return more
