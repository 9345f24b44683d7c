"""`kill -9` of any program at random instants, connections cut at random bytes: the model is that of a quiet run."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from hanse.harness import Harness, HarnessResult
from hanse.jobs import JobSpecification
from hanse.method import LearnerLimits
from hanse_agent.datasets.table import TableDataset
from tests.chaos.world import Site, World, world

pytestmark = pytest.mark.chaos

NAMES = ("ada", "ben", "cyn", "dov")
KILLS = 10


@pytest.fixture(scope="module")
def quiet_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's digest when nothing goes wrong."""
    with world(tmp_path_factory.mktemp("quiet")) as place:
        for name in NAMES:
            place.add_site(name)
        detail = place.until_ended(place.submit("job"))
        assert detail.job.state == "succeeded", detail.job.reason
        return detail.model_digest


def test_the_harness_gives_the_bytes_of_the_real_federation(tmp_path: Path) -> None:
    with world(tmp_path) as place:
        for name in NAMES:
            place.add_site(name)
        job = place.submit("job", seed=5)
        detail = place.until_ended(job)
        real = place.read(lambda view: [sorted(c.digest for c in view.contributions(p.id)) for p in view.phases(job)])
        tables = {
            name: TableDataset("ward", {"path": str(site.folder / "table.csv"), "target": "kind", "holdout": 0.2})
            for name, site in place.sites.items()
        }
        specification = JobSpecification.model_validate(place.job_document("job", seed=5))
    limits = {name: LearnerLimits(minimum_rows_per_atom=1) for name in NAMES}
    result = Harness("fedscs_xgb", tables, specification, tmp_path / "harness", limits=limits).run()
    assert result.model_digest.hex() == detail.model_digest
    assert sorted(sorted(phase) for phase in digests(result)) == sorted(real)


def digests(result: HarnessResult) -> list[list[str]]:
    """The digests of the contributions, phase by phase."""
    return [[digest.hex() for digest in phase.contributions.values()] for phase in result.phases]


def nothing_was_done_twice(place: World) -> None:
    """Every assignment has one contribution, the bytes that left are the ones that were recorded, and what was
    finished once was only ever sent again."""
    for site in place.sites.values():
        left: defaultdict[str, set[str]] = defaultdict(set)
        first: defaultdict[str, int] = defaultdict(int)
        for entry in site.journal:
            left[entry["assignment"]].add(entry["digest"])
            first[entry["assignment"]] += entry["event"] == "left"
        assert all(len(digests) == 1 for digests in left.values()), f"{site.name} sent two results for one assignment"
        assert set(first.values()) == {1}, f"{site.name} did finished work again"
    recorded = place.read(lambda view: [view.contributions(phase.id) for phase in view.phases(view.jobs()[0].id)])
    for phase in recorded:
        assert sorted(item.node for item in phase) == sorted(place.sites)
        assert not any(item.late for item in phase)


@pytest.mark.parametrize("seed", [1, 2])
def test_programs_killed_at_random_instants_cost_nothing(tmp_path: Path, quiet_model: str, seed: int) -> None:
    draw = random.Random(seed)
    with world(tmp_path) as place:
        for name in NAMES:
            place.add_site(name)
        job = place.submit("job")
        killed: defaultdict[str, int] = defaultdict(int)
        for _ in range(KILLS):
            # A random instant: some events on from here, and a random moment after the last of them.
            head = place.read(lambda view: view.head().sequence)
            target = head + draw.randrange(1, 8)
            place.until(lambda t=target: place.read(lambda v: v.head().sequence >= t or ended(v, job)))
            if place.read(lambda view: ended(view, job)):
                break
            time.sleep(draw.uniform(0, 0.05))
            what, pid = victim(place, draw)
            killed[what] += place.kill(pid)
        detail = place.until_ended(job)
        assert detail.job.state == "succeeded", detail.job.reason
        assert detail.model_digest == quiet_model
        nothing_was_done_twice(place)
        assert place.whole()
        assert {phase.attempt for phase in detail.phases} == {1}
        assert sum(killed.values()) >= 5, killed


def ended(view: object, job: str) -> bool:
    return bool(view.job(job).state.ended)  # type: ignore[attr-defined]


def victim(place: World, draw: random.Random) -> tuple[str, int | None]:
    site: Site = draw.choice(list(place.sites.values()))
    choices: dict[str, Callable[[], int | None]] = {
        "coordinator": lambda: place.federation.children["coordinator"].pid,
        "aggregator": lambda: place.federation.children["aggregator"].pid,
        "agent": lambda: site.agent.pid if site.agent else None,
        "worker": lambda: worker.pid if (worker := site.worker()) else None,
    }
    what = draw.choice(list(choices))
    return what, choices[what]()


def test_connections_cut_at_random_bytes_cost_nothing(tmp_path: Path, quiet_model: str) -> None:
    draw = random.Random(7)
    with world(tmp_path, through=(draw, 8_000, 60_000)) as place:
        for name in NAMES:
            place.add_site(name)
        assert place.proxy is not None
        place.proxy.cutting = True
        detail = place.until_ended(place.submit("job"))
        assert detail.job.state == "succeeded", detail.job.reason
        assert detail.model_digest == quiet_model
        assert place.proxy.cuts >= 5
        nothing_was_done_twice(place)
        assert place.whole()
