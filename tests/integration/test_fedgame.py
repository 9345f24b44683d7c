"""Fed-GAME as a federation of processes: the bytes of the harness, also when the aggregator dies between rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hanse.cli.graphs import fetch_graph
from hanse.harness import Harness
from hanse.jobs import JobSpecification
from hanse_agent.datasets.series import SeriesDataset
from tests.chaos.world import Site, World, world

SEEN, UNSEEN = ("mill", "pier", "quay"), "yard"
MODEL = {"hidden": 8, "layers": 1, "head_width": 4, "horizon": 3}
ROUNDS = 3


def offer_series(site: Site) -> dict[str, Any]:
    """Write a station's four weeks of hourly demand in the place of the site's table; the dataset's options."""
    rng = np.random.default_rng(sum(site.name.encode()))
    hours = np.arange(4 * 7 * 24)
    demand = np.maximum(9 + 8 * np.sin(hours / 24 * 2 * np.pi) + rng.standard_normal(len(hours)), 0)
    times = np.datetime64("2024-01-01T00:00") + hours * np.timedelta64(1, "h")
    path = site.folder / "demand.csv"
    path.write_text("time,kwh\n" + "".join(f"{at},{kwh:.4f}\n" for at, kwh in zip(times, demand, strict=True)))
    options = {"path": str(path), "time": "time", "value": "kwh"}
    document = yaml.safe_load(site.config.read_text())
    document["datasets"] = {"demand": {"kind": "series", **options}}
    site.config.write_text(yaml.safe_dump(document))
    return options


def kill_aggregator_after_round(place: World, job: str, number: int) -> None:
    place.until(lambda: place.read(lambda view: view.job(job).round > number), 150)
    assert place.kill(place.federation.children["aggregator"].pid)


def test_a_federation_of_stations_gives_the_bytes_of_the_harness_though_its_aggregator_dies(tmp_path: Path) -> None:
    document = {
        "method": "fedgame",
        "dataset": "demand",
        "model": "gru_forecaster",
        "rounds": ROUNDS,
        "seed": 3,
        "evaluation": {"every": ROUNDS, "unseen": [UNSEEN]},
        "selection": {"minimum_nodes": len(SEEN), "quorum": 1.0, "deadline": "5m"},
        "method_config": {"model": MODEL, "training": {"learning_rate": 0.05, "local_steps": 3}},
    }
    with world(tmp_path) as place:
        options = {}
        for name in (*SEEN, UNSEEN):
            site = place.add_site(name, run=False, methods=["fedgame"])
            options[name] = offer_series(site)
            place.run(site)
        place.until(lambda: place.read(lambda view: all(view.node(name).online for name in options)), 120)
        job = place.submit("stations", **document)
        kill_aggregator_after_round(place, job, 1)
        detail = place.until_ended(job)
        assert detail.job.state == "succeeded", detail.job.reason
        seen = place.read(
            lambda view: [(p.name, sorted(c.digest for c in view.contributions(p.id))) for p in view.phases(job)]
        )
        graph = fetch_graph(place.control, detail)
    specification = JobSpecification.model_validate(place.job_document("stations", **document))
    nodes = {name: SeriesDataset("demand", each) for name, each in options.items()}
    result = Harness("fedgame", nodes, specification, tmp_path / "harness").run()
    assert [(each.name, sorted(d.hex() for d in each.contributions.values())) for each in result.phases] == seen
    assert [name for name, _ in seen] == ["train"] * ROUNDS + ["adapt", "evaluate"]
    assert result.model_digest.hex() == detail.model_digest
    assert graph.nodes == SEEN
    assert graph.round == ROUNDS
    np.testing.assert_allclose(graph.weights.sum(axis=1), 1, atol=1e-5)
