"""One trace for each phase: the coordinator's span, of which the aggregator's and the agents' are children."""

from __future__ import annotations

from hanse.ledger import records
from hanse.observability import tracing
from hanse.observability.tracing import NOTHING, Span

__all__ = ["PhaseTraces"]


class PhaseTraces:
    """The spans of the phases that are open, one a job. Nothing is kept while tracing is off."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, Span]] = {}

    def begin(self, job: records.Job, phase: records.Phase, assignments: int) -> None:
        """A phase collects; one that was open before in the job is over. The same phase again changes nothing."""
        known = self._open.get(job.id)
        if known is not None and known[0] == phase.id:
            return
        self.end(job.id)
        span = tracing.start(
            f"phase {phase.name}",
            job=job.id,
            job_name=job.name,
            method=job.method,
            round=phase.round,
            phase=phase.name,
            purpose=phase.purpose.value,
            attempt=phase.attempt,
            assignments=assignments,
        )
        if span is not NOTHING:
            self._open[job.id] = (phase.id, span)

    def end(self, job: str) -> None:
        """The job's phase is over."""
        if (known := self._open.pop(job, None)) is not None:
            known[1].end()

    def end_all(self) -> None:
        """This program ends, or leads no longer."""
        for job in list(self._open):
            self.end(job)

    def event(self, job: str, name: str, node: str) -> None:
        """Something came of a node's assignment."""
        self._of(job).event(name, node=node)

    def parent(self, job: str) -> str:
        """What the spans of other programs name as their parent; empty while tracing is off."""
        return self._of(job).traceparent

    def _of(self, job: str) -> Span:
        return self._open[job][1] if job in self._open else NOTHING


PHASES = PhaseTraces()
