"""A cell of the Fed-GAME benchmark once more as a real federation: processes, sockets, TLS, files. Same bytes?"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgame_data import Station, StationDataset

from hanse.demos.federation import federation, run_job
from hanse.demos.people import Person
from hanse.harness import Harness
from hanse.jobs import JobSpecification
from hanse.learning.series import Series


def check(job: JobSpecification, stations: Sequence[Station]) -> None:
    """Run a job over stations in memory on the harness, and over the same ones as CSV files in a federation.

    Prints one JSON object; exits with an error when the models differ.
    """
    import torch

    torch.set_num_threads(1)
    selection = job.selection.model_copy(update={"minimum_nodes": sum(not station.unseen for station in stations)})
    job = job.model_copy(update={"selection": selection})
    folder = Path(tempfile.mkdtemp(prefix="hanse-fedgame-"))
    blocks: dict[Person, Mapping[str, Any]] = {}
    for station in stations:
        person = Person(name=station.name, folder=folder / "people" / station.name, kind="station")
        blocks[person] = _written(station.series, person.folder / "demand.csv")
    with federation(blocks, folder=folder, dataset=job.dataset, method=job.method, say=_say) as control:
        done = run_job(control, list(blocks), job, folder=folder, say=_say)
    nodes = {station.name: StationDataset([station.series]) for station in stations}
    alone = Harness(job.method, nodes, job).run()
    same = done.digest == alone.model_digest
    print(json.dumps({"same_bytes": same, "model": done.digest.hex(), "nodes": len(stations), "rounds": job.rounds}))
    if not same:
        sys.exit("The models differ.")


def _written(series: Series, path: Path) -> dict[str, Any]:
    """The series as a table, and the block of agent.yaml that reads it as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["time", "kwh"])
        lines.writerows(zip(series.times().astype(str), series.values.tolist(), strict=True))
    return {
        "kind": "series",
        "path": str(path),
        "value": "kwh",
        "station": series.name,
        "holdout": 1.0 - series.training / len(series.values),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
