"""The assignments of one node: taken once, worked on one after another a job, delivered until the receipt comes.

An assignment is known by its id. The same one again (after a reconnect) changes nothing; with a higher fencing number
that number is adopted; with a lower one it is ignored. What is finished is delivered, not worked on again, however
often the connection, the agent or the machine fails in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hanse.errors import FencedOut, HanseError, PlatformError, PolicyRefusal, Reason
from hanse.logs import logger
from hanse.observability.tracing import NOTHING, Span, start, within
from hanse.rpc import INLINE_LIMIT, from_proto, to_proto
from hanse.v1 import node_pb2
from hanse_agent import metrics
from hanse_agent.delivery import Delivery
from hanse_agent.jobs import Jobs
from hanse_agent.link import Links
from hanse_agent.performing import Performing
from hanse_agent.spooled import Spooled


class Stage(Enum):
    """How far an assignment is."""

    WORKING = "working"
    SPOOLED = "spooled"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(eq=False)
class Work:
    """One assignment in hand; for its way out it is a `delivery.Outgoing`."""

    assignment: str
    fence: int
    job: str
    job_name: str
    phase: str
    round: int
    stage: Stage = Stage.WORKING
    fraction: float = -1.0
    spooled: Spooled | None = None
    earlier: bool = False
    inline_limit: int = INLINE_LIMIT
    tried_fence: int = 0
    failure: node_pb2.WorkFailed | None = None
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    spoken_of: asyncio.Event = field(default_factory=asyncio.Event)
    renumbered: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    span: Span = NOTHING

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.stage in (Stage.DELIVERED, Stage.FAILED)


class Workbench:
    """All assignments of one node."""

    def __init__(
        self,
        *,
        node: str,
        jobs: Jobs,
        links: Links,
        performing: Performing,
        delivery: Delivery,
        on_change: Callable[[], None],
        on_error: Callable[[Reason], None],
    ) -> None:
        self._jobs = jobs
        self._links = links
        self._performing = performing
        self._delivery = delivery
        self._on_change = on_change
        self._on_error = on_error
        self._works: dict[str, Work] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._settling: dict[str, set[asyncio.Task[None]]] = {}
        self._node = node
        self._log = logger(node=node)

    def resume(self) -> None:
        """Take up what an earlier process finished and nobody confirmed."""
        for spooled in self._jobs.undelivered():
            self._log.info("contribution is waiting to be delivered", assignment=spooled.task.assignment)
            self._deliver(self._known(spooled))

    @property
    def live(self) -> list[Work]:
        """What is being worked on or delivered."""
        return [work for work in self._works.values() if not work.ended]

    def in_hand(self) -> list[node_pb2.WorkInHand]:
        """What the coordinator is told at the beginning of a session."""
        stages = {
            Stage.WORKING: node_pb2.WorkInHand.STAGE_WORKING,
            Stage.SPOOLED: node_pb2.WorkInHand.STAGE_SPOOLED,
        }
        return [
            node_pb2.WorkInHand(assignment=work.assignment, fence=work.fence, stage=stages[work.stage])
            for work in self.live
        ]

    def assign(self, assign: node_pb2.Assign) -> None:
        """Take an assignment, or recognise one."""
        work = self._works.get(assign.assignment) or self._kept(assign)
        if work is None:
            self._begin(assign)
        elif assign.fence >= work.fence:
            newer = assign.fence > work.fence
            work.fence = assign.fence
            work.spoken_of.set()
            if newer:
                work.renumbered.set()
            if work.stage is Stage.FAILED and newer:
                self._begin(assign)
            elif work.stage is Stage.FAILED:
                self._report(work)
            elif work.stage is Stage.DELIVERED:
                self._deliver(work)

    def withdraw(self, message: node_pb2.Withdraw) -> None:
        """Stop working on an assignment and forget its contribution."""
        work = self._works.get(message.assignment)
        if work is None or work.ended or message.fence < work.fence:
            return
        reason = from_proto(message.reason)
        self._log.info("assignment withdrawn", assignment=work.assignment, job=work.job, reason=reason.sentence)
        task = work.task
        metrics.assignment_ended("withdrawn")
        del self._works[work.assignment]
        self._on_change()
        self._settle(work.job, self._drop(work, task))

    def receipt(self, message: node_pb2.Receipt) -> None:
        """A contribution has arrived."""
        work = self._works.get(message.assignment)
        if work is None or work.spooled is None:
            return
        if message.digest.hex() == work.spooled.digest:
            work.confirmed.set()
        else:
            self._log.warning("receipt for other bytes", assignment=work.assignment, digest=message.digest.hex())

    def report_failures(self) -> None:
        """On a new session: say again what failed, in case the last connection swallowed it."""
        for work in self._works.values():
            if work.stage is Stage.FAILED:
                self._report(work)

    def end_job(self, job: str) -> None:
        """The job is over: stop what runs for it and keep only the learner's last state."""
        works = [work for work in self._works.values() if work.job == job]
        for work in works:
            del self._works[work.assignment]
        self._on_change()
        self._settle(job, self._clear(job, works))

    async def stop(self, *, deliver_for_s: float) -> None:
        """Stop working; wait a while for contributions that are on their way."""
        for work in self.live:
            if work.stage is Stage.WORKING and work.task is not None:
                work.task.cancel()
        sending = [work.task for work in self.live if work.stage is Stage.SPOOLED and work.task is not None]
        if sending and deliver_for_s > 0:
            await asyncio.wait(sending, timeout=deliver_for_s)
        tasks = [work.task for work in self._works.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        settling = [task for tasks in self._settling.values() for task in tasks]
        await asyncio.gather(*tasks, *settling, return_exceptions=True)

    def _begin(self, assign: node_pb2.Assign) -> None:
        for old in [work for work in self._works.values() if work.job == assign.job.id and work.ended]:
            del self._works[old.assignment]
        work = Work(
            assignment=assign.assignment,
            fence=assign.fence,
            job=assign.job.id,
            job_name=assign.job.name,
            phase=assign.phase,
            round=assign.round,
            inline_limit=assign.inline_limit or INLINE_LIMIT,
        )
        work.spoken_of.set()
        work.span = start(
            "assignment",
            parent=assign.traceparent,
            node=self._node,
            job=work.job,
            round=work.round,
            phase=work.phase,
            assignment=work.assignment,
        )
        self._works[work.assignment] = work
        self._start(work, self._perform(work, assign))

    def _known(self, spooled: Spooled) -> Work:
        task = spooled.task
        work = Work(
            assignment=task.assignment,
            fence=task.fence,
            job=task.job,
            job_name=task.job_name,
            phase=task.phase,
            round=task.round,
            stage=Stage.DELIVERED if spooled.delivered else Stage.SPOOLED,
            spooled=spooled,
            earlier=True,
        )
        self._works[task.assignment] = work
        return work

    def _kept(self, assign: node_pb2.Assign) -> Work | None:
        """An assignment that was delivered before, by this process or an earlier one, and is asked for again."""
        spooled = self._jobs.open(assign.job.id).spooled()
        if spooled is None or spooled.task.assignment != assign.assignment:
            return None
        return self._known(spooled)

    def _start(self, work: Work, coroutine: Coroutine[Any, Any, None]) -> None:
        work.task = asyncio.create_task(coroutine)
        self._on_change()

    def _deliver(self, work: Work) -> None:
        work.stage = Stage.SPOOLED
        work.confirmed.clear()
        self._start(work, self._guarded(work, self._deliver_until_confirmed(work)))

    async def _perform(self, work: Work, assign: node_pb2.Assign) -> None:
        async def perform() -> None:
            while settling := self._settling.get(work.job):
                await asyncio.wait(settling)
            async with self._turns.setdefault(work.job, asyncio.Lock()):
                work.spooled = await self._performing.perform(work, assign)
                work.stage = Stage.SPOOLED
                await self._supersede(work)
            self._on_change()
            await self._deliver_until_confirmed(work)

        await self._guarded(work, perform())

    async def _guarded(self, work: Work, coroutine: Coroutine[Any, Any, None]) -> None:
        """Turn whatever goes wrong into a reason for the coordinator."""
        try:
            await coroutine
            work.span.end()
        except asyncio.CancelledError as error:
            work.span.end(error)
            raise
        except HanseError as error:
            self._fail(work, error)
        except OSError as error:
            self._fail(
                work,
                PlatformError(
                    f"the agent's state folder: {error.strerror or error}.",
                    remedy="Check free space and permissions at the site.",
                    code="STATE_NOT_WRITABLE",
                ),
            )
        except Exception as error:  # noqa: BLE001 - an assignment that ends in silence would wait for its lease
            self._log.exception("unexpected error", assignment=work.assignment, job=work.job)
            self._fail(
                work,
                PlatformError(
                    f"an unexpected {type(error).__name__} in the agent.",
                    remedy="It is a fault of the platform; the agent's log has the details.",
                    code="UNEXPECTED",
                ),
            )

    def _fail(self, work: Work, error: HanseError) -> None:
        if work.stage is Stage.SPOOLED and work.spooled is not None:
            self._jobs.open(work.job).withdraw(work.assignment)
        refused = isinstance(error, PolicyRefusal) or error.code.startswith("POLICY_")
        self._log.warning(
            "assignment refused" if refused else "assignment failed",
            assignment=work.assignment,
            job=work.job,
            round=work.round,
            phase=work.phase,
            code=error.code,
            reason=str(error),
        )
        work.span.end(error)
        metrics.assignment_ended("refused" if refused else "failed")
        if refused:
            metrics.refused(error.code)
        work.stage = Stage.FAILED
        work.failure = node_pb2.WorkFailed(assignment=work.assignment, reason=to_proto(error.reason), refused=refused)
        self._on_error(error.reason)
        self._report(work)
        self._on_change()

    def _report(self, work: Work) -> None:
        link = self._links.current
        if link is None or work.failure is None:
            return  # said again by `report_failures` when a session is open
        failure = node_pb2.WorkFailed()
        failure.CopyFrom(work.failure)
        failure.fence = work.fence
        link.send(failed=failure)

    async def _deliver_until_confirmed(self, work: Work) -> None:
        assert work.spooled is not None
        while True:
            try:
                with within("upload", parent=work.span.traceparent, bytes=work.spooled.size):
                    await self._delivery.deliver(work.spooled, work)
                break
            except FencedOut as error:
                self._log.info("assignment has a newer fence", assignment=work.assignment, reason=error.sentence)
                work.earlier = True
                if work.fence == work.tried_fence:  # wait until the coordinator speaks of it again
                    work.spoken_of.clear()
        self._jobs.open(work.job).delivered(work.assignment)
        work.stage, work.earlier = Stage.DELIVERED, True
        metrics.assignment_ended("delivered")
        self._on_change()

    async def _supersede(self, work: Work) -> None:
        """An older contribution of the job was replaced on disk: stop sending it."""
        older = [
            other
            for other in self._works.values()
            if other.job == work.job and other is not work and other.stage is Stage.SPOOLED
        ]
        for other in older:
            del self._works[other.assignment]
            await _cancelled(other.task)

    def _settle(self, job: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Change a job's folder in the background; work on the job that comes later waits for it."""
        task = asyncio.create_task(coroutine)
        self._settling.setdefault(job, set()).add(task)

        def settled(done: asyncio.Task[None]) -> None:
            self._settling[job].discard(done)
            if not self._settling[job]:
                del self._settling[job]
            if not done.cancelled() and (error := done.exception()) is not None:
                self._log.warning("the job's folder could not be tidied", job=job, reason=str(error))

        task.add_done_callback(settled)

    async def _drop(self, work: Work, task: asyncio.Task[None] | None) -> None:
        await _cancelled(task)
        async with self._turns.setdefault(work.job, asyncio.Lock()):
            self._jobs.open(work.job).withdraw(work.assignment)

    async def _clear(self, job: str, works: list[Work]) -> None:
        for work in works:
            await _cancelled(work.task)
        async with self._turns.setdefault(job, asyncio.Lock()):
            self._jobs.end(job)
        self._turns.pop(job, None)
        await self._performing.forget(job)


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
