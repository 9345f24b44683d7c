"""Alembic's entry: runs migrations on the connection that it is given, in that connection's transaction."""

from __future__ import annotations

from alembic import context

from hanse.ledger.models import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
