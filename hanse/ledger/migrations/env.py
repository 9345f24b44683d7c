"""Alembic's entry: runs migrations on the connection it is given, or prints them as SQL."""

from __future__ import annotations

from alembic import context

from hanse.ledger.models import metadata

if context.is_offline_mode():
    context.configure(
        dialect_name=context.get_x_argument(as_dictionary=True).get("dialect", "postgresql"),
        target_metadata=metadata,
        literal_binds=True,
    )
else:
    context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)

with context.begin_transaction():
    context.run_migrations()
