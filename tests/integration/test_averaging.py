"""Averaging as a federation of processes: the bytes of the harness, for each rule and with compression."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hanse.harness import Harness
from hanse.jobs import JobSpecification
from hanse_agent.datasets.table import TableDataset
from tests.chaos.world import CLASSES, world

NAMES = ("ada", "ben", "cyn", "dov")
METHODS = ["reference_averaging", "reference_robust"]
MODEL = {"inputs": 4, "classes": CLASSES, "hidden": 8}
JOBS: list[tuple[str, dict[str, Any]]] = [
    ("reference_averaging", {"server": {"optimiser": "adam"}, "compression": {"scheme": "int8", "lossless": True}}),
    ("reference_averaging", {"weighting": "uniform", "compression": {"scheme": "top_k", "keep": 0.25}}),
    ("reference_robust", {"rule": "trimmed_mean", "trim": 0.25}),
]


@pytest.fixture
def _reference_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner of plain NumPy, installed for this process and for those that it starts."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "reference"))
    from install import install

    folder = str(install(tmp_path / "site"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")])))
    sys.modules.pop("hanse_reference", None)


@pytest.mark.usefixtures("_reference_package")
def test_averaging_over_processes_gives_the_bytes_of_the_harness(tmp_path: Path) -> None:
    changes = {"model": "reference_mlp", "rounds": 3, "evaluation": {"every": 3, "unseen": ["dov"]}, "seed": 3}
    changes["selection"] = {"minimum_nodes": 3, "quorum": 1.0, "deadline": "3m"}
    with world(tmp_path) as place:
        for name in NAMES:
            place.add_site(name, methods=METHODS)
        place.until(lambda: place.read(lambda view: all(view.node(name).online for name in NAMES)))
        for number, (method, config) in enumerate(JOBS):
            document = changes | {"method": method, "method_config": config | {"model": MODEL}}
            job = place.submit(f"job-{number}", **document)
            detail = place.until_ended(job)
            assert detail.job.state == "succeeded", detail.job.reason
            seen = place.read(
                lambda view, job=job: [sorted(c.digest for c in view.contributions(p.id)) for p in view.phases(job)]
            )
            tables = {
                name: TableDataset("ward", {"path": str(site.folder / "table.csv"), "target": "kind", "holdout": 0.2})
                for name, site in place.sites.items()
            }
            specification = JobSpecification.model_validate(place.job_document(f"job-{number}", **document))
            result = Harness(method, tables, specification, tmp_path / f"harness-{number}").run()
            assert result.model_digest.hex() == detail.model_digest
            assert [sorted(d.hex() for d in phase.contributions.values()) for phase in result.phases] == seen


@pytest.mark.usefixtures("_reference_package")
def test_a_site_that_forbids_compression_takes_no_part_and_the_job_says_so(tmp_path: Path) -> None:
    with world(tmp_path) as place:
        place.add_site("ada", methods=METHODS)
        place.add_site("ben", methods=METHODS, compression="forbidden")
        config = {"model": MODEL, "compression": {"scheme": "bf16"}}
        job = place.submit("job", method=METHODS[0], model="reference_mlp", method_config=config)
        refusal = place.until(
            lambda: place.read(
                lambda view: next((p.reason for p in view.participations(job) if p.node == "ben" and p.reason), None)
            )
        )
        assert refusal.code == "POLICY_COMPRESSION"
        assert "bf16" in refusal.sentence
        assert "policy.compression" in refusal.remedy
        assert place.detail(job).job.state == "waiting"
