"""The life of one job: its transitions, each looked up, written to the ledger, and only then acted upon."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hanse.errors import Forbidden, HanseError, NotFound, Owner, Reason, Unauthenticated
from hanse.jobs import JobSpecification
from hanse.ledger import Transaction, View, records
from hanse.ledger.states import JobState, PhaseState
from hanse.v1 import node_pb2
from hanse_coordinator import outcomes, planning, writes
from hanse_coordinator.aggregation import EndlessAggregation, OutcomeReady
from hanse_coordinator.asking import Asking
from hanse_coordinator.collecting import Collector, Mirror, Surroundings
from hanse_coordinator.inputs import Command
from hanse_coordinator.offers import Offers
from hanse_coordinator.phase import OpenPhase
from hanse_coordinator.sessions import NodeSession
from hanse_coordinator.states import JOB, PHASE, Effect, JobEvent, PhaseEvent, step

__all__ = ["JobLife"]

# What speaks of an aggregator's installation, of certificates and settings, not of the job: an operator mends it.
_MENDABLE = (NotFound, Unauthenticated, Forbidden, EndlessAggregation)


class JobLife:
    """What becomes of a job and its phases. `JobRunner` calls it from one task, one call at a time."""

    def __init__(self, around: Surroundings, mirror: Mirror, collector: Collector, asking: Asking) -> None:
        self._around = around
        self._mirror = mirror
        self._collector = collector
        self._asking = asking
        self._log = mirror.log
        self._failed_tries = 0

    @property
    def job(self) -> records.Job:
        """The job as the ledger has it."""
        return self._mirror.job

    @property
    def phase(self) -> OpenPhase | None:
        """The phase that is open."""
        return self._collector.phase

    @property
    def _spec(self) -> JobSpecification:
        return self._mirror.spec

    @property
    def _offers(self) -> Offers:
        return self._mirror.offers

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def advance(self) -> None:
        """Make every transition that time and presence now allow."""
        if self.job.state is JobState.SUBMITTED:
            await self._move(JobEvent.OFFER)
        if self.job.state is JobState.WAITING:
            if self._offers.ready(self._now):
                await self._move(JobEvent.START)
            else:
                await self._asking.explain_waiting()
        if self.job.state is JobState.RUNNING and self.phase is not None:
            if self.phase.record.state is PhaseState.OPEN:
                await self._try_to_assign(self.phase)
            if self.phase is not None and self.phase.record.state is PhaseState.COLLECTING:
                await self._collector.lapse(self.phase)
                await self._close_if_settled(self.phase)

    # ---- Recovery
    async def recover(self) -> None:
        """Go on from what the ledger says."""

        def read(view: View) -> tuple[records.Job, list[records.Participation], records.Phase | None, str | None]:
            job = view.job(self.job.id)
            base = view.job(job.continue_from).model_digest if job.continue_from else None
            return job, view.participations(job.id), view.open_phase(job.id), base

        found = await self._around.ledger.read(read, patience=None)
        self._mirror.job, participants, phase, self._mirror.base_model = found
        self._offers.participants = {item.node: item for item in participants}
        if self.job.state is JobState.WAITING:
            await self._perform(Effect.OFFER_JOB)
        if phase is None:
            if self.job.state is JobState.RUNNING:
                await self._proceed()
            return
        await self._rebuild(phase)

    async def _rebuild(self, phase: records.Phase) -> None:
        def read(view: View) -> tuple[list[records.Assignment], list[records.Contribution]]:
            return view.assignments(phase.id), view.contributions(phase.id, late=False)

        assignments, contributions = await self._around.ledger.read(read, patience=None)
        left = (phase.deadline_at or 0) - phase.opened_at
        open_phase = OpenPhase(phase, assignments, deadline=self._now + max(left, self._around.lease))
        open_phase.delivered = {item.assignment: item for item in contributions}
        self._collector.phase = open_phase
        for item in open_phase.live():
            open_phase.renew(item.id, self._now + self._around.lease)
        if self.job.state is JobState.RUNNING:
            await self._collector.begin()
            for session in self._around.sessions:
                await self._collector.resend(session, fresh=False)

    # ---- The job's transitions
    async def stuck(self, reason: Reason) -> None:
        """The job cannot go on: pause it, where its state allows that."""
        if (self.job.state, JobEvent.STUCK) in JOB:
            await self._move(JobEvent.STUCK, reason=reason)

    async def _move(
        self, event: JobEvent, *, reason: Reason | None = None, actor: str = "coordinator", why: str = ""
    ) -> None:
        transition = step(JOB, self.job.state, event, what=f"job '{self.job.name}'")
        ending = None
        if Effect.END_PHASE in transition.effects:
            ending = PhaseEvent.STOP
        elif Effect.SUSPEND_PHASE in transition.effects:
            ending = PhaseEvent.SUSPEND
        phase = self.phase
        phase_step = step(PHASE, phase.record.state, ending, what="the phase") if phase and ending else None

        def work(tx: Transaction) -> tuple[records.Job, list[records.Assignment]]:
            withdrawn: list[records.Assignment] = []
            if phase and phase_step and phase_step.state.ended:
                withdrawn = writes.write_phase_end(
                    tx, phase.record, phase_step.state, reason, retention_s=self._retention
                )
            body = {"why": why} if why else None
            job = writes.write_job(
                tx, self.job, transition.state, actor=actor, reason=reason, retention_s=self._retention, body=body
            )
            return job, withdrawn

        self._mirror.job, withdrawn = await self._around.ledger.write(work, patience=None)
        self._log.info("job", state=self.job.state.value, reason=reason.sentence if reason else None)
        if phase_step and phase_step.state.ended:
            self._collector.leave(withdrawn, reason)
        elif ending:
            self._collector.drop_aggregation()
        for effect in transition.effects:
            await self._perform(effect)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Effect.OFFER_JOB:
                for session in self._around.sessions:
                    await self._asking.offer(session, fresh=True)
            case Effect.PROCEED:
                await self._proceed()
            case Effect.TELL_NODES:
                ended = node_pb2.JobEnded(job=self.job.id, state=self.job.state.value)
                for session in self._around.sessions:
                    if session.node in self._offers.participants:
                        session.send(job_ended=ended)
            case _:
                pass  # written with the transition itself

    async def _proceed(self) -> None:
        """Begin the job, or go on where it was stopped."""
        self._failed_tries = 0
        if self.phase is not None:
            await self._collector.begin()
            return
        last = await self._around.ledger.read(lambda view: view.last_phase(self.job.id), patience=None)
        if last is None or last.state is PhaseState.CLOSED:
            await self._collector.aggregate(None)
            assert self._collector.aggregation is not None
            self._collector.aggregation.finish()
            return
        await self._open(planning.again(last, self._deadline))

    @property
    def _retention(self) -> float:
        return self._around.settings.retention.total_seconds()

    @property
    def _deadline(self) -> float:
        return self._spec.selection.deadline.total_seconds()

    async def command(self, item: Command) -> None:
        """An operator pauses, resumes or cancels the job.

        Raises:
            Conflict: its state does not allow it.
        """
        said = f": {item.why}" if item.why else "."
        code, remedy = {
            JobEvent.PAUSE: ("PAUSED_BY_OPERATOR", f"Go on with `hanse job resume {self.job.name}`."),
            JobEvent.CANCEL: ("CANCELLED_BY_OPERATOR", ""),
        }.get(item.event, ("", ""))
        reason = None
        if code:
            verb = "paused" if item.event is JobEvent.PAUSE else "cancelled"
            reason = Reason(
                code=code, sentence=f"{item.actor} {verb} the job{said}", owner=Owner.OPERATOR, remedy=remedy
            )
        await self._move(item.event, reason=reason, actor=item.actor, why=item.why)

    # ---- Nodes
    async def connected(self, session: NodeSession, *, fresh: bool) -> None:
        """A node is here: offer it the job, and give it what it still has to do."""
        await self._asking.offer(session, fresh=fresh)
        await self._collector.resend(session, fresh=fresh)

    # ---- The phase's transitions
    async def _try_to_assign(self, phase: OpenPhase) -> None:
        opening = self._plan(planning.again(phase.record, self._deadline, attempt=phase.record.attempt))
        if opening.assigned or opening.quorum == 0:  # a phase that nobody must answer does not wait for anybody
            transition = step(PHASE, phase.record.state, PhaseEvent.ASSIGN, what="the phase")

            def work(tx: Transaction) -> tuple[records.Phase, list[records.Assignment]]:
                tx.update_phase(phase.record.id, state=transition.state, quorum=opening.quorum)
                assigned = writes.write_assignments(tx, self.job, phase.record.id, opening, lease_s=self._around.lease)
                return tx.phase(phase.record.id), assigned

            record, assignments = await self._around.ledger.write(work, patience=None)
            await self._enter(record, assignments)
        elif self._now >= phase.deadline:
            await self._give_up(phase, planning.too_few(opening, self._spec))

    async def _close_if_settled(self, phase: OpenPhase) -> None:
        aggregation = self._collector.aggregation
        if phase.live() or aggregation is None or any(map(aggregation.waits_for, phase.counted())):
            return
        if phase.valid() < phase.record.quorum:
            await self._give_up(phase, phase.shortfall())
            return
        transition = step(PHASE, phase.record.state, PhaseEvent.CLOSE, what="the phase")
        await self._around.ledger.write(
            lambda tx: tx.update_phase(phase.record.id, state=transition.state), patience=None
        )
        phase.record = replace(phase.record, state=transition.state)
        aggregation.finish()

    async def _give_up(self, phase: OpenPhase, reason: Reason) -> None:
        """Too few contributed: try again with who is connected now, or pause with the reason."""
        self._failed_tries += 1
        if self._failed_tries >= self._spec.selection.tries:
            await self._move(JobEvent.STUCK, reason=reason)
            return
        transition = step(PHASE, phase.record.state, PhaseEvent.GIVE_UP, what="the phase")
        opening = self._plan(planning.again(phase.record, self._deadline))

        def work(tx: Transaction) -> tuple[list[records.Assignment], records.Phase, list[records.Assignment]]:
            withdrawn = writes.write_phase_end(tx, phase.record, transition.state, reason, retention_s=self._retention)
            record, assignments = writes.write_opening(tx, self.job, opening, lease_s=self._around.lease)
            return withdrawn, record, assignments

        withdrawn, record, assignments = await self._around.ledger.write(work, patience=None)
        self._log.warning("phase abandoned", phase=phase.record.name, round=phase.record.round, reason=reason.sentence)
        self._collector.tell_withdrawn(withdrawn, reason)
        await self._enter(record, assignments)

    def _plan(self, opening: writes.Opening) -> writes.Opening:
        return planning.fill(opening, self._spec, self._offers, self._around.sessions)

    async def _open(self, opening: writes.Opening) -> None:
        planned = self._plan(opening)
        record, assignments = await self._around.ledger.write(
            lambda tx: writes.write_opening(tx, self.job, planned, lease_s=self._around.lease), patience=None
        )
        await self._enter(record, assignments)

    async def _enter(self, record: records.Phase, assignments: list[records.Assignment]) -> None:
        """The ledger has the phase: go to work on it."""
        self._mirror.job = replace(self.job, round=record.round)
        await self._collector.enter(OpenPhase(record, assignments, deadline=self._now + self._deadline))

    # ---- Outcomes
    async def outcome(self, item: OutcomeReady) -> None:
        """A phase is aggregated: close it, and open the next one or end the job, in one transaction."""
        around, phase = self._around, self.phase
        try:
            stored = await asyncio.to_thread(outcomes.store, around.store, item.outcome, phase)
        except HanseError as error:  # a full disk pauses the job; an outcome that contradicts itself ends it
            await self.aggregation_failed(error)
            return
        opening = None
        if item.outcome.HasField("next_phase"):
            ordinal = phase.record.ordinal + 1 if phase else 1
            opening = self._plan(planning.first(item.outcome.next_phase, stored, ordinal, self._deadline))
        if phase:
            step(PHASE, phase.record.state, PhaseEvent.OUTCOME, what="the phase")
        finish = None if opening else step(JOB, self.job.state, JobEvent.FINISH, what=f"job '{self.job.name}'")

        def work(tx: Transaction) -> tuple[records.Job, records.Phase | None, list[records.Assignment]]:
            writes.write_outcome(
                tx,
                self.job,
                phase.record if phase else None,
                phase.assignments.values() if phase else (),
                phase.delivered if phase else {},
                stored,
                retention_s=self._retention,
            )
            if opening is None:
                assert finish is not None
                ended = tx.job(self.job.id)
                job = writes.write_job(
                    tx, ended, finish.state, actor="coordinator", reason=None, retention_s=self._retention
                )
                return job, None, []
            record, assignments = writes.write_opening(tx, self.job, opening, lease_s=around.lease)
            return tx.job(self.job.id), record, assignments

        self._mirror.job, record, assignments = await around.ledger.write(work, patience=None)
        self._failed_tries = 0
        if record is None:
            self._collector.leave([], None)
            self._log.info("job", state=self.job.state.value)
            for effect in finish.effects if finish else ():
                await self._perform(effect)
            return
        await self._enter(record, assignments)

    async def aggregation_failed(self, error: HanseError) -> None:
        """No outcome: the job is paused where an operator can mend it, and has failed where nobody can."""
        mendable = error.retryable or isinstance(error, _MENDABLE)
        await self._move(JobEvent.STUCK if mendable else JobEvent.BREAK, reason=error.reason)
