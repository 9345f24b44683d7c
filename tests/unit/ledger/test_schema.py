"""The tables: one linear history that ends at the models, forwards and backwards."""

from __future__ import annotations

import threading
from enum import StrEnum

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, update

from hanse.errors import PlatformError
from hanse.ledger import (
    ROLES,
    AssignmentState,
    Decision,
    InvariantBroken,
    JobState,
    Ledger,
    PhaseState,
    Trust,
    records,
    schema,
)
from hanse.ledger.columns import field_names
from hanse.ledger.models import metadata
from hanse.method import Audience, Purpose, Scope

RECORDS = {
    "node": records.Node,
    "certificate": records.Certificate,
    "invitation": records.Invitation,
    "operator_token": records.OperatorToken,
    "lease": records.Lease,
    "job": records.Job,
    "participation": records.Participation,
    "round": records.Round,
    "phase": records.Phase,
    "assignment": records.Assignment,
    "contribution": records.Contribution,
    "artifact": records.Artifact,
    "metric": records.Metric,
    "picture": records.Picture,
    "event": records.Event,
    "login_session": records.LoginSession,
    "login_attempt": records.LoginAttempt,
}


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names()) - {"alembic_version"}


def test_the_migrations_lead_to_the_models(ledger: Ledger) -> None:
    with ledger._engine.connect() as connection:
        assert schema.differences(connection) == []
        assert tables(connection) == set(metadata.tables)


def test_the_migrations_make_the_constraints_of_the_models(ledger: Ledger) -> None:
    with ledger._engine.connect() as connection:
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            checks = {check["name"]: check["sqltext"] for check in inspector.get_check_constraints(table.name)}
            wanted = {str(c.name): str(c.sqltext) for c in table.constraints if hasattr(c, "sqltext")}
            assert set(checks) == set(wanted), table.name
            if connection.dialect.name == "sqlite":
                assert checks == wanted
            keys = {key["name"] for key in inspector.get_foreign_keys(table.name)}
            assert keys == {str(c.name) for c in table.foreign_key_constraints}, table.name


def test_the_history_is_linear() -> None:
    script = ScriptDirectory.from_config(schema.configuration())
    assert len(script.get_heads()) == len(script.get_bases()) == 1


def test_migrating_back_leaves_nothing_and_forwards_again_works(ledger: Ledger) -> None:
    ledger.migrate("base")
    with ledger._engine.connect() as connection:
        assert tables(connection) == set()
        assert schema.current_revision(connection) is None
    with pytest.raises(PlatformError, match="revision none") as bare:
        ledger.require_schema()
    assert bare.value.code == "LEDGER_SCHEMA"
    ledger.migrate()
    ledger.require_schema()
    with ledger.write(ledger.take_lease("coordinator")) as tx:
        assert tx.event("one") == 1


def test_migrating_twice_changes_nothing(ledger: Ledger) -> None:
    epoch = ledger.take_lease("coordinator")
    with ledger.write(epoch) as tx:
        tx.event("one")
    ledger.migrate()
    ledger.migrate(schema.newest_revision())
    with ledger.read() as view:
        assert view.head().sequence == 1


def test_two_coordinators_that_start_at_once_migrate_one_after_the_other(bare_url: str) -> None:
    faults: list[BaseException] = []

    def start() -> None:
        try:
            with Ledger.open(bare_url) as ledger:
                ledger.migrate()
                ledger.require_schema()
        except BaseException as error:
            faults.append(error)

    coordinators = [threading.Thread(target=start) for _ in range(2)]
    for coordinator in coordinators:
        coordinator.start()
    for coordinator in coordinators:
        coordinator.join()
    assert faults == []


def test_every_table_has_a_record_with_its_columns() -> None:
    assert set(RECORDS) == set(metadata.tables)
    for name, record in RECORDS.items():
        assert set(field_names(record)) == set(metadata.tables[name].c.keys()), name


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("node", "trust", Trust),
        ("operator_token", "role", ROLES),
        ("job", "state", JobState),
        ("job", "resume_state", JobState),
        ("participation", "decision", Decision),
        ("phase", "state", PhaseState),
        ("phase", "purpose", Purpose),
        ("phase", "audience", Audience),
        ("assignment", "state", AssignmentState),
        ("metric", "scope", Scope),
    ],
)
def test_a_word_outside_the_closed_set_is_refused_by_the_database(
    world, table: str, column: str, words: type[StrEnum] | tuple[str, ...]
) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.add_token(name="ada", role="admin", secret_hash="00", created_by="ada")
        tx.set_participation(job=world.job, node="node-1", decision=Decision.OFFERED)
        tx.add_metrics(job=world.job, round=1, phase=world.phase, rows=[{"name": "a", "value": 1, "scope": "pooled"}])

    def write(word: str) -> None:
        with world.ledger.write(world.epoch) as tx:
            changed = tx._connection.execute(update(metadata.tables[table]).values({column: word}))
            assert changed.rowcount > 0

    for word in words:
        write(str(word))
    for word in ("", "unheard", str(next(iter(words))).upper()):
        with pytest.raises(InvariantBroken, match="breaks its rules"):
            write(word)
