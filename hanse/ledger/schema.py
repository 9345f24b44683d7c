"""Bringing a ledger's tables to a revision, and telling at which one they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from hanse.errors import PlatformError
from hanse.ledger.models import metadata

_MIGRATIONS = Path(__file__).parent / "migrations"
# Two coordinators that start at once migrate one after the other. The lock belongs to the transaction, so that
# a transaction pooler does not matter.
_LOCK = "SELECT pg_advisory_xact_lock(4849515345)"
# Releases to come add to the tables (expand) in revisions up to this one, and this release runs on them as well: during
# an upgrade, and after a way back. What takes away or changes something that this release needs (contract) is numbered
# from the next thousand on; the last release before it names that thousand here.
LAST_COMPATIBLE = "0999"


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the ledger; its migrations run on `connection`, inside its transaction."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrate(connection: Connection, revision: str) -> None:
    """Bring the tables to a revision, forwards or backwards, in the connection's transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(_LOCK))
    config = configuration(connection)
    script = ScriptDirectory.from_config(config)
    current = current_revision(connection)
    if revision == "head" and current is not None and current > newest_revision():
        require(current)
        return  # a later release was here, and only added
    backwards = revision == "base"
    if not backwards and current is not None:
        target = script.as_revision_number(revision)
        applied = {step.revision for step in script.iterate_revisions(current, "base")}
        backwards = target in applied and target != current
    if backwards:
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def current_revision(connection: Connection) -> str | None:
    """The revision of the tables, or None when there are none."""
    return MigrationContext.configure(connection).get_current_revision()


def newest_revision() -> str:
    """The revision that this version of Hanse works with."""
    newest = ScriptDirectory.from_config(configuration()).get_current_head()
    if newest is None:
        raise AssertionError("a ledger has at least one revision")
    return newest


def require(found: str | None) -> None:
    """Check that this version of Hanse works with tables of a revision: its own, or of a release that added to them.

    Raises:
        PlatformError: it does not.
    """
    newest = newest_revision()
    if found is None or not newest <= found <= LAST_COMPATIBLE:
        newer = found is not None and found > newest
        raise PlatformError(
            f"The ledger's tables are at revision {found or 'none'}, not at {newest}.",
            remedy="Update this program, or restore a backup of its time." if newer else "Migrate it first.",
            code="LEDGER_SCHEMA",
        )


def differences(connection: Connection) -> list[Any]:
    """How the tables differ from the models; nothing, at the newest revision."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    found: list[Any] = compare_metadata(context, metadata)
    return found
