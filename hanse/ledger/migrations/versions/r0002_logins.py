"""What the dashboard writes: log-ins and attempts at them; and an index to read what left a node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the tables and the index."""
    op.create_table(
        "login_session",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("token", _TEXT, nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_session")),
    )
    op.create_index(op.f("ix_login_session_expires_at"), "login_session", ["expires_at"])
    op.create_table(
        "login_attempt",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("source", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("good", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_attempt")),
    )
    op.create_index(op.f("ix_login_attempt_source_at"), "login_attempt", ["source", "at"])
    op.create_index(
        op.f("ix_contribution_node_received_at"),
        "contribution",
        ["node", "received_at"],
        postgresql_include=["job", "size"],
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_index(op.f("ix_contribution_node_received_at"), "contribution")
    op.drop_table("login_attempt")
    op.drop_table("login_session")
