"""Contributions, artifacts, metrics and pictures, in the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, or_, select, update

from hanse.errors import Conflict
from hanse.ledger import models
from hanse.ledger.database import InvariantBroken
from hanse.ledger.records import Artifact, Contribution, Metric, Picture
from hanse.ledger.rows import Reads, Writes
from hanse.ledger.states import JobState
from hanse.method import Scope


class ArtifactReads(Reads):
    """What can be asked about what was contributed and made."""

    def contribution(self, assignment: str) -> Contribution | None:
        """The contribution to an assignment, or None."""
        table = models.contribution
        return self._first(Contribution, self._select(table, Contribution).where(table.c.assignment == assignment))

    def contributions(self, phase: str, *, late: bool | None = None) -> list[Contribution]:
        """The contributions to a phase, in order of node."""
        table = models.contribution
        statement = self._select(table, Contribution).where(table.c.phase == phase).order_by(table.c.node)
        if late is not None:
            statement = statement.where(table.c.late.is_(late))
        return self._all(Contribution, statement)

    def bytes_by_node(self, job: str) -> dict[str, int]:
        """How many bytes each node has contributed to a job."""
        table = models.contribution
        statement = select(table.c.node, func.sum(table.c.size)).where(table.c.job == job).group_by(table.c.node)
        return {node: int(size) for node, size in self._connection.execute(statement)}

    def artifact(self, digest: str) -> Artifact | None:
        """An artifact, or None."""
        return self._first(Artifact, self._select(models.artifact, Artifact).where(models.artifact.c.digest == digest))

    def artifacts(self, job: str) -> list[Artifact]:
        """The artifacts of a job, oldest first."""
        table = models.artifact
        statement = self._select(table, Artifact).where(table.c.job == job)
        return self._all(Artifact, statement.order_by(table.c.created_at, table.c.digest))

    def expired_artifacts(self, now: float, *, limit: int = 1000) -> list[Artifact]:
        """Artifacts whose retention has passed and that were not deleted yet, the longest expired first."""
        table = models.artifact
        expired = (table.c.deleted_at.is_(None), table.c.retain_until.is_not(None), table.c.retain_until <= now)
        statement = self._select(table, Artifact).where(*expired)
        return self._all(Artifact, statement.order_by(table.c.retain_until).limit(limit))

    def still_needed(self, digests: Sequence[str]) -> set[str]:
        """Those of some artifacts that must stay whatever their retention says: two jobs with the same settings make
        the same bytes, and one may still need what the other is done with.

        Needed are the model of every job and, of a job that has not ended, its state and all of its newest phase.
        """
        jobs, phases = models.job, models.phase
        wanted = set(digests)
        result = self._connection.execute(select(jobs.c.model_digest).where(jobs.c.model_digest.in_(wanted)))
        needed = set(result.scalars())
        alive = jobs.c.state.in_([state for state in JobState if not state.ended])
        for job, state in self._connection.execute(select(jobs.c.id, jobs.c.state_digest).where(alive)):
            newest = (
                select(phases).where(phases.c.job == job).order_by(phases.c.ordinal.desc(), phases.c.attempt.desc())
            )
            needed.add(state)
            for phase in self._connection.execute(newest.limit(1)):
                needed |= {phase.instruction_digest, phase.state_digest, *phase.personal.values()}
                needed |= {item.digest for item in self.contributions(phase.id)}
        return needed & wanted

    def recorded_artifacts(self, digests: Sequence[str]) -> set[str]:
        """Those of some digests (a few hundred at most) that the ledger knows, whether their bytes are there or not."""
        table = models.artifact
        return set(self._connection.execute(select(table.c.digest).where(table.c.digest.in_(digests))).scalars())

    def hours_written(self, begin: float, end: float) -> set[int]:
        """The hours since 1970 in which the ledger was written, of those between two instants (seconds)."""
        table = models.event
        moments = self._connection.execute(select(table.c.at).where(table.c.at >= begin, table.c.at <= end))
        return {int(at // 3600) for at in moments.scalars()}

    def metrics(
        self,
        job: str,
        *,
        after_round: int = -1,
        names: Iterable[str] = (),
        scopes: Iterable[Scope] = (),
        limit: int | None = None,
    ) -> list[Metric]:
        """The metrics of a job in order of their recording."""
        table = models.metric
        statement = self._select(table, Metric).where(table.c.job == job).order_by(table.c.id).limit(limit)
        if after_round >= 0:
            statement = statement.where(table.c.round > after_round)
        if wanted := list(names):
            statement = statement.where(table.c.name.in_(wanted))
        if words := [str(scope) for scope in scopes]:
            statement = statement.where(table.c.scope.in_(words))
        return self._all(Metric, statement)

    def latest_metrics(self, job: str) -> list[Metric]:
        """The newest value of each metric of a job, in order of name, scope and node."""
        table = models.metric
        key = (table.c.name, table.c.scope, table.c.node)
        newest = select(func.max(table.c.id)).where(table.c.job == job).group_by(*key)
        metrics = self._all(Metric, self._select(table, Metric).where(table.c.id.in_(newest)))
        return sorted(metrics, key=lambda metric: (metric.name, metric.scope, metric.node or ""))

    def pictures(self, job: str, *, name: str | None = None, limit: int | None = None) -> list[Picture]:
        """The pictures of a job, newest first."""
        table = models.picture
        statement = self._select(table, Picture).where(table.c.job == job).order_by(table.c.id.desc()).limit(limit)
        return self._all(Picture, statement if name is None else statement.where(table.c.name == name))


class ArtifactWrites(ArtifactReads, Writes):
    """What can be written about what was contributed and made."""

    def add_contribution(
        self, *, assignment: str, phase: str, job: str, node: str, digest: str, size: int, late: bool = False
    ) -> Contribution:
        """Record the contribution to an assignment. The same bytes again change nothing.

        Raises:
            Conflict: the assignment was answered with other bytes.
        """
        values = {
            "assignment": assignment,
            "phase": phase,
            "job": job,
            "node": node,
            "digest": digest,
            "size": size,
            "received_at": self.now,
            "late": late,
        }
        if self._insert(models.contribution, values):
            return Contribution(
                assignment=assignment,
                phase=phase,
                job=job,
                node=node,
                digest=digest,
                size=size,
                received_at=self.now,
                late=late,
                deleted_at=None,
            )
        existing = self._one(Contribution, models.contribution, assignment=assignment)
        if existing.digest != digest:
            raise Conflict(
                f"Assignment {assignment} was answered already, with other bytes ({existing.digest[:12]}…).",
                remedy="A contribution counts once: keep the first.",
                code="ALREADY_CONTRIBUTED",
            )
        return existing

    def update_contribution(self, assignment: str, **changes: Any) -> None:
        """Change columns of a contribution. Raises NotFound."""
        self._update(models.contribution, {"assignment": assignment}, changes)

    def add_artifact(
        self, *, digest: str, size: int, kind: str, job: str | None = None, retain_until: float | None = None
    ) -> None:
        """Record that an artifact is stored. One that is known is kept for the longer of the two retentions.

        Raises:
            Conflict: the digest is known with another size.
        """
        values = {"digest": digest, "size": size, "kind": kind, "created_at": self.now, "job": job}
        if self._insert(models.artifact, values | {"retain_until": retain_until}):
            return
        known = self._one(Artifact, models.artifact, digest=digest)
        if known.size != size:
            raise Conflict(f"Artifact {digest} has {known.size} bytes, not {size}.", code="ARTIFACT_SIZE")
        until = retain_until
        if known.deleted_at is None and until is not None:
            until = None if known.retain_until is None else max(known.retain_until, until)
        if (known.retain_until, known.deleted_at) != (until, None):
            self._update(models.artifact, {"digest": digest}, {"retain_until": until, "deleted_at": None})

    def update_artifact(self, digest: str, **changes: Any) -> None:
        """Change columns of an artifact. Raises NotFound."""
        self._update(models.artifact, {"digest": digest}, changes)

    def retain_contributions(self, phase: str, until: float, *, kind: str = "contribution") -> None:
        """Let the artifacts of a phase's contributions go at `until`; only those of this kind, and never earlier."""
        table = models.artifact
        digests = select(models.contribution.c.digest).where(models.contribution.c.phase == phase)
        statement = update(table).where(table.c.digest.in_(digests), table.c.kind == kind).values(retain_until=until)
        statement = statement.where(or_(table.c.retain_until.is_(None), table.c.retain_until < until))
        self._connection.execute(statement)

    def retain(self, digests: Iterable[str | None], until: float, *, kinds: Iterable[str]) -> None:
        """Let artifacts go at `until`; only those of these kinds, and never earlier than was said before."""
        table = models.artifact
        named = [digest for digest in digests if digest]
        statement = update(table).where(table.c.digest.in_(named), table.c.kind.in_(list(kinds)))
        statement = statement.where(or_(table.c.retain_until.is_(None), table.c.retain_until < until))
        self._connection.execute(statement.values(retain_until=until))

    def mark_deleted(self, digests: Sequence[str]) -> None:
        """Record that the bytes of artifacts are gone; digests and sizes stay."""
        for table in (models.artifact, models.contribution):
            statement = update(table).where(table.c.digest.in_(digests), table.c.deleted_at.is_(None))
            self._connection.execute(statement.values(deleted_at=self.now))

    def add_metrics(self, *, job: str, round: int, phase: str, rows: Sequence[Mapping[str, Any]]) -> None:  # noqa: A002
        """Record metrics, all at once. A row has `name`, `value`, `scope`, and may have `node` and `weight`.

        Raises:
            InvariantBroken: a value is not a number.
        """
        for row in rows:
            if math.isnan(row["value"]):
                raise InvariantBroken(f"Metric {row['name']} of phase {phase} is not a number.")
        common = {"job": job, "round": round, "phase": phase, "weight": 0.0}
        full = [common | dict(row) | {"node": row.get("node") or None} for row in rows]
        self._insert_many(models.metric, full)

    def add_picture(
        self,
        *,
        job: str,
        round: int,  # noqa: A002 - the column's name
        phase: str,
        name: str,
        kind: str,
        title: str,
        digest: str,
    ) -> None:
        """Record a picture. Raises Conflict when the phase has one of that name."""
        values = {
            "job": job,
            "round": round,
            "phase": phase,
            "name": name,
            "kind": kind,
            "title": title,
            "digest": digest,
        }
        self._insert(models.picture, values, taken=f"Phase {phase} has a picture {name} already.")
