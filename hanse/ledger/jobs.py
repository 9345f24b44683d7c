"""Jobs, who takes part in them, and their rounds, in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, or_, select

from hanse.errors import NotFound, Reason
from hanse.ledger import models
from hanse.ledger.records import Job, Participation, Round
from hanse.ledger.rows import Reads, Writes, new_id
from hanse.ledger.states import Decision, JobState


class JobReads(Reads):
    """What can be asked about jobs."""

    def job(self, job_id: str) -> Job:
        """A job. Raises NotFound."""
        return self._one(Job, models.job, id=job_id)

    def find_job(self, job_id: str) -> Job | None:
        """A job, or None."""
        return self._first(Job, self._select(models.job, Job).where(models.job.c.id == job_id))

    def job_by_name(self, name: str) -> Job:
        """The newest job of that name. Raises NotFound."""
        table = models.job
        statement = self._select(table, Job).where(table.c.name == name)
        found = self._first(Job, statement.order_by(table.c.submitted_at.desc(), table.c.id.desc()).limit(1))
        if found is None:
            raise NotFound(f"There is no job named {name}.", remedy="`hanse job list` shows them.")
        return found

    def jobs(
        self, *, after: str = "", limit: int | None = None, states: Iterable[JobState] = (), oldest_first: bool = False
    ) -> list[Job]:
        """Jobs, newest first, from the one after the job `after` on. Raises NotFound when `after` is unknown."""
        table = models.job
        statement = self._select(table, Job).limit(limit)
        if words := [str(word) for word in states]:
            statement = statement.where(table.c.state.in_(words))
        if after:
            at, job_id = self._job_place(after)
            older = or_(table.c.submitted_at < at, and_(table.c.submitted_at == at, table.c.id < job_id))
            newer = or_(table.c.submitted_at > at, and_(table.c.submitted_at == at, table.c.id > job_id))
            statement = statement.where(newer if oldest_first else older)
        columns = (table.c.submitted_at, table.c.id)
        return self._all(Job, statement.order_by(*(columns if oldest_first else [c.desc() for c in columns])))

    def _job_place(self, job_id: str) -> tuple[float, str]:
        job = self.job(job_id)
        return job.submitted_at, job.id

    def participation(self, job: str, node: str) -> Participation | None:
        """What a node said to a job, or None when it was never offered."""
        table = models.participation
        statement = self._select(table, Participation).where(table.c.job == job, table.c.node == node)
        return self._first(Participation, statement)

    def participations(self, job: str, *, decisions: Iterable[Decision] = ()) -> list[Participation]:
        """Who was offered a job and what they said, in order of node."""
        table = models.participation
        statement = self._select(table, Participation).where(table.c.job == job).order_by(table.c.node)
        if words := [str(word) for word in decisions]:
            statement = statement.where(table.c.decision.in_(words))
        return self._all(Participation, statement)

    def participations_of(self, node: str, *, states: Iterable[JobState] = ()) -> list[Participation]:
        """The jobs that a node was offered, of those in `states` (empty: all), in order of job."""
        table = models.participation
        statement = self._select(table, Participation).where(table.c.node == node).order_by(table.c.job)
        if words := [str(word) for word in states]:
            wanted = select(models.job.c.id).where(models.job.c.state.in_(words))
            statement = statement.where(table.c.job.in_(wanted))
        return self._all(Participation, statement)

    def round(self, job: str, number: int) -> Round | None:
        """A round, or None before it was opened."""
        table = models.round
        return self._first(Round, self._select(table, Round).where(table.c.job == job, table.c.number == number))

    def rounds(self, job: str, *, after: int = -1, limit: int | None = None) -> list[Round]:
        """Rounds in order, from the one after `after` on."""
        table = models.round
        statement = self._select(table, Round).where(table.c.job == job, table.c.number > after)
        return self._all(Round, statement.order_by(table.c.number).limit(limit))


class JobWrites(JobReads, Writes):
    """What can be written about jobs."""

    def add_job(
        self,
        *,
        name: str,
        method: str,
        dataset: str,
        specification: str,
        submitted_by: str,
        rounds: int,
        seed: int = 0,
        state: JobState = JobState.SUBMITTED,
        continue_from: str | None = None,
        reason: Reason | None = None,
        id: str | None = None,  # noqa: A002 - the column's name
        **more: Any,
    ) -> str:
        """Add a job and return its id; `more` names further columns. Raises Conflict when the id is taken."""
        job_id = id or new_id()
        values: dict[str, Any] = {
            "id": job_id,
            "name": name,
            "method": method,
            "dataset": dataset,
            "specification": specification,
            "submitted_by": submitted_by,
            "submitted_at": self.now,
            "state": state,
            "reason": reason,
            "since": self.now,
            "round": 0,
            "rounds": rounds,
            "seed": seed,
            "continue_from": continue_from,
        }
        self._insert(models.job, values | more, taken=f"There is a job {job_id} already.")
        return job_id

    def update_job(self, job_id: str, **changes: Any) -> None:
        """Change columns of a job; a new `state` also sets `since`, and `ended_at` at the end. Raises NotFound."""
        if "state" in changes:
            ended = self.now if JobState(changes["state"]).ended else None
            changes = {"since": self.now, "ended_at": ended} | changes
        self._update(models.job, {"id": job_id}, changes)

    def set_participation(
        self,
        *,
        job: str,
        node: str,
        decision: Decision,
        unseen: bool | None = None,
        dataset: Mapping[str, Any] | None = None,
        reason: Reason | None = None,
    ) -> None:
        """Record that a job was offered to a node, or what the node said.

        For a node that is recorded already, `unseen` and `dataset` stay as they are unless given.
        """
        values: dict[str, Any] = {"decision": decision, "reason": reason, "at": self.now}
        if dataset is not None:
            values["dataset"] = dataset
        if unseen is not None:
            values["unseen"] = unseen
        key = {"job": job, "node": node}
        if not self._insert(models.participation, {"unseen": False} | values | key):
            self._update(models.participation, key, values)

    def add_round(self, *, job: str, number: int, cohort: Sequence[str]) -> None:
        """Open a round. Raises Conflict when it is there already."""
        values = {"job": job, "number": number, "cohort": tuple(cohort), "opened_at": self.now}
        self._insert(models.round, values, taken=f"Round {number} of job {job} was opened already.")

    def update_round(self, job: str, number: int, **changes: Any) -> None:
        """Change columns of a round. Raises NotFound."""
        self._update(models.round, {"job": job, "number": number}, changes)
