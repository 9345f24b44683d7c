"""Jobs whose stored specification this version cannot read: set aside with a reason, so that all others go on."""

from __future__ import annotations

from pydantic import ValidationError

from hanse.errors import Owner, Reason
from hanse.jobs import JobSpecification
from hanse.ledger import JobState, Transaction, records
from hanse.logs import logger
from hanse.settings import explain
from hanse_coordinator import writes
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.states import JOB, PHASE, JobEvent, PhaseEvent, step

__all__ = ["cancel", "set_aside"]


async def set_aside(ledger: LedgerThread, job: records.Job, error: ValidationError, *, retention_s: float) -> None:
    """Pause such a job. A version that can read it goes on with it once somebody resumes it."""
    reason = Reason(
        code="SPECIFICATION_UNREADABLE",
        sentence=f"this version of the coordinator cannot read the job's specification: "
        f"{explain(error, JobSpecification)}",
        owner=Owner.OPERATOR,
        remedy="Run the version to which it was submitted and resume it, or cancel it.",
    )
    logger(job=job.id, name=job.name).error("job set aside", reason=reason.sentence)
    if job.state is not JobState.PAUSED or job.reason != reason:
        await ledger.write(lambda tx: _end(tx, job, JobState.PAUSED, PhaseEvent.SUSPEND, reason, retention_s))


async def cancel(ledger: LedgerThread, job: records.Job, *, actor: str, why: str, retention_s: float) -> records.Job:
    """Cancel a job that was set aside."""
    transition = step(JOB, job.state, JobEvent.CANCEL, what=f"job '{job.name}'")
    said = f": {why}" if why else "."
    reason = Reason(code="CANCELLED_BY_OPERATOR", sentence=f"{actor} cancelled the job{said}", owner=Owner.OPERATOR)
    return await ledger.write(
        lambda tx: _end(tx, job, transition.state, PhaseEvent.STOP, reason, retention_s, actor=actor)
    )


def _end(
    tx: Transaction,
    job: records.Job,
    state: JobState,
    ending: PhaseEvent,
    reason: Reason,
    retention_s: float,
    *,
    actor: str = "coordinator",
) -> records.Job:
    phase = tx.open_phase(job.id)
    if phase is not None:
        ended = step(PHASE, phase.state, ending, what="the phase").state
        if ended.ended:
            writes.write_phase_end(tx, phase, ended, reason, retention_s=retention_s)
    return writes.write_job(tx, job, state, actor=actor, reason=reason, retention_s=retention_s)
