"""All jobs of the federation: who submits, who is asked, and where a contribution belongs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from pydantic import ValidationError

from hanse.artifacts import ArtifactStore
from hanse.errors import Conflict
from hanse.jobs import JobSpecification
from hanse.ledger import JobState, View, records
from hanse.ledger.states import Decision
from hanse.payload import Payload
from hanse.rpc import from_proto
from hanse.v1 import node_pb2
from hanse_coordinator import unreadable
from hanse_coordinator.aggregators import AggregatorPool
from hanse_coordinator.collecting import Surroundings
from hanse_coordinator.inputs import Command, Connected, Delivered, Input, Replied, Settled, Wake
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.past_work import past_assignment, settle_in_hand, take_late, tell_what_ended
from hanse_coordinator.runner import JobRunner
from hanse_coordinator.sessions import NodeSession, Sessions
from hanse_coordinator.settings import CoordinatorSettings
from hanse_coordinator.states import AssignmentEvent, JobEvent
from hanse_coordinator.submission import add_job, base_model, check_method

__all__ = ["Engine"]

_DECISIONS = {
    node_pb2.OfferReply.DECISION_ACCEPTED: Decision.ACCEPTED,
    node_pb2.OfferReply.DECISION_REFUSED: Decision.REFUSED,
    node_pb2.OfferReply.DECISION_AWAITING_APPROVAL: Decision.AWAITING_APPROVAL,
}
_LIVE = [state for state in JobState if not state.ended]


class Engine:
    """Runs every job that has not ended, and passes on what nodes and operators say."""

    def __init__(
        self,
        *,
        ledger: LedgerThread,
        store: ArtifactStore,
        sessions: Sessions,
        aggregators: AggregatorPool,
        settings: CoordinatorSettings,
    ) -> None:
        self._around = Surroundings(
            ledger=ledger,
            store=store,
            sessions=sessions,
            aggregators=aggregators,
            settings=settings,
            changed=self._changed,
        )
        self._runners: dict[str, JobRunner] = {}
        self._watchers: defaultdict[str, list[asyncio.Event]] = defaultdict(list)

    # ---- Life
    async def start(self) -> None:
        """Go on with every job that has not ended; nodes that were connected get a lease to come back."""

        def read(view: View) -> tuple[list[records.Job], list[str]]:
            return view.jobs(states=_LIVE), [node.name for node in view.nodes() if node.online]

        jobs, online = await self._around.ledger.read(read)
        self._around.sessions.presume_present(online)
        for job in reversed(jobs):
            try:
                self._run(job)
            except ValidationError as error:  # submitted to another version
                await unreadable.set_aside(self._around.ledger, job, error, retention_s=self._retention)

    async def stop(self) -> None:
        """Leave every job as it is in the ledger."""
        await asyncio.gather(*(runner.stop() for runner in self._runners.values()))
        self._runners.clear()

    def _run(self, job: records.Job) -> JobRunner:
        runner = self._runners[job.id] = JobRunner(self._around, job)
        runner.start()
        return runner

    @property
    def _retention(self) -> float:
        return self._around.settings.retention.total_seconds()

    def _changed(self, job: str) -> None:
        for event in self._watchers.get(job, ()):
            event.set()
        runner = self._runners.get(job)
        if runner is not None and runner.job.state.ended:
            del self._runners[job]

    def _post_to_all(self, item: Input) -> None:
        for runner in list(self._runners.values()):
            runner.post(item)

    # ---- Operators
    async def submit(self, spec: JobSpecification, *, actor: str, continue_from: str = "") -> records.Job:
        """Take a job.

        Raises:
            OperatorError: no aggregator knows the method, its configuration does not fit, or `unseen` names a node
                that does not exist.
            NotFound, Conflict: the job to continue from is unknown, of another method, not over, or has no model.
        """
        around = self._around
        await check_method(around.aggregators, spec)
        base = base_model(spec, await self.find(continue_from)) if continue_from else None
        job = await around.ledger.write(lambda tx: add_job(tx, spec, actor=actor, base=base))
        self._run(job)
        return job

    async def find(self, name: str) -> records.Job:
        """A job by id, or the newest of a name. Raises NotFound."""
        return await self._around.ledger.read(lambda view: view.find_job(name) or view.job_by_name(name))

    async def command(self, name: str, event: JobEvent, *, actor: str, why: str) -> records.Job:
        """Cancel, pause or resume a job.

        Raises:
            NotFound: no such job.
            Conflict: its state does not allow it.
        """
        job = await self.find(name)
        runner = self._runners.get(job.id)
        if runner is None and not job.state.ended:
            if event is not JobEvent.CANCEL:
                raise Conflict(str(job.reason), code="SPECIFICATION_UNREADABLE")
            ledger = self._around.ledger
            return await unreadable.cancel(ledger, job, actor=actor, why=why, retention_s=self._retention)
        if runner is None:
            raise Conflict(
                f"job '{job.name}' is {job.state.value}: nothing more will happen to it.", code="WRONG_STATE"
            )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        runner.post(Command(event, actor, why, done))
        await done
        return await self._around.ledger.read(lambda view: view.job(job.id))

    def jobs(self) -> list[records.Job]:
        """Every job that has not ended, as the ledger has it."""
        return [runner.job for runner in self._runners.values()]

    def runner(self, job: str) -> JobRunner | None:
        """The live side of a job, for showing progress."""
        return self._runners.get(job)

    def watch(self, job: str) -> tuple[asyncio.Event, Callable[[], None]]:
        """An event that is set whenever the job changes, and how to stop watching."""
        event = asyncio.Event()
        self._watchers[job].append(event)

        def stop() -> None:
            self._watchers[job].remove(event)
            if not self._watchers[job]:
                del self._watchers[job]

        return event, stop

    # ---- Nodes
    async def connected(self, session: NodeSession, *, fresh: bool) -> None:
        """A session is open: offers, unfinished assignments, and a word on everything it still has in hand."""
        for in_hand in session.hello.in_hand:
            await settle_in_hand(self._around.ledger, session, in_hand)
        await tell_what_ended(self._around.ledger, session)
        self._post_to_all(Connected(session, fresh))

    def node_changed(self) -> None:
        """A node came, went, or stopped counting as present."""
        self._post_to_all(Wake())

    def replied(self, node: str, reply: node_pb2.OfferReply) -> None:
        """A node answered an offer."""
        runner = self._runners.get(reply.job)
        decision = _DECISIONS.get(reply.decision)
        if runner is not None and decision is not None:
            reason = from_proto(reply.reason) if reply.HasField("reason") else None
            runner.post(Replied(node, decision, reason))

    def progressed(self, node: str, progress: node_pb2.Progress) -> None:
        """A node shows progress."""
        if runner := self._holder(progress.assignment):
            runner.progressed(node, progress)

    def failed(self, node: str, failure: node_pb2.WorkFailed) -> None:
        """A node refused or failed an assignment."""
        if runner := self._holder(failure.assignment):
            event = AssignmentEvent.REFUSE if failure.refused else AssignmentEvent.FAIL
            runner.post(Settled(node, failure.assignment, failure.fence, event, from_proto(failure.reason)))

    async def check(self, node: str, assignment: str, fence: int) -> records.Assignment:
        """Judge an assignment before bytes for it are taken, or given.

        Raises:
            NotFound, Forbidden: no such assignment of this node.
            OldFence: another agent process has it.
        """
        if runner := self._holder(assignment):
            return runner.check(node, assignment, fence)
        return await past_assignment(self._around.ledger, node, assignment)

    async def deliver(self, node: str, assignment: str, fence: int, digest: bytes, size: int) -> bool:
        """Record a contribution whose bytes are in the store. False: it came too late and is only recorded.

        Raises:
            as `check`; Conflict also when it was answered with other bytes.
        """
        runner = self._holder(assignment)
        if runner is None:
            return await self._deliver_late(node, assignment, digest.hex(), size)
        recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        runner.post(Delivered(node, assignment, fence, digest.hex(), size, recorded))
        try:
            return await recorded
        except Conflict as error:
            if error.code != "PHASE_OVER":
                raise
        return await self._deliver_late(node, assignment, digest.hex(), size)

    async def _deliver_late(self, node: str, assignment: str, digest: str, size: int) -> bool:
        ledger, retention = self._around.ledger, self._retention
        found = await past_assignment(ledger, node, assignment)
        return await ledger.write(lambda tx: take_late(tx, found, digest, size, retention_s=retention))

    async def recorded(self, node: str, assignment: str) -> records.Contribution | None:
        """What a node has already contributed to an assignment."""
        found = await self._around.ledger.read(lambda view: view.contribution(assignment))
        return found if found and found.node == node else None

    async def entitled(self, node: str, assignment: str, digest: bytes) -> bool:
        """Whether an assignment gives a node the right to an artifact: its instruction, its personal payload, and
        what these refer to."""
        runner = self._holder(assignment)
        if runner is not None and runner.phase is not None and runner.phase.assignments[assignment].node == node:
            phase = runner.phase.record  # as the ledger has it
        else:
            found = await past_assignment(self._around.ledger, node, assignment)
            phase = await self._around.ledger.read(lambda view: view.phase(found.phase))
        roots = [phase.instruction_digest, phase.personal.get(node)]
        if digest.hex() in roots:
            return True
        return await asyncio.to_thread(self._reaches, [root for root in roots if root], digest)

    def _reaches(self, roots: list[str], digest: bytes) -> bool:
        for root in roots:
            if bytes.fromhex(root) == digest:
                return True
            payload: Payload = self._around.store.open(bytes.fromhex(root))
            if digest in payload.references:
                return True
        return False

    def _holder(self, assignment: str) -> JobRunner | None:
        for runner in self._runners.values():
            if runner.phase is not None and assignment in runner.phase.assignments:
                return runner
        return None
