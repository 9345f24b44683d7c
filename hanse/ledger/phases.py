"""Phases and their assignments, in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Integer, func, select, text

from hanse.ledger import models
from hanse.ledger.columns import field_names, from_row, to_columns
from hanse.ledger.records import Assignment, Phase, PhaseTally
from hanse.ledger.rows import Reads, Writes, new_id
from hanse.ledger.states import AssignmentState, PhaseState
from hanse.method import Audience, Purpose

_LIVE_PHASE = text(models.LIVE_PHASE)
_LIVE_ASSIGNMENT = text(models.LIVE_ASSIGNMENT)


class PhaseReads(Reads):
    """What can be asked about phases and assignments."""

    def phase(self, phase_id: str) -> Phase:
        """A phase. Raises NotFound."""
        return self._one(Phase, models.phase, id=phase_id)

    def find_phase(self, phase_id: str) -> Phase | None:
        """A phase, or None."""
        return self._first(Phase, self._select(models.phase, Phase).where(models.phase.c.id == phase_id))

    def open_phase(self, job: str) -> Phase | None:
        """The phase that a job is in, or None between phases."""
        table = models.phase
        return self._first(Phase, self._select(table, Phase).where(table.c.job == job, _LIVE_PHASE))

    def last_phase(self, job: str) -> Phase | None:
        """The newest phase of a job, open or not."""
        table = models.phase
        order = (table.c.ordinal.desc(), table.c.attempt.desc())
        return self._first(Phase, self._select(table, Phase).where(table.c.job == job).order_by(*order).limit(1))

    def phases(self, job: str, *, limit: int | None = None) -> list[Phase]:
        """The last phases of a job, in order."""
        table = models.phase
        order = (table.c.ordinal.desc(), table.c.attempt.desc())
        statement = self._select(table, Phase).where(table.c.job == job).order_by(*order).limit(limit)
        return self._all(Phase, statement)[::-1]

    def phase_tallies(self, job: str, *, limit: int | None = None) -> list[PhaseTally]:
        """The last phases of a job, in order, and how many of their assignments were delivered."""
        phases = self.phases(job, limit=limit)
        table = models.assignment
        delivered = func.sum((table.c.state == AssignmentState.DELIVERED.value).cast(Integer))
        statement = select(table.c.phase, func.count(), delivered).group_by(table.c.phase)
        statement = statement.where(table.c.phase.in_([phase.id for phase in phases]))
        counts = {phase: (assigned, done) for phase, assigned, done in self._connection.execute(statement)}
        tallies = []
        for phase in phases:
            assigned, done = counts.get(phase.id, (0, 0))
            tallies.append(PhaseTally(phase=phase, assigned=assigned, delivered=int(done)))
        return tallies

    def assignment(self, assignment_id: str) -> Assignment:
        """An assignment. Raises NotFound."""
        return self._one(Assignment, models.assignment, id=assignment_id)

    def find_assignment(self, assignment_id: str) -> Assignment | None:
        """An assignment, or None."""
        table = models.assignment
        return self._first(Assignment, self._select(table, Assignment).where(table.c.id == assignment_id))

    def assignments(self, phase: str, *, states: Iterable[AssignmentState] = ()) -> list[Assignment]:
        """The assignments of a phase, in order of node."""
        table = models.assignment
        statement = self._select(table, Assignment).where(table.c.phase == phase).order_by(table.c.node)
        if words := [str(word) for word in states]:
            statement = statement.where(table.c.state.in_(words))
        return self._all(Assignment, statement)

    def live_assignments(self, *, node: str | None = None) -> list[Assignment]:
        """All assignments that are not over (of a node), in order of node and id."""
        table = models.assignment
        statement = self._select(table, Assignment).where(_LIVE_ASSIGNMENT)
        if node is not None:
            statement = statement.where(table.c.node == node)
        return self._all(Assignment, statement.order_by(table.c.node, table.c.id))

    def assignments_of(self, node: str, *, limit: int | None = None) -> list[Assignment]:
        """A node's assignments, newest first."""
        table = models.assignment
        statement = self._select(table, Assignment).where(table.c.node == node)
        order = (table.c.offered_at.desc(), table.c.id.desc())
        return self._all(Assignment, statement.order_by(*order).limit(limit))


class PhaseWrites(PhaseReads, Writes):
    """What can be written about phases and assignments."""

    def add_phase(
        self,
        *,
        job: str,
        round: int,  # noqa: A002 - the column's name
        ordinal: int,
        name: str,
        purpose: Purpose,
        audience: Audience,
        quorum: int,
        attempt: int = 1,
        state: PhaseState = PhaseState.OPEN,
        instruction_digest: str | None = None,
        personal: Mapping[str, str] | None = None,
        state_digest: str | None = None,
        deadline_at: float | None = None,
        id: str | None = None,  # noqa: A002 - the column's name
    ) -> str:
        """Open a phase and return its id.

        Raises:
            Conflict: the job is in another phase (end that one first), or had this ordinal and attempt.
        """
        phase_id = id or new_id()
        values = {
            "id": phase_id,
            "job": job,
            "round": round,
            "ordinal": ordinal,
            "attempt": attempt,
            "name": name,
            "purpose": purpose,
            "audience": audience,
            "state": state,
            "instruction_digest": instruction_digest,
            "personal": personal or {},
            "state_digest": state_digest,
            "quorum": quorum,
            "opened_at": self.now,
            "deadline_at": deadline_at,
        }
        taken = f"Job {job} is in another phase, or had phase {ordinal} (attempt {attempt}) already."
        self._insert(models.phase, values, taken=taken)
        return phase_id

    def update_phase(self, phase_id: str, **changes: Any) -> None:
        """Change columns of a phase; a `state` that ends it also sets `closed_at`. Raises NotFound."""
        if "state" in changes and PhaseState(changes["state"]).ended:
            changes = {"closed_at": self.now} | changes
        self._update(models.phase, {"id": phase_id}, changes)

    def add_assignments(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Add assignments, all at once, and return their ids.

        A row needs `phase`, `job` and `node`, and may name any other column.

        Raises:
            Conflict: a node has an assignment of that phase already.
        """
        blank = dict.fromkeys(field_names(Assignment))
        defaults = {
            "unseen": False,
            "fence": 1,
            "state": AssignmentState.PENDING,
            "stage": "",
            "fraction": 0.0,
            "offered_at": self.now,
        }
        full = [blank | {"id": new_id()} | defaults | dict(row) for row in rows]
        self._insert_many(models.assignment, full)
        return [str(row["id"]) for row in full]

    def update_assignment(self, assignment_id: str, **changes: Any) -> None:
        """Change columns of an assignment; a `state` that ends it also sets `ended_at`. Raises NotFound."""
        if "state" in changes and AssignmentState(changes["state"]).ended:
            changes = {"ended_at": self.now} | changes
        self._update(models.assignment, {"id": assignment_id}, changes)

    def end_live_assignments(self, phase: str, **changes: Any) -> list[Assignment]:
        """Give all assignments of a phase that are not over a `state` that ends them; return them as they are now."""
        table = models.assignment
        live = (table.c.phase == phase, _LIVE_ASSIGNMENT)
        columns = [table.c[name] for name in field_names(Assignment)]
        values = to_columns({"ended_at": self.now} | changes)
        statement = table.update().where(*live).values(values).returning(*columns)
        ended = [from_row(Assignment, row) for row in self._connection.execute(statement)]
        return sorted(ended, key=lambda assignment: assignment.node)
