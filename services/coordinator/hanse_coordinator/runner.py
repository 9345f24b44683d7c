"""One running job: its task, which takes what comes in and lets `JobLife` make the transitions.

Everything in memory here mirrors the ledger. A coordinator that dies at any instant is rebuilt from it by
`JobRunner.start`, and goes on with the same phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hanse.errors import (
    Conflict,
    FencedOut,
    Forbidden,
    HanseError,
    OldFence,
    PlatformError,
)
from hanse.jobs import JobSpecification
from hanse.ledger import records
from hanse.ledger.states import JobState, PhaseState
from hanse.logs import logger
from hanse.v1 import node_pb2
from hanse_coordinator.aggregation import Acknowledged, AggregationFailed, OutcomeReady
from hanse_coordinator.asking import Asking
from hanse_coordinator.collecting import Collector, Mirror, Surroundings
from hanse_coordinator.inbox import Inbox, Item
from hanse_coordinator.inputs import Command, Connected, Delivered, Input, Replied, Settled, Wake
from hanse_coordinator.life import JobLife
from hanse_coordinator.offers import Offers
from hanse_coordinator.phase import OpenPhase

__all__ = ["JobRunner"]


class JobRunner:
    """Drives one job from submission to its end. All changes happen in one task, one input at a time."""

    def __init__(self, around: Surroundings, job: records.Job) -> None:
        self._around = around
        self.spec = JobSpecification.model_validate_json(job.specification)
        self.offers = Offers(self.spec, around.sessions)
        self._log = logger(job=job.id, name=job.name)
        self._inbox = Inbox()
        self._mirror = Mirror(job, self.spec, self.offers, self._log)
        self._asking = Asking(around, self._mirror)
        self._collector = Collector(around, self._mirror, self._inbox.put)
        self._life = JobLife(around, self._mirror, self._collector, self._asking)
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def job(self) -> records.Job:
        """The job as the ledger has it."""
        return self._mirror.job

    @property
    def phase(self) -> OpenPhase | None:
        """The phase that is open."""
        return self._collector.phase

    def progressed(self, node: str, progress: node_pb2.Progress) -> None:
        """A node showed progress: its lease is renewed. Nothing is written."""
        self._collector.progressed(node, progress)

    def check(self, node: str, assignment: str, fence: int) -> records.Assignment:
        """Judge an assignment before its bytes are taken. Raises as `Collector.check`."""
        return self._collector.check(node, assignment, fence)

    # ---- The task
    def start(self) -> None:
        """Begin, or go on from what the ledger says."""
        self._task = asyncio.create_task(self._run(), name=f"job {self.job.id}")

    async def stop(self) -> None:
        """Leave the job as it is in the ledger, for the next coordinator."""
        if self._timer:
            self._timer.cancel()
        self._collector.drop_aggregation()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def post(self, item: Input) -> None:
        """Hand in an input. Work that is done waits its turn here and does not lose its lease meanwhile."""
        if isinstance(item, Delivered) and self.phase is not None:
            self.phase.renew(item.assignment, self._now + self._around.lease)
        self._inbox.put(item)

    async def _run(self) -> None:
        try:
            await self._guarded(self._life.recover)
            while True:
                await self._guarded(self._life.advance)
                self._arm()
                self._around.changed(self.job.id)
                if self.job.state.ended:
                    break
                items = await self._inbox.get()
                await self._guarded(lambda items=items: self._take(items))  # type: ignore[misc]
        except FencedOut:
            self._log.warning("another coordinator leads; leaving the job to it")
        finally:
            self._refuse_the_rest()

    async def _guarded(self, call: Callable[[], Awaitable[None]]) -> None:
        """Whatever keeps a job from going on pauses it with a reason; it never waits for ever in silence."""
        try:
            await call()
        except FencedOut:
            raise
        except HanseError as error:
            self._log.warning("the job cannot go on", error=str(error))
            await self._life.stuck(error.reason)
        except Exception as error:  # noqa: BLE001 - the job must end in a state that a person can act on
            self._log.exception("fault in the engine", error=repr(error))
            fault = PlatformError(
                f"the coordinator failed at this job: {type(error).__name__}: {error}.",
                remedy="Its log has the details; resume the job to try again.",
                code="COORDINATOR_FAULT",
            )
            await self._life.stuck(fault.reason)

    def _refuse_the_rest(self) -> None:
        for item in self._inbox.drain():
            if isinstance(item, Delivered) and not item.recorded.done():
                item.recorded.set_exception(PlatformError("the coordinator is stopping.", code="STOPPING"))
            if isinstance(item, Command) and not item.done.done():
                item.done.set_exception(
                    Conflict(f"job '{self.job.name}' is {self.job.state.value}.", code="WRONG_STATE")
                )

    async def _take(self, items: Sequence[Item]) -> None:
        """Take what the inbox gave: one input, or contributions that came together."""
        contributions = [item for item in items if isinstance(item, Delivered)]
        if contributions:
            await self._record(contributions)
            return
        (item,) = items
        match item:
            case Wake():
                pass
            case Connected():
                await self._life.connected(item.session, fresh=item.fresh)
            case Replied():
                await self._asking.replied(item)
            case Settled():
                try:
                    await self._collector.settled(item)
                except (Forbidden, OldFence) as error:  # a node that speaks of what is not its own any more
                    self._log.info("refused", node=item.node, error=str(error))
            case Command():
                with self._answering([item.done]):
                    await self._life.command(item)
                    _resolve(item.done, None)
            case Acknowledged() if item.source is self._collector.aggregation:
                await self._collector.acknowledged(item)
            case OutcomeReady() if item.source is self._collector.aggregation:
                await self._life.outcome(item)
            case AggregationFailed() if item.source is self._collector.aggregation:
                await self._life.aggregation_failed(item.error)

    async def _record(self, items: list[Delivered]) -> None:
        """Record contributions, and let those who brought them know."""
        with self._answering([item.recorded for item in items]):
            for item, answer in zip(items, await self._collector.delivered(items), strict=True):
                _resolve(item.recorded, answer)

    @contextmanager
    def _answering(self, futures: Sequence[asyncio.Future[Any]]) -> Iterator[None]:
        """Whatever comes of the work, those who wait for it are told."""
        try:
            yield
        except HanseError as error:
            for future in futures:
                _resolve(future, error)
            if isinstance(error, FencedOut) and not isinstance(error, OldFence):
                raise
        except BaseException:
            for future in futures:
                _resolve(future, PlatformError("the coordinator failed; try again.", code="COORDINATOR_FAULT"))
            raise

    # ---- Time
    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _arm(self) -> None:
        """Set the timer to whatever comes next."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        times: list[float | None] = []
        if self.job.state is JobState.WAITING:
            times.append(self.offers.next_wake(self._now))
        if self.phase and not self.phase.record.state.ended and self.phase.record.state is not PhaseState.AGGREGATING:
            times += [self.phase.deadline, self.phase.next_expiry()]
        due = min((when for when in times if when is not None), default=None)
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(max(due, self._now) + 0.001, self.post, Wake())


def _resolve(future: asyncio.Future[Any], answer: object) -> None:
    """Answer somebody who may have stopped waiting."""
    if future.done():
        return
    if isinstance(answer, HanseError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
