"""One phase's aggregation, seen from the engine: contributions in, an outcome out, whatever the aggregator does.

The call to the aggregator may break at any time. It is then opened again and everything is handed over once
more, which gives the same outcome: an aggregation keeps nothing between calls.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from hanse.errors import HanseError, MethodError, Reason
from hanse.logs import logger
from hanse.v1 import aggregator_pb2
from hanse_coordinator.aggregators import AggregatorPool

_T = TypeVar("_T")

__all__ = ["Acknowledged", "AggregationFailed", "EndlessAggregation", "OutcomeReady", "PhaseAggregation"]


class EndlessAggregation(MethodError):
    """A plug-in works longer than the operator allows."""

    default_code = "AGGREGATION_ENDLESS"


@dataclass(frozen=True)
class Handed:
    """A contribution that the aggregator should take."""

    assignment: str
    node: str
    digest: bytes
    unseen: bool


@dataclass(frozen=True)
class Acknowledged:
    """The aggregator took a contribution, or rejected it with a reason."""

    source: PhaseAggregation
    assignment: str
    rejection: Reason | None


@dataclass(frozen=True)
class OutcomeReady:
    """The aggregation is done; every artifact of the outcome is in the coordinator's store."""

    source: PhaseAggregation
    outcome: aggregator_pb2.OutcomeMessage


@dataclass(frozen=True)
class AggregationFailed:
    """The method gave up, or no aggregator answered for too long."""

    source: PhaseAggregation
    error: HanseError


Report = Callable[[Acknowledged | OutcomeReady | AggregationFailed], None]


class PhaseAggregation:
    """Feeds the contributions of one phase to an aggregator and reports what comes of them.

    `phase` None begins a job: nothing is added, and the outcome is the first phase.
    """

    def __init__(
        self,
        pool: AggregatorPool,
        facts: aggregator_pb2.JobFacts,
        phase: aggregator_pb2.PhaseDescription | None,
        state: bytes | None,
        *,
        report: Report,
        patience: float,
        limit: float,
    ) -> None:
        """`patience` is for aggregators that do not answer, `limit` for work that comes to no end; in seconds."""
        self._pool = pool
        self._facts = facts
        self._phase = phase
        self._state = state
        self._report = report
        self._patience = patience
        self._limit = limit
        self._handed: list[Handed] = []
        self._acknowledged: set[str] = set()
        self._heard: set[str] = set()
        self._finish = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, assignment: str, node: str, digest: bytes, *, unseen: bool) -> None:
        """Hand a contribution over; `Acknowledged` follows."""
        self._handed.append(Handed(assignment, node, digest, unseen))
        self._go()

    def finish(self) -> None:
        """No more contributions: `OutcomeReady` follows."""
        self._finish = True
        self._go()

    def drop(self) -> None:
        """Forget it; nothing is reported any more."""
        self._report = lambda _: None
        if self._task is not None:
            self._task.cancel()

    def heard(self, assignment: str) -> None:
        """What was reported of a contribution has been acted upon."""
        self._heard.add(assignment)

    def waits_for(self, assignment: str) -> bool:
        """Whether the aggregator has not said yet what it thinks of a contribution, or nobody has acted upon it."""
        return assignment not in self._heard

    def _go(self) -> None:
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="aggregation")

    async def _run(self) -> None:
        attempt, failing_since = 0, 0.0
        while True:
            try:
                await self._attempt()
                return
            except HanseError as error:
                now = time.monotonic()
                if attempt == 0 or self._progressed:
                    attempt, failing_since = 0, now
                attempt += 1
                if not error.retryable or now - failing_since > self._patience:
                    self._report(AggregationFailed(self, error))
                    return
                logger().warning("aggregator call broke; trying again", attempt=attempt, error=str(error))
                await asyncio.sleep(random.uniform(0.05, min(5.0, 0.1 * 2**attempt)))  # noqa: S311
            except Exception as error:  # noqa: BLE001 - a fault here must end as a reason, not as a silent job
                logger().exception("aggregation failed", error=repr(error))
                fault = MethodError(
                    f"the aggregation failed: {type(error).__name__}: {error}", code="AGGREGATION_FAULT"
                )
                self._report(AggregationFailed(self, fault))
                return

    async def _attempt(self) -> None:
        self._progressed = False
        async with self._pool.open(self._facts, self._phase, self._state) as call:
            done = 0
            while True:
                while done < len(self._handed):
                    item = self._handed[done]
                    adding = call.add(item.assignment, item.node, item.digest, unseen=item.unseen)
                    rejection = await self._limited(adding, f"the contribution of node '{item.node}'")
                    done += 1
                    if item.assignment not in self._acknowledged:
                        self._progressed = True
                        self._acknowledged.add(item.assignment)
                        self._report(Acknowledged(self, item.assignment, rejection))
                if self._finish:
                    self._report(OutcomeReady(self, await self._limited(call.close(), "the outcome")))
                    return
                self._changed.clear()
                await self._changed.wait()

    async def _limited(self, work: Awaitable[_T], what: str) -> _T:
        """A plug-in that hangs must not hold its job for ever."""
        try:
            async with asyncio.timeout(self._limit):
                return await work
        except TimeoutError:
            raise EndlessAggregation(
                f"the aggregator did not come to an end with {what} within {self._limit:g} s.",
                remedy="Look at its log; if the work is right and long, raise the coordinator's aggregation_limit.",
            ) from None
