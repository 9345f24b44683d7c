"""How long a federation stands still when its leader is killed or paused, and whether anything is lost.

    python benchmarks/failover.py [--kills 10] [--pauses 10] [--stops 0] [--restarts 0] [--nodes 8] [--rounds 200]
                                  [--json]

Two coordinators on one PostgreSQL, one aggregator, and an agent a node, all processes of their own over TLS on
loopback. A job of FedSCS-XGB runs twice: undisturbed, and while the leader is killed (`kill -9`) or paused past its
lease (SIGSTOP) and woken, in random order at random instants; on demand it is also asked to stop (SIGTERM), and
PostgreSQL is restarted. Times are from there to

- `leads`: the other coordinator's first entry in the ledger;
- `next assignment`: the next phase that it opens, for which every node must have come back and delivered.

The database itself witnesses which connection writes under which epoch: more than one would be a deposed leader's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from measuring import waited

from tests.chaos.pair import Pair, pair
from tests.databases import running_server

KINDS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "stop": signal.SIGTERM, "restart": None}
REFUSED = "a write was refused: another coordinator leads"


@dataclass
class Times:
    """Seconds from the disturbance, one each."""

    leads: list[float] = field(default_factory=list)
    next_assignment: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float | int]:
        """Median and worst of each."""
        row: dict[str, float | int] = {"count": len(self.next_assignment)}
        for name in ("leads", "next_assignment"):
            if times := getattr(self, name):
                row |= {
                    f"{name}_median_s": round(statistics.median(times), 2),
                    f"{name}_worst_s": round(max(times), 2),
                }
        return row


@dataclass(frozen=True)
class Failover:
    """The row that is printed with `--json`."""

    nodes: int
    rounds: int
    leader_lease: str
    heartbeat: str
    kills: dict[str, float | int]
    pauses: dict[str, float | int]
    stops: dict[str, float | int]
    database_restarts: dict[str, float | int]
    epochs: int
    refused_writes: int
    epochs_with_two_writers: int
    same_model: bool
    phases_tried_again: int
    ledger_whole: bool
    quiet_s: float
    disturbed_s: float
    load_average: tuple[float, float, float]


def measure(arguments: argparse.Namespace, folder: Path) -> Failover:
    """Run the job twice and disturb the second run."""
    settings = {"leader_lease": arguments.lease, "heartbeat": arguments.heartbeat, "lease": "3m"}
    draw = random.Random(arguments.seed)
    counts = {kind: getattr(arguments, kind + "s") for kind in KINDS}
    order = [kind for kind, count in counts.items() for _ in range(count)]
    draw.shuffle(order)
    with running_server() as (server, _), pair(folder, str(server.get_uri(driver="psycopg")), settings) as two:
        place = two.place
        for number in range(arguments.nodes):
            place.add_site(f"node-{number:02d}", rows=200)
        began = time.monotonic()
        quiet = two.until_succeeded(place.submit("quiet", rounds=arguments.rounds), 600)
        quiet_s = time.monotonic() - began

        job = place.submit("job", rounds=arguments.rounds)
        began = time.monotonic()
        times = {kind: Times() for kind in KINDS}
        for kind in order:
            if not disturb(two, job, kind, draw, times[kind], server):
                break
            print(f"{kind}: {times[kind].next_assignment[-1]:.2f} s", file=sys.stderr)
        found = two.until_succeeded(job, 600)
        disturbed_s = time.monotonic() - began
        phases = place.read(lambda view: view.phases(job))
        return Failover(
            nodes=arguments.nodes,
            rounds=arguments.rounds,
            leader_lease=arguments.lease,
            heartbeat=arguments.heartbeat,
            kills=times["kill"].summary(),
            pauses=times["pause"].summary(),
            stops=times["stop"].summary(),
            database_restarts=times["restart"].summary(),
            epochs=two.epoch(),
            refused_writes=sum(two.log(name).count(REFUSED) for name in two.health),
            epochs_with_two_writers=sum(len(names) > 1 for names in two.writers().values()),
            same_model=found.model_digest == quiet.model_digest,
            phases_tried_again=sum(phase.attempt > 1 for phase in phases),
            ledger_whole=place.whole(),
            quiet_s=round(quiet_s, 1),
            disturbed_s=round(disturbed_s, 1),
            load_average=os.getloadavg(),
        )


def disturb(two: Pair, job: str, kind: str, draw: random.Random, times: Times, server: Any) -> bool:
    """One disturbance at a random instant of the job; False when the job is over, or ended before the next phase."""
    place = two.place
    waited(lambda: stands_by(two), timeout_s=60, what="a coordinator that stands by")
    head = place.read(lambda view: view.head().sequence)
    target = head + draw.randrange(2, 25)
    place.until(lambda: place.read(lambda view: view.head().sequence >= target) or two.job(job).state.ended, 120)
    time.sleep(draw.uniform(0, 0.1))
    if two.job(job).state.ended:
        return False
    leader, epoch = two.leading()
    began = time.time()
    if kind == "restart":
        server.stop()
        server.ensure_postgres_running()
    else:
        two.signal(leader, KINDS[kind])
        try:
            waited(lambda: two.epoch() > epoch, timeout_s=120, what="another leader")
            if kind == "pause":
                time.sleep(draw.uniform(0, 2))
        finally:
            if kind == "pause":
                two.signal(leader, signal.SIGCONT)

    def since(event_kind: str) -> list[float]:
        events = place.read(lambda view: view.events(after=head))
        return [event.at - began for event in events if event.kind == event_kind and event.at > began]

    def next_assignment() -> list[float]:
        return [at for at in since("phase_opened") if kind == "restart" or at > since("coordinator_leads")[0]]

    waited(lambda: next_assignment() or two.job(job).state.ended, timeout_s=120, what="the next assignment")
    if not next_assignment():
        return False
    times.leads += since("coordinator_leads")[:1]
    times.next_assignment.append(next_assignment()[0])
    return True


def stands_by(two: Pair) -> bool:
    """Whether the leader serves, and the other process is alive."""
    leader = two.leader()
    return two.serving(leader) and all(two.alive(name) for name in two.health)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--pauses", type=int, default=10)
    parser.add_argument("--stops", type=int, default=0, help="SIGTERM to the leader")
    parser.add_argument("--restarts", type=int, default=0, help="restarts of PostgreSQL")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--lease", default="5s", help="the coordinators' leader_lease")
    parser.add_argument("--heartbeat", default="2s", help="how soon an agent notices a leader that is silent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this folder and leave it, with all logs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hanse-failover-") as folder:
        if arguments.keep:
            arguments.keep.mkdir(parents=True)
        row = measure(arguments, arguments.keep or Path(folder))
    if arguments.json:
        print(json.dumps(asdict(row)))
        return
    for name, value in asdict(row).items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
