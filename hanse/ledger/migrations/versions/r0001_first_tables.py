"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_DIGEST = sa.String(length=64)
_JSON = sa.JSON(none_as_null=True)


def _one_of(name: str, column: str, words: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in words.split())
    return sa.CheckConstraint(f"{column} IN ({listed})", name=op.f(name))


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


# Events are appended and nothing else. SQLite's INSERT OR REPLACE deletes without asking a trigger, hence the
# first one, which also allows no gap.
_APPEND_ONLY_SQLITE = (
    """
    CREATE TRIGGER event_in_order BEFORE INSERT ON event
    WHEN NEW.sequence <> (SELECT COALESCE(MAX(sequence), 0) + 1 FROM event)
    BEGIN SELECT RAISE(ABORT, 'event is append-only'); END
    """,
    """
    CREATE TRIGGER event_unchanged BEFORE UPDATE ON event
    BEGIN SELECT RAISE(ABORT, 'event is append-only'); END
    """,
    """
    CREATE TRIGGER event_kept BEFORE DELETE ON event
    BEGIN SELECT RAISE(ABORT, 'event is append-only'); END
    """,
)
_APPEND_ONLY_POSTGRESQL = (
    """
    CREATE FUNCTION event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'event is append-only'; END $$
    """,
    """
    CREATE TRIGGER event_unchanged BEFORE UPDATE OR DELETE ON event
    FOR EACH ROW EXECUTE FUNCTION event_is_append_only()
    """,
    """
    CREATE TRIGGER event_kept BEFORE TRUNCATE ON event
    FOR EACH STATEMENT EXECUTE FUNCTION event_is_append_only()
    """,
)


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "event",
        sa.Column("sequence", _BIG_ID, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("job", _TEXT, nullable=True),
        sa.Column("node", _TEXT, nullable=True),
        sa.Column("actor", _TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("previous_hash", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("sequence >= 1", name=op.f("ck_event_sequence")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_event")),
    )
    op.create_index(op.f("ix_event_job_sequence"), "event", ["job", "sequence"])
    op.create_index(op.f("ix_event_node_sequence"), "event", ["node", "sequence"])
    op.create_table(
        "job",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("method", _TEXT, nullable=False),
        sa.Column("dataset", _TEXT, nullable=False),
        sa.Column("specification", _TEXT, nullable=False),
        sa.Column("submitted_by", _TEXT, nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", _JSON, nullable=True),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("state_digest", _DIGEST, nullable=True),
        sa.Column("model_digest", _DIGEST, nullable=True),
        sa.Column("continue_from", _TEXT, nullable=True),
        sa.Column("resume_state", sa.String(length=16), nullable=True),
        _one_of("ck_job_resume_state", "resume_state", "submitted waiting running paused succeeded failed cancelled"),
        _one_of("ck_job_state", "state", "submitted waiting running paused succeeded failed cancelled"),
        sa.ForeignKeyConstraint(["continue_from"], ["job.id"], name=op.f("fk_job_continue_from")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    op.create_index(op.f("ix_job_model_digest"), "job", ["model_digest"])
    op.create_index(op.f("ix_job_name_submitted_at"), "job", ["name", "submitted_at"])
    op.create_index(op.f("ix_job_state_submitted_at"), "job", ["state", "submitted_at"])
    op.create_index(op.f("ix_job_submitted_at_id"), "job", ["submitted_at", "id"])
    op.create_table(
        "lease",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("holder", _TEXT, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
    )
    op.create_table(
        "node",
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("labels", _JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("approved_at", sa.Double(), nullable=True),
        sa.Column("approved_by", _TEXT, nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("revoked_by", _TEXT, nullable=True),
        sa.Column("reason", _JSON, nullable=True),
        sa.Column("fingerprint", _TEXT, nullable=True),
        sa.Column("pending_fingerprint", _TEXT, nullable=True),
        sa.Column("pending_request", _TEXT, nullable=True),
        sa.Column("program", _TEXT, nullable=True),
        sa.Column("methods", _JSON, nullable=False),
        sa.Column("datasets", _JSON, nullable=False),
        sa.Column("policy_digest", _DIGEST, nullable=True),
        sa.Column("online", sa.Boolean(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        _one_of("ck_node_trust", "trust", "invited pending approved revoked"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node")),
    )
    op.create_table(
        "operator_token",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_hash", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", _TEXT, nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        _one_of("ck_operator_token_role", "role", "viewer researcher operator admin"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operator_token")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_operator_token_secret_hash")),
    )
    op.create_table(
        "artifact",
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("job", _TEXT, nullable=True),
        sa.Column("retain_until", sa.Double(), nullable=True),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_artifact_job")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_artifact")),
    )
    op.create_index(
        "ix_artifact_expiring",
        "artifact",
        ["retain_until"],
        **_where("deleted_at IS NULL AND retain_until IS NOT NULL"),
    )
    op.create_index(op.f("ix_artifact_job"), "artifact", ["job"])
    op.create_table(
        "certificate",
        sa.Column("serial", _TEXT, nullable=False),
        sa.Column("identity", _TEXT, nullable=False),
        sa.Column("node", _TEXT, nullable=True),
        sa.Column("fingerprint", _TEXT, nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("not_after", sa.Double(), nullable=False),
        sa.Column("issued_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_certificate_node")),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_certificate")),
    )
    op.create_index(op.f("ix_certificate_identity"), "certificate", ["identity"])
    op.create_index(op.f("ix_certificate_node_not_after"), "certificate", ["node", "not_after"])
    op.create_table(
        "invitation",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("node", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", _TEXT, nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("pre_approved", sa.Boolean(), nullable=False),
        sa.Column("again", sa.Boolean(), nullable=False),
        sa.Column("certificate_serial", _TEXT, nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("used_key_sha256", _DIGEST, nullable=True),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_invitation_node")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invitation")),
        sa.UniqueConstraint("certificate_serial", name=op.f("uq_invitation_certificate_serial")),
    )
    op.create_index(op.f("ix_invitation_node"), "invitation", ["node"])
    op.create_table(
        "participation",
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("node", _TEXT, nullable=False),
        sa.Column("decision", sa.String(length=20), nullable=False),
        sa.Column("reason", _JSON, nullable=True),
        sa.Column("unseen", sa.Boolean(), nullable=False),
        sa.Column("dataset", _JSON, nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        _one_of("ck_participation_decision", "decision", "offered accepted refused awaiting_approval"),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_participation_job")),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_participation_node")),
        sa.PrimaryKeyConstraint("job", "node", name=op.f("pk_participation")),
    )
    op.create_index(op.f("ix_participation_node_job"), "participation", ["node", "job"])
    op.create_table(
        "phase",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("audience", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("instruction_digest", _DIGEST, nullable=True),
        sa.Column("personal", _JSON, nullable=False),
        sa.Column("state_digest", _DIGEST, nullable=True),
        sa.Column("quorum", sa.Integer(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("reason", _JSON, nullable=True),
        _one_of("ck_phase_audience", "audience", "selected unseen all"),
        _one_of("ck_phase_purpose", "purpose", "train adapt evaluate"),
        _one_of("ck_phase_state", "state", "open collecting aggregating closed abandoned"),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_phase_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_phase")),
        sa.UniqueConstraint("job", "ordinal", "attempt", name=op.f("uq_phase_job_ordinal_attempt")),
    )
    op.create_index(
        "uq_phase_open", "phase", ["job"], unique=True, **_where("state IN ('open', 'collecting', 'aggregating')")
    )
    op.create_table(
        "round",
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cohort", _JSON, nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_round_job")),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_round")),
    )
    op.create_table(
        "assignment",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("phase", _TEXT, nullable=False),
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("node", _TEXT, nullable=False),
        sa.Column("unseen", sa.Boolean(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", _TEXT, nullable=False),
        sa.Column("fraction", sa.Double(), nullable=False),
        sa.Column("offered_at", sa.Double(), nullable=False),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("reason", _JSON, nullable=True),
        _one_of(
            "ck_assignment_state", "state", "pending leased delivered refused failed expired late rejected withdrawn"
        ),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_assignment_job")),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_assignment_node")),
        sa.ForeignKeyConstraint(["phase"], ["phase.id"], name=op.f("fk_assignment_phase")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_assignment")),
        sa.UniqueConstraint("phase", "node", name=op.f("uq_assignment_phase_node")),
    )
    op.create_index("ix_assignment_live", "assignment", ["node"], **_where("state IN ('pending', 'leased')"))
    op.create_index(op.f("ix_assignment_node_offered_at"), "assignment", ["node", "offered_at"])
    op.create_table(
        "metric",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("phase", _TEXT, nullable=False),
        sa.Column("node", _TEXT, nullable=True),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        _one_of("ck_metric_scope", "scope", "node pooled unseen aggregation"),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_metric_job")),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_metric_node")),
        sa.ForeignKeyConstraint(["phase"], ["phase.id"], name=op.f("fk_metric_phase")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric")),
    )
    op.create_index(op.f("ix_metric_job_name_scope_node_id"), "metric", ["job", "name", "scope", "node", "id"])
    op.create_table(
        "picture",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("phase", _TEXT, nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("title", _TEXT, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_picture_job")),
        sa.ForeignKeyConstraint(["phase"], ["phase.id"], name=op.f("fk_picture_phase")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_picture")),
        sa.UniqueConstraint("phase", "name", name=op.f("uq_picture_phase_name")),
    )
    op.create_index(op.f("ix_picture_job_name_round"), "picture", ["job", "name", "round"])
    op.create_table(
        "contribution",
        sa.Column("assignment", _TEXT, nullable=False),
        sa.Column("phase", _TEXT, nullable=False),
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("node", _TEXT, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["assignment"], ["assignment.id"], name=op.f("fk_contribution_assignment")),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_contribution_job")),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_contribution_node")),
        sa.ForeignKeyConstraint(["phase"], ["phase.id"], name=op.f("fk_contribution_phase")),
        sa.PrimaryKeyConstraint("assignment", name=op.f("pk_contribution")),
    )
    op.create_index(op.f("ix_contribution_digest"), "contribution", ["digest"])
    op.create_index(op.f("ix_contribution_job_node_size"), "contribution", ["job", "node", "size"])
    op.create_index(op.f("ix_contribution_phase"), "contribution", ["phase"])

    postgresql = op.get_context().dialect.name == "postgresql"
    for statement in _APPEND_ONLY_POSTGRESQL if postgresql else _APPEND_ONLY_SQLITE:
        op.execute(statement)


def downgrade() -> None:
    """Drop all tables, and everything that happened with them."""
    for table in reversed(_TABLES):
        op.drop_table(table)
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION event_is_append_only()")


_TABLES = (
    "event",
    "job",
    "lease",
    "node",
    "operator_token",
    "artifact",
    "certificate",
    "invitation",
    "participation",
    "phase",
    "round",
    "assignment",
    "metric",
    "picture",
    "contribution",
)
