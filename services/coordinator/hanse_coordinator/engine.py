"""All jobs of the federation: who submits, who is asked, and where a contribution belongs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from pydantic import ValidationError

from hanse.artifacts import ArtifactStore
from hanse.errors import Conflict, Forbidden, NotFound, OperatorError
from hanse.jobs import JobSpecification
from hanse.ledger import JobState, Transaction, View, records
from hanse.ledger.chain import canonical_json
from hanse.ledger.states import AssignmentState, Decision
from hanse.payload import Payload
from hanse.rpc import from_proto, to_proto
from hanse.v1 import node_pb2
from hanse_coordinator import unreadable
from hanse_coordinator.aggregators import AggregatorPool
from hanse_coordinator.collecting import Surroundings
from hanse_coordinator.inputs import Command, Connected, Delivered, Input, Replied, Settled, Wake
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.runner import JobRunner
from hanse_coordinator.sessions import NodeSession, Sessions
from hanse_coordinator.settings import CoordinatorSettings
from hanse_coordinator.states import ASSIGNMENT, AssignmentEvent, JobEvent, step

__all__ = ["Engine"]

_DECISIONS = {
    node_pb2.OfferReply.DECISION_ACCEPTED: Decision.ACCEPTED,
    node_pb2.OfferReply.DECISION_REFUSED: Decision.REFUSED,
    node_pb2.OfferReply.DECISION_AWAITING_APPROVAL: Decision.AWAITING_APPROVAL,
}
# How many of a node's ended jobs it is reminded of when it connects.
_RECENT_JOBS = 20
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
        await self._check_method(spec)
        base = await self._base_model(spec, continue_from) if continue_from else None

        def work(tx: Transaction) -> records.Job:
            for node in spec.evaluation.unseen:
                if tx.find_node(node) is None:
                    raise OperatorError(
                        f"evaluation.unseen names '{node}', which is not a node of this federation.",
                        remedy="`hanse node list` shows the names.",
                    )
            document = canonical_json(spec.model_dump(mode="json"))
            job = tx.add_job(
                name=spec.name,
                method=spec.method,
                dataset=spec.dataset,
                specification=document,
                submitted_by=actor,
                rounds=spec.rounds,
                seed=spec.seed,
                continue_from=base,
            )
            tx.event("job_submitted", job=job, actor=actor, body={"specification": document})
            return tx.job(job)

        job = await self._around.ledger.write(work)
        self._run(job)
        return job

    async def _check_method(self, spec: JobSpecification) -> None:
        plugins = await self._around.aggregators.describe()
        if spec.method not in plugins:
            raise OperatorError(
                f"no aggregator of this federation knows the method '{spec.method}'.",
                remedy=f"Known are: {', '.join(sorted(plugins)) or 'none'}.",
                code="UNKNOWN_METHOD",
            )
        await self._around.aggregators.check_configuration(spec.method, spec.method_config)

    async def _base_model(self, spec: JobSpecification, name: str) -> str:
        base = await self.find(name)
        if base.method != spec.method:
            raise Conflict(f"job '{base.name}' is of method {base.method}, not {spec.method}.")
        if not base.state.ended:
            raise Conflict(
                f"job '{base.name}' is {base.state.value}: its model may still change.",
                remedy="Wait until it ends, or cancel it.",
            )
        if not base.model_digest:
            raise Conflict(f"job '{base.name}' has no model to continue from.")
        return base.id

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
            await self._settle_in_hand(session, in_hand)
        await self._tell_what_ended(session)
        self._post_to_all(Connected(session, fresh))

    async def _tell_what_ended(self, session: NodeSession) -> None:
        """Jobs of the node that ended, perhaps while it was away: it need not keep anything for them."""

        def read(view: View) -> list[records.Job]:
            took_part = view.participations_of(session.node, states=[state for state in JobState if state.ended])
            return [view.job(item.job) for item in took_part[-_RECENT_JOBS:]]

        for job in await self._around.ledger.read(read):
            session.send(job_ended=node_pb2.JobEnded(job=job.id, state=job.state.value))

    async def _settle_in_hand(self, session: NodeSession, work: node_pb2.WorkInHand) -> None:
        found = await self._around.ledger.read(lambda view: view.find_assignment(work.assignment))
        if found is not None and found.node == session.node and not found.state.ended:
            return
        if found is not None and found.node == session.node and found.state is AssignmentState.DELIVERED:
            given = await self._around.ledger.read(lambda view: view.contribution(work.assignment))
            digest = bytes.fromhex(given.digest) if given else b""
            session.send(receipt=node_pb2.Receipt(assignment=work.assignment, fence=work.fence, digest=digest))
            return
        reason = (found.reason if found else None) or _over(work.assignment).reason
        withdraw = node_pb2.Withdraw(assignment=work.assignment, fence=work.fence, reason=to_proto(reason))
        session.send(withdraw=withdraw)

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
        return await self._past(node, assignment)

    async def _past(self, node: str, assignment: str) -> records.Assignment:
        found = await self._around.ledger.read(lambda view: view.find_assignment(assignment))
        if found is None:
            raise NotFound(f"there is no assignment {assignment[:64]}.")
        if found.node != node:
            raise Forbidden(f"assignment {assignment} is not of node '{node}'.", code="NOT_YOURS")
        return found

    async def deliver(self, node: str, assignment: str, fence: int, digest: bytes, size: int) -> bool:
        """Record a contribution whose bytes are in the store. False: it came too late and is only recorded.

        Raises:
            as `check`; Conflict also when it was answered with other bytes.
        """
        runner = self._holder(assignment)
        if runner is None:
            return await self._deliver_late(await self._past(node, assignment), digest.hex(), size)
        recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        runner.post(Delivered(node, assignment, fence, digest.hex(), size, recorded))
        try:
            return await recorded
        except Conflict as error:
            if error.code != "PHASE_OVER":
                raise
        return await self._deliver_late(await self._past(node, assignment), digest.hex(), size)

    async def _deliver_late(self, assignment: records.Assignment, digest: str, size: int) -> bool:
        retention = self._around.settings.retention.total_seconds()

        def work(tx: Transaction) -> bool:
            known = tx.contribution(assignment.id)
            if known is not None:
                if known.digest != digest:
                    raise Conflict(
                        f"assignment {assignment.id} was answered already, with other bytes.",
                        code="ALREADY_CONTRIBUTED",
                    )
                return not known.late
            late = step(ASSIGNMENT, tx.assignment(assignment.id).state, AssignmentEvent.DELIVER, what="the assignment")
            tx.add_artifact(
                digest=digest, size=size, kind="contribution", job=assignment.job, retain_until=tx.now + retention
            )
            tx.add_contribution(
                assignment=assignment.id,
                phase=assignment.phase,
                job=assignment.job,
                node=assignment.node,
                digest=digest,
                size=size,
                late=True,
            )
            tx.update_assignment(assignment.id, state=late.state)
            body = {"phase": assignment.phase, "digest": digest, "bytes": size, "late": True}
            tx.event("contribution", job=assignment.job, node=assignment.node, body=body)
            return False

        return await self._around.ledger.write(work)

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
            found = await self._past(node, assignment)
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


def _over(assignment: str) -> Conflict:
    return Conflict(f"assignment {assignment[:64]} is over.", code="PHASE_OVER")
