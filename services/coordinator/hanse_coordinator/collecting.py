"""The open phase at work: assignments out, contributions in, leases kept, the aggregator fed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from hanse.artifacts import ArtifactStore
from hanse.errors import Conflict, Forbidden, HanseError, OldFence, Reason
from hanse.jobs import JobSpecification
from hanse.ledger import Transaction, records
from hanse.ledger.states import AssignmentState, JobState, PhaseState
from hanse.rpc import to_proto
from hanse.v1 import aggregator_pb2, node_pb2, payload_pb2
from hanse_coordinator import messages, planning, writes
from hanse_coordinator.aggregation import Acknowledged, PhaseAggregation, Report
from hanse_coordinator.aggregators import AggregatorPool
from hanse_coordinator.inputs import Delivered, Settled
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.offers import Offers
from hanse_coordinator.phase import OpenPhase
from hanse_coordinator.sessions import NodeSession, Sessions
from hanse_coordinator.settings import CoordinatorSettings
from hanse_coordinator.states import ASSIGNMENT, AssignmentEvent, Effect, Transition, step
from hanse_coordinator.traces import PHASES

__all__ = ["Collector", "Mirror", "Surroundings"]


@dataclass(frozen=True)
class Surroundings:
    """What every job shares."""

    ledger: LedgerThread
    store: ArtifactStore
    sessions: Sessions
    aggregators: AggregatorPool
    settings: CoordinatorSettings
    changed: Callable[[str], None]
    """Called with a job's id whenever something that a watcher sees has changed."""

    @property
    def lease(self) -> float:
        """Seconds that an assignment lives without progress."""
        return self.settings.lease.total_seconds()


@dataclass
class Mirror:
    """A job as the ledger has it."""

    job: records.Job
    spec: JobSpecification
    offers: Offers
    log: structlog.typing.FilteringBoundLogger
    base_model: str | None = None
    """The model of the job that this one continues."""


class Collector:
    """Holds the phase that is open. It never changes the job's state: that is the runner's."""

    def __init__(self, around: Surroundings, mirror: Mirror, report: Report) -> None:
        self._around = around
        self._mirror = mirror
        self._report = report
        self.phase: OpenPhase | None = None
        self.aggregation: PhaseAggregation | None = None
        self._sources: dict[str, payload_pb2.PayloadSource] = {}
        """By digest, for the aggregator."""
        self._sent: dict[str, payload_pb2.PayloadSource] = {}
        """By digest, for the nodes of the phase: more of it inline, as the aggregator may reach the store itself."""
        self._described: tuple[tuple[records.Participation, ...], aggregator_pb2.JobFacts] | None = None

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def enter(self, phase: OpenPhase) -> None:
        """The ledger has the phase: open its aggregation, send what is to be done.

        Raises:
            NotFound: the store has lost what the phase sends.
            PlatformError: the store does not answer.
        """
        self.drop_aggregation()
        self._sources.clear()
        self._sent.clear()
        self.phase = phase
        if phase.record.state is not PhaseState.COLLECTING:
            return
        await self.begin()
        for assignment in phase.live():
            phase.renew(assignment.id, self._now + self._around.lease)
            session = self._around.sessions.get(assignment.node)
            if session and assignment.state is AssignmentState.LEASED:
                self.send(session, phase, assignment)

    def leave(self, withdrawn: list[records.Assignment], reason: Reason | None) -> None:
        """The phase is over: tell those who were still at it."""
        self.tell_withdrawn(withdrawn, reason)
        self.drop_aggregation()
        PHASES.end(self._mirror.job.id)
        self.phase = None

    def drop_aggregation(self) -> None:
        """Whatever the aggregator is doing is no longer wanted."""
        if self.aggregation:
            self.aggregation.drop()
            self.aggregation = None

    async def begin(self) -> None:
        """Open the aggregation of the phase and hand over what is there; finish when nothing more comes.

        Raises:
            as `enter`.
        """
        assert self.phase is not None
        if self.phase.record.state is PhaseState.OPEN:
            return
        PHASES.begin(self._mirror.job, self.phase.record, len(self.phase.assignments))
        await self.aggregate(self.phase.record)
        assert self.aggregation is not None
        for item in self.phase.assignments.values():
            if item.state is AssignmentState.DELIVERED:
                self._hand_over(item)
        if self.phase.record.state is PhaseState.AGGREGATING:
            self.aggregation.finish()

    async def aggregate(self, phase: records.Phase | None) -> None:
        """Begin an aggregation: of a phase, or (None) of a job that begins.

        Raises:
            as `enter`.
        """
        around, mirror = self._around, self._mirror
        self.drop_aggregation()
        sent = [phase.instruction_digest, *phase.personal.values()] if phase else []
        await self._load([digest for digest in (*sent, mirror.base_model) if digest])
        state = phase.state_digest if phase else mirror.job.state_digest
        self.aggregation = PhaseAggregation(
            around.aggregators,
            self._facts(),
            messages.phase_description(phase, self._sources.__getitem__) if phase else None,
            bytes.fromhex(state) if state else None,
            report=self._report,
            patience=around.settings.aggregator_patience.total_seconds(),
            limit=around.settings.aggregation_limit.total_seconds(),
        )

    def _facts(self) -> aggregator_pb2.JobFacts:
        """What the aggregator is told of the job; made anew only when somebody joined or left it."""
        mirror = self._mirror
        participants = tuple(mirror.offers.participants.values())
        if self._described is None or self._described[0] != participants:
            facts = messages.facts(mirror.job, mirror.spec, participants, self._continue_from())
            self._described = participants, facts
        return self._described[1]

    def _continue_from(self) -> payload_pb2.PayloadSource | None:
        digest = self._mirror.base_model
        return self._sources[digest] if digest else None

    def _hand_over(self, assignment: records.Assignment) -> None:
        assert self.phase is not None
        assert self.aggregation is not None
        digest = bytes.fromhex(self.phase.delivered[assignment.id].digest)
        self.aggregation.add(assignment.id, assignment.node, digest, unseen=assignment.unseen)

    async def resend(self, session: NodeSession, *, fresh: bool) -> None:
        """A node is (back) here: give it what it still has to do. A new process gets a new fence."""
        phase = self.phase
        if phase is None or self._mirror.job.state is not JobState.RUNNING:
            return
        assignment = phase.of_node(session.node)
        if assignment is None or assignment.state.ended:
            return
        await self._lease_again(phase, assignment, fence=assignment.fence + fresh)
        self.send(session, phase, phase.assignments[assignment.id])

    async def _lease_again(self, phase: OpenPhase, assignment: records.Assignment, *, fence: int) -> None:
        transition = step(ASSIGNMENT, assignment.state, AssignmentEvent.SEND, what="the assignment")
        if (transition.state, fence) != (assignment.state, assignment.fence):
            await self._around.ledger.write(
                lambda tx: tx.update_assignment(assignment.id, state=transition.state, fence=fence), patience=None
            )
            phase.update(assignment.id, state=transition.state, fence=fence)
        phase.renew(assignment.id, self._now + self._around.lease)

    def send(self, session: NodeSession, phase: OpenPhase, assignment: records.Assignment) -> None:
        """Queue an assignment on its node's session."""
        record = phase.record
        personal = record.personal.get(session.node)
        slow = self._around.sessions.slow(session.node)
        sources = self._sources if slow else self._sent
        session.send(
            assign=node_pb2.Assign(
                assignment=assignment.id,
                fence=assignment.fence,
                job=messages.job_description(self._mirror.job, self._mirror.spec, unseen=assignment.unseen),
                phase=record.name,
                round=record.round,
                purpose=record.purpose.value,
                attempt=record.attempt,
                lease_s=self._around.lease,
                deadline_s=max(0.0, phase.deadline - self._now),
                instruction=sources[record.instruction_digest or ""],
                personal=sources[personal] if personal else None,
                traceparent=PHASES.parent(self._mirror.job.id),
                inline_limit=0 if slow else messages.inline_limit(len(phase.assignments)),
            )
        )

    async def _load(self, digests: list[str]) -> None:
        """Make ready what is about to be sent: a store may be slow, and the sessions must not wait for it."""
        missing = [digest for digest in digests if digest not in self._sources]
        limit = messages.inline_limit(len(self.phase.assignments) if self.phase else 0)

        def load() -> dict[str, payload_pb2.PayloadSource]:
            return {
                digest: messages.source(self._around.store, bytes.fromhex(digest), limit=limit) for digest in missing
            }

        if missing:
            self._sent |= await asyncio.to_thread(load)
            self._sources |= {
                digest: messages.for_aggregator(self._sent[digest], bytes.fromhex(digest)) for digest in missing
            }

    def progressed(self, node: str, progress: node_pb2.Progress) -> None:
        """A node showed progress: its lease is renewed. Nothing is written."""
        phase = self.phase
        assignment = phase.assignments.get(progress.assignment) if phase else None
        if phase is None or assignment is None or assignment.node != node or assignment.fence != progress.fence:
            return
        if not assignment.state.ended:
            fraction = min(max(progress.fraction, 0.0), 1.0)
            phase.update(assignment.id, stage=progress.stage[:40], fraction=fraction)
            phase.renew(assignment.id, self._now + self._around.lease)
            self._around.changed(self._mirror.job.id)

    def tell_withdrawn(self, assignments: list[records.Assignment], reason: Reason | None) -> None:
        """Tell nodes that are connected to stop, and why."""
        for item in assignments:
            if session := self._around.sessions.get(item.node):
                session.send(withdraw=node_pb2.Withdraw(assignment=item.id, fence=item.fence, reason=to_proto(reason)))

    def check(self, node: str, assignment_id: str, fence: int) -> records.Assignment:
        """Judge an assignment before its bytes are taken.

        Raises:
            Forbidden: it is another node's.
            OldFence: it was handed on to another agent process.
        """
        assert self.phase is not None
        assignment = self.phase.assignments[assignment_id]
        if assignment.node != node:
            raise Forbidden(f"assignment {assignment_id} is not of node '{node}'.", code="NOT_YOURS")
        if assignment.fence != fence:
            raise OldFence(
                f"assignment {assignment_id} has fence {assignment.fence}, not {fence}: another agent process has it."
            )
        return assignment

    async def delivered(self, items: Sequence[Delivered]) -> list[bool | HanseError]:
        """Record contributions to different assignments, each once, all in one transaction.

        Returns, for each: True, it counts; False, it came too late to count; or why it is not taken: as `check`, or a
        `Conflict` where the phase is over (`PHASE_OVER`), or where the assignment was answered with other bytes.
        """
        answers: list[bool | HanseError] = []
        taken: list[tuple[Delivered, Transition[AssignmentState]]] = []
        for item in items:
            try:
                transition = self._judge(item)
            except HanseError as error:
                answers.append(error)
                continue
            answers.append(transition is None or transition.state is not AssignmentState.LATE)
            if transition is not None:
                taken.append((item, transition))
        if taken:
            await self._record(taken)
        return answers

    def _judge(self, item: Delivered) -> Transition[AssignmentState] | None:
        """What recording a contribution would change; None when it is recorded already. Raises as `delivered`."""
        phase = self.phase
        if phase is None or item.assignment not in phase.assignments:
            raise Conflict("the phase is over.", code="PHASE_OVER")
        assignment = self.check(item.node, item.assignment, item.fence)
        if known := phase.delivered.get(item.assignment):
            if known.digest != item.digest:
                raise Conflict(
                    f"assignment {item.assignment} was answered already, with other bytes.", code="ALREADY_CONTRIBUTED"
                )
            return None
        return step(ASSIGNMENT, assignment.state, AssignmentEvent.DELIVER, what="the assignment")

    async def _record(self, taken: Sequence[tuple[Delivered, Transition[AssignmentState]]]) -> None:
        phase, job = self.phase, self._mirror.job.id
        assert phase is not None

        def work(tx: Transaction) -> list[records.Contribution]:
            return [writes.write_contribution(tx, phase.record, item, transition.state) for item, transition in taken]

        contributions = await self._around.ledger.write(work, patience=None)
        for (item, transition), contribution in zip(taken, contributions, strict=True):
            PHASES.event(job, transition.state.value, item.node)
            assignment = phase.update(item.assignment, state=transition.state, fraction=1.0)
            if Effect.AGGREGATE in transition.effects:
                phase.delivered[item.assignment] = contribution
                self._hand_over(assignment)

    async def settled(self, item: Settled) -> None:
        """A node refused or failed. Raises as `check`."""
        phase = self.phase
        if phase is None or item.assignment not in phase.assignments:
            return
        assignment = self.check(item.node, item.assignment, item.fence)
        if not assignment.state.ended:
            await self.settle(phase, [(assignment, item.event, item.reason)])

    async def settle(self, phase: OpenPhase, items: list[tuple[records.Assignment, AssignmentEvent, Reason]]) -> None:
        """End assignments without a contribution, all in one transaction."""
        ends = [(a, step(ASSIGNMENT, a.state, event, what="the assignment").state, why) for a, event, why in items]

        def work(tx: Transaction) -> None:
            for assignment, state, reason in ends:
                writes.write_settlement(tx, assignment, state, reason)

        await self._around.ledger.write(work, patience=None)
        for assignment, state, reason in ends:
            phase.update(assignment.id, state=state, reason=reason)
            PHASES.event(self._mirror.job.id, state.value, assignment.node)
            self._mirror.log.info("assignment", node=assignment.node, state=state.value, reason=reason.sentence)

    async def lapse(self, phase: OpenPhase) -> None:
        """Give up on those that show no progress, and on all that is open at the deadline."""
        over = self._now >= phase.deadline
        gone = phase.live() if over else phase.overdue(self._now)
        if not gone:
            return
        reasons = [
            planning.absence(item, phase.record, self._around, self._mirror.spec, deadline=over) for item in gone
        ]
        await self.settle(
            phase, [(item, AssignmentEvent.LAPSE, reason) for item, reason in zip(gone, reasons, strict=True)]
        )
        for item, reason in zip(gone, reasons, strict=True):
            if self._around.sessions.get(item.node):  # one that is away lets its assignments run out as well
                self._around.sessions.note_slow(item.node)
            self.tell_withdrawn([item], reason)

    async def acknowledged(self, item: Acknowledged) -> None:
        """The aggregator took a contribution, or rejected it."""
        if item.rejection is not None and self.phase is not None:
            assignment = self.phase.assignments[item.assignment]
            if assignment.state is AssignmentState.DELIVERED:
                await self.settle(self.phase, [(assignment, AssignmentEvent.REJECT, item.rejection)])
        item.source.heard(item.assignment)
