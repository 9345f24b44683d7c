"""FedSCS-XGB as a real federation: the harness's bytes, a job that continues another, and predictions at a node.

The federation is the benchmarks' own: coordinator, aggregator and an agent a node, as processes, over TLS.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xgboost

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from federations import Running, federation

from hanse.cli.pull import fetch_model
from hanse.embedded import child_environment
from hanse.harness import Harness
from hanse.jobs import JobSpecification, Selection
from tests.unit.boosting_data import random_table, specification, split

NODES = 2


def job(rounds: int, statistics: str) -> JobSpecification:
    made = specification(rounds=rounds, every=rounds, statistics=statistics, evaluation={"every": rounds})
    return made.model_copy(update={"dataset": "rows", "selection": Selection(minimum_nodes=NODES, quorum=1.0)})


def contributions(running: Running, identifier: str) -> list[tuple[str, int, str, str]]:
    return running.ask(
        "SELECT phase.name, phase.round, contribution.node, contribution.digest FROM contribution "
        "JOIN phase ON phase.id = contribution.phase WHERE contribution.job = ? "
        "ORDER BY phase.ordinal, contribution.node",
        identifier,
    )


@pytest.mark.timeout(240)
def test_a_real_federation_gives_the_harness_bytes_goes_on_from_its_model_and_predicts(tmp_path: Path) -> None:
    table = random_table(240, seed=5)
    datasets = split(table, np.array_split(np.arange(240), NODES))
    with federation(tmp_path, {name: dataset.table for name, dataset in datasets.items()}) as running:
        done = {kind: running.run(job(2, kind)) for kind in ("atoms", "histograms")}
        more = running.run(job(2, "histograms"), continue_from=done["histograms"].job.id)
        pulled = fetch_model(running.control, more.job.id).files
        people = running.people
        sent = {kind: contributions(running, detail.job.id) for kind, detail in done.items()}
    for kind, detail in done.items():
        expected = Harness("fedscs_xgb", datasets, job(2, kind)).run()
        assert detail.model_digest == expected.model_digest.hex()
        assert sent[kind] == [
            (phase, number, node, digest.hex()) for phase, number, node, digest in expected.contributions
        ]
    assert done["atoms"].model_digest == done["histograms"].model_digest
    four = Harness("fedscs_xgb", datasets, job(4, "histograms")).run()
    assert more.model_digest == four.model_digest.hex()

    # The federation is gone: what was delivered is enough.
    names = list(table.feature_names)
    with (tmp_path / "new.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(names)
        lines.writerows(["" if np.isnan(value) else repr(float(value)) for value in row] for row in table.features[:10])
    arguments = ["--job", more.job.id, "--input", str(tmp_path / "new.csv"), "--output", str(tmp_path / "out.csv")]
    command = [
        sys.executable,
        "-m",
        "hanse_agent.main",
        "predict",
        *arguments,
        "--config",
        str(people[0].config),
        "--json",
    ]
    said = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=False)
    assert said.returncode == 0, said.stderr + said.stdout
    assert json.loads(said.stdout)["data"]["rows"] == 10
    booster = xgboost.Booster()
    booster.load_model(bytearray(pulled["model.ubj"]))
    expected_scores = booster.predict(xgboost.DMatrix(table.features[:10], feature_names=names))
    with (tmp_path / "out.csv").open(newline="") as file:
        found = [[float(value) for value in list(line.values())[1:]] for line in csv.DictReader(file)]
    np.testing.assert_allclose(found, expected_scores, atol=1e-6)
