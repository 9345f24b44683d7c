"""The tables of the ledger.

Instants are seconds since 1970, UTC, as double precision: SQLite drops time zones, and a number reads the same
in every database. Digests and serials are lower-case hex; only the hashes of the chain are raw bytes. A column
that holds a state has a CHECK with the closed set of its words.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    text,
    types,
)

from hanse.ledger.states import ROLES, AssignmentState, Decision, JobState, PhaseState, Trust
from hanse.method import Audience, Purpose, Scope

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# Names and ids sort by code point, in every database and as in Python, so that order never depends on a locale.
Text = types.Text().with_variant(types.Text(collation="C"), "postgresql")
Digest = String(64)
BigId = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER counts by itself in SQLite
Json = JSON(none_as_null=True)


def _one_of(column: str, words: type[StrEnum] | tuple[str, ...]) -> CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


def _live(words: type[PhaseState] | type[AssignmentState]) -> str:
    return "state IN ({})".format(", ".join(f"'{word}'" for word in words if not word.ended))


# Conditions of partial indexes. SQLite uses such an index only for a query that has its very words.
LIVE_PHASE = _live(PhaseState)
LIVE_ASSIGNMENT = _live(AssignmentState)


def _need(name: str, kind: Any, *args: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, *args, nullable=False, **options)


node = Table(
    "node",
    metadata,
    Column("name", Text, primary_key=True),
    _need("trust", String(16)),
    _need("labels", Json),
    _need("created_at", Double),
    Column("approved_at", Double),
    Column("approved_by", Text),
    Column("revoked_at", Double),
    Column("revoked_by", Text),
    Column("reason", Json),
    Column("fingerprint", Text),
    Column("pending_fingerprint", Text),
    Column("pending_request", Text),
    Column("program", Text),
    _need("methods", Json),
    _need("datasets", Json),
    Column("policy_digest", Digest),
    _need("online", Boolean),
    Column("last_seen_at", Double),
    _one_of("trust", Trust),
)

certificate = Table(
    "certificate",
    metadata,
    Column("serial", Text, primary_key=True),
    _need("identity", Text),
    Column("node", Text, ForeignKey("node.name")),
    _need("fingerprint", Text),
    _need("not_before", Double),
    _need("not_after", Double),
    _need("issued_at", Double),
    Column("revoked_at", Double),
    Index(None, "node", "not_after"),
    Index(None, "identity"),
)

invitation = Table(
    "invitation",
    metadata,
    Column("id", Text, primary_key=True),
    _need("node", Text, ForeignKey("node.name")),
    _need("created_at", Double),
    _need("created_by", Text),
    _need("expires_at", Double),
    _need("pre_approved", Boolean),
    _need("again", Boolean),
    Column("certificate_serial", Text),
    Column("used_at", Double),
    Column("used_key_sha256", Digest),
    UniqueConstraint("certificate_serial"),
    Index(None, "node"),
)

operator_token = Table(
    "operator_token",
    metadata,
    Column("id", Text, primary_key=True),
    _need("name", Text),
    _need("role", String(16)),
    _need("secret_hash", Text),
    _need("created_at", Double),
    _need("created_by", Text),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    _one_of("role", ROLES),
    UniqueConstraint("secret_hash"),
)

lease = Table(
    "lease",
    metadata,
    Column("name", String(32), primary_key=True),
    _need("holder", Text),
    _need("epoch", BigInteger),
    Column("expires_at", Double),  # empty: held until somebody else takes it (one process, embedded)
)

job = Table(
    "job",
    metadata,
    Column("id", Text, primary_key=True),
    _need("name", Text),
    _need("method", Text),
    _need("dataset", Text),
    _need("specification", Text),
    _need("submitted_by", Text),
    _need("submitted_at", Double),
    _need("state", String(16)),
    Column("reason", Json),
    _need("since", Double),
    Column("ended_at", Double),
    _need("round", Integer),
    _need("rounds", Integer),
    _need("seed", BigInteger),
    Column("state_digest", Digest),
    Column("model_digest", Digest),
    Column("continue_from", Text, ForeignKey("job.id")),
    Column("resume_state", String(16)),
    _one_of("state", JobState),
    _one_of("resume_state", JobState),
    Index(None, "name", "submitted_at"),
    Index(None, "submitted_at", "id"),
    Index(None, "state", "submitted_at"),
    Index(None, "model_digest"),
)

participation = Table(
    "participation",
    metadata,
    Column("job", Text, ForeignKey("job.id"), primary_key=True),
    Column("node", Text, ForeignKey("node.name"), primary_key=True),
    _need("decision", String(20)),
    Column("reason", Json),
    _need("unseen", Boolean),
    Column("dataset", Json),
    _need("at", Double),
    _one_of("decision", Decision),
    Index(None, "node", "job"),
)

round = Table(  # noqa: A001 - the vocabulary's word
    "round",
    metadata,
    Column("job", Text, ForeignKey("job.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _need("cohort", Json),
    _need("opened_at", Double),
    Column("closed_at", Double),
)

phase = Table(
    "phase",
    metadata,
    Column("id", Text, primary_key=True),
    _need("job", Text, ForeignKey("job.id")),
    _need("round", Integer),
    _need("ordinal", Integer),
    _need("attempt", Integer),
    _need("name", Text),
    _need("purpose", String(16)),
    _need("audience", String(16)),
    _need("state", String(16)),
    Column("instruction_digest", Digest),
    _need("personal", Json),
    Column("state_digest", Digest),
    _need("quorum", Integer),
    _need("opened_at", Double),
    Column("deadline_at", Double),
    Column("closed_at", Double),
    Column("reason", Json),
    _one_of("purpose", Purpose),
    _one_of("audience", Audience),
    _one_of("state", PhaseState),
    UniqueConstraint("job", "ordinal", "attempt"),
    # A job is in one phase at a time.
    Index("uq_phase_open", "job", unique=True, **_where(LIVE_PHASE)),
)

assignment = Table(
    "assignment",
    metadata,
    Column("id", Text, primary_key=True),
    _need("phase", Text, ForeignKey("phase.id")),
    _need("job", Text, ForeignKey("job.id")),
    _need("node", Text, ForeignKey("node.name")),
    _need("unseen", Boolean),
    _need("fence", BigInteger),
    _need("state", String(16)),
    _need("stage", Text),
    _need("fraction", Double),
    _need("offered_at", Double),
    Column("lease_expires_at", Double),
    Column("ended_at", Double),
    Column("reason", Json),
    _one_of("state", AssignmentState),
    UniqueConstraint("phase", "node"),
    Index("ix_assignment_live", "node", **_where(LIVE_ASSIGNMENT)),
    Index(None, "node", "offered_at"),
)

contribution = Table(
    "contribution",
    metadata,
    # The primary key is what makes it one contribution per assignment.
    Column("assignment", Text, ForeignKey("assignment.id"), primary_key=True),
    _need("phase", Text, ForeignKey("phase.id")),
    _need("job", Text, ForeignKey("job.id")),
    _need("node", Text, ForeignKey("node.name")),
    _need("digest", Digest),
    _need("size", BigInteger),
    _need("received_at", Double),
    _need("late", Boolean),
    Column("deleted_at", Double),
    Index(None, "phase"),
    Index(None, "job", "node", "size"),
    Index(None, "node", "received_at", postgresql_include=["job", "size"]),  # sums without a look at the rows
    Index(None, "digest"),
)

artifact = Table(
    "artifact",
    metadata,
    Column("digest", Digest, primary_key=True),
    _need("size", BigInteger),
    _need("kind", Text),
    _need("created_at", Double),
    Column("job", Text, ForeignKey("job.id")),
    Column("retain_until", Double),  # empty: kept
    Column("deleted_at", Double),
    Index("ix_artifact_expiring", "retain_until", **_where("deleted_at IS NULL AND retain_until IS NOT NULL")),
    Index(None, "job"),
)

metric = Table(
    "metric",
    metadata,
    Column("id", BigId, primary_key=True),
    _need("job", Text, ForeignKey("job.id")),
    _need("round", Integer),
    _need("phase", Text, ForeignKey("phase.id")),
    Column("node", Text, ForeignKey("node.name")),
    _need("scope", String(16)),
    _need("name", Text),
    _need("value", Double),
    _need("weight", Double),
    _one_of("scope", Scope),
    Index(None, "job", "name", "scope", "node", "id"),
)

picture = Table(
    "picture",
    metadata,
    Column("id", BigId, primary_key=True),
    _need("job", Text, ForeignKey("job.id")),
    _need("round", Integer),
    _need("phase", Text, ForeignKey("phase.id")),
    _need("name", Text),
    _need("kind", Text),
    _need("title", Text),
    _need("digest", Digest),
    UniqueConstraint("phase", "name"),
    Index(None, "job", "name", "round"),
)

event = Table(
    "event",
    metadata,
    Column("sequence", BigId, primary_key=True, autoincrement=False),
    _need("at", Double),
    _need("kind", Text),
    Column("job", Text),
    Column("node", Text),
    _need("actor", Text),
    _need("body", LargeBinary),  # the canonical bytes, exactly as hashed
    _need("previous_hash", LargeBinary),
    _need("hash", LargeBinary),
    CheckConstraint("sequence >= 1", name="sequence"),
    Index(None, "job", "sequence"),
    Index(None, "node", "sequence"),
)

# ---- The dashboard's own two tables: the only ones that another program than the coordinator writes.
login_session = Table(
    "login_session",
    metadata,
    Column("id", Digest, primary_key=True),  # SHA-256 of the cookie's secret
    _need("token", Text),
    _need("sealed", LargeBinary),  # the operator's token, under a key that only the cookie holds
    _need("created_at", Double),
    _need("seen_at", Double),
    _need("expires_at", Double),
    Index(None, "expires_at"),
)

login_attempt = Table(
    "login_attempt",
    metadata,
    Column("id", BigId, primary_key=True),
    _need("source", Text),
    _need("at", Double),
    _need("good", Boolean),
    Index(None, "source", "at"),
)
