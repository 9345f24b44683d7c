"""Two coordinators on one PostgreSQL, and what one can do to the one that leads."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from hanse.embedded import Child
from hanse.embedded.federation import is_serving
from hanse.embedded.folder import free_port
from hanse.ledger import JobState, Ledger
from hanse.ledger.records import Job
from tests.chaos.world import World, world

# Who wrote each event, by the name of its connection, and who led at that moment, by the database's own word.
_WITNESS = """
CREATE TABLE witness (epoch bigint, writer text);
CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO witness VALUES ((SELECT epoch FROM lease), current_setting('application_name')); RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT ON event FOR EACH ROW EXECUTE FUNCTION witness();
"""


@dataclass
class Pair:
    """The world with two coordinators, `one` and `two`."""

    place: World
    coordinators: dict[str, Child]
    health: dict[str, int]

    def leading(self) -> tuple[str, int]:
        """The coordinator that holds the lease, and its epoch."""
        lease = self.place.read(lambda view: view.lease())
        return next(name for name, port in self.health.items() if lease.holder.endswith(f":{port}")), lease.epoch

    def leader(self) -> str:
        """The coordinator that holds the lease."""
        return self.leading()[0]

    def epoch(self) -> int:
        """The epoch of the lease."""
        return self.leading()[1]

    def serving(self, name: str) -> bool:
        """Whether a coordinator says that it is ready."""
        return is_serving(f"127.0.0.1:{self.health[name]}")

    def alive(self, name: str) -> bool:
        """Whether a coordinator says that it is alive."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health[name]}/livez", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def signal(self, name: str, number: signal.Signals) -> None:
        """Do something to a coordinator's process."""
        pid = self.coordinators[name].pid
        assert pid is not None
        os.kill(pid, number)

    def job(self, job: str) -> Job:
        """A job, by the ledger."""
        found: Job = self.place.read(lambda view: view.job(job))
        return found

    def until_succeeded(self, job: str, timeout_s: float = 240) -> Job:
        """Wait for a job's end, which must be a good one."""
        self.place.until(lambda: self.job(job).state.ended or self.job(job).state is JobState.PAUSED, timeout_s)
        found = self.job(job)
        assert found.state is JobState.SUCCEEDED, found.reason
        return found

    def writers(self) -> dict[int, set[str]]:
        """Who wrote events while an epoch was the lease's."""
        engine = create_engine(_psycopg(self.place.ledger_url))
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT DISTINCT epoch, writer FROM witness")).all()
        engine.dispose()
        found: dict[int, set[str]] = {}
        for epoch, writer in rows:
            found.setdefault(epoch, set()).add(writer)
        return found

    def log(self, name: str) -> str:
        """What a coordinator said."""
        path = self.coordinators[name].log
        return path.read_text() if path and path.exists() else ""


def _psycopg(url: str, **query: str) -> str:
    return make_url(url).set(drivername="postgresql+psycopg").update_query_dict(query).render_as_string(False)


def migrate(url: str) -> None:
    """Make the ledger's tables, and let the database witness who writes."""
    with Ledger.open(url) as ledger:
        ledger.migrate()
    engine = create_engine(_psycopg(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(_WITNESS)
    engine.dispose()


@contextmanager
def pair(folder: Path, url: str, settings: Mapping[str, object]) -> Iterator[Pair]:
    """Two coordinators on an empty PostgreSQL database; `one` leads first."""
    migrate(url)
    ports = {name: free_port("127.0.0.1") for name in ("one", "two")}
    common = {"advertise": [f"127.0.0.1:{port}" for port in ports.values()], **settings}
    with ExitStack() as stack:
        place = stack.enter_context(
            world(
                folder,
                node_port=ports["one"],
                ledger_url=_psycopg(url, application_name="one"),
                coordinator=common,
            )
        )
        first = yaml.safe_load((place.federation.state / "services" / "coordinator" / "config.yaml").read_text())
        second = _second(first, folder / "second", ports["two"], _psycopg(url, application_name="two"))
        child = Child(
            "coordinator-2",
            ["hanse_coordinator.main", "--config", str(folder / "second" / "config.yaml")],
            log=folder / "second" / "coordinator.log",
            say=lambda _: None,
        )
        child.start()
        child.assume_ready()
        stack.callback(child.stop)
        health = {"one": place.federation.ports.coordinator_health, "two": _port(second["health_listen"])}
        yield Pair(place, {"one": place.federation.children["coordinator"], "two": child}, health)


def _second(first: Mapping[str, Any], folder: Path, port: int, ledger: str) -> dict[str, Any]:
    folder.mkdir()
    changed = {
        "state": str(folder),
        "ledger": ledger,
        "nodes_listen": f"127.0.0.1:{port}",
        "control_listen": f"127.0.0.1:{free_port('127.0.0.1')}",
        "health_listen": f"127.0.0.1:{free_port('127.0.0.1')}",
        "ports_file": str(folder / "ports.json"),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({**first, **changed}))
    return changed


def _port(address: object) -> int:
    return int(str(address).rpartition(":")[2])
