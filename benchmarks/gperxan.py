"""Leave-one-domain-out on image domains: gPerXAN, its parts and its rivals, with the same settings for all.

    python benchmarks/gperxan.py --dataset digits5 --data ../shared/data --json --out rows.jsonl

One `.npz` a domain in `DATA/DATASET` (`x` uint8 images, `y` classes, `test` 1 = held out) makes one node a domain.
Each cell trains on all domains but one on `hanse.harness` and tests on all images (of this run's draw) of that one.
Every method has the same network, rounds, steps, rates and images; `--quick` runs one cell. The federation of
`--real` repeats one cell with processes, sockets and TLS, and compares the bytes of the model.

Methods: `gperxan`; `xan` (without the guide); `in_only` (instance norm alone, averaged); `bn_regularised` (personal
BN with the guide, without IN); `fedavg`; `fedprox`; `fedbn`; `feddg_ga`; `local` (each domain alone, mean of the
models' accuracies); `central` (one node that holds all training domains). COPA, ELCFS and CCST are in the table as rows
that say why they are not run. `--ablation`: lambda, first scores, where XAN sits, how variances are pooled, who owns
the scores, the schedule, the guide without XAN, and all ways of reading the unseen BN.

A row's `seconds_per_round` is wall time while `--jobs` cells run at once (as many as there are cores); its
`processor_seconds_per_round` is the processor time of the cell's one process, which depends far less on the others.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gperxan_table import ABLATION, METHODS, READOUTS, cost, table
from pydantic import BaseModel
from real_images import compare

from hanse.harness import Harness, HarnessResult, installed
from hanse.jobs import JobSpecification
from hanse.method import DatasetDescription, Scope

READINGS = ("average", "batch_stats")
ALL_READINGS = (*READINGS, "in_only", "client_ensemble")
SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The same for every method."""

    train: int = 400  # images a domain, drawn by the seed
    test: int = 200  # held out, a domain
    size: int = 20
    width: int = 8
    rounds: int = 15
    learning_rate: float = 0.05
    batch_size: int = 32
    schedule: str = "published"
    guide: float = 0.5
    proximal: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Cell:
    dataset: str
    unseen: str
    method: str
    seed: int


class Domain:
    """A node's images in memory."""

    Options: ClassVar[type[BaseModel]] = BaseModel

    def __init__(self, images: Any) -> None:
        self.images = images

    def describe(self) -> DatasetDescription:
        return DatasetDescription(name="images", kind="images", rows=len(self.images.labels))

    def load(self) -> Any:
        return self.images


def read_domain(path: Path, settings: Settings, seed: int) -> Domain:
    """The images of a domain that the seed draws: first those to train on, then those held out."""
    from hanse_agent.datasets.images import ArrayImages

    with np.load(path, allow_pickle=False) as file:
        x, y, test = file["x"], file["y"], file["test"] != 0
    rng = np.random.default_rng([seed, *path.stem.encode()])
    rows = np.concatenate(
        [
            rng.permutation(np.flatnonzero(~test))[: settings.train],
            rng.permutation(np.flatnonzero(test))[: settings.test],
        ]
    )
    return Domain(ArrayImages(path, x[rows], y[rows].astype(np.int64), test[rows]))


def pooled(domains: Iterable[Domain]) -> Domain:
    """All images in one place; grey ones become colour."""
    from hanse_agent.datasets.images import ArrayImages

    parts = [domain.images for domain in domains]
    colour = [p.images if p.images.ndim == 4 else np.repeat(p.images[..., None], 3, axis=3) for p in parts]
    labels, held_out = (np.concatenate([getattr(p, name) for p in parts]) for name in ("labels", "held_out"))
    return Domain(ArrayImages(Path("pooled"), np.concatenate(colour), labels, held_out))


def specification(cell: Cell, settings: Settings) -> JobSpecification:
    """The job of a cell: what the method changes, and nothing else."""
    model: dict[str, Any] = {"classes": 10, "channels": 3, "size": settings.size, "width": settings.width}
    training: dict[str, Any] = {
        "learning_rate": settings.learning_rate,
        "batch_size": settings.batch_size,
        "schedule": settings.schedule,
        "guide": 0.0,
        "also_read": list(readings(cell.method)[1:]),
    }
    own: dict[str, Any] = {}
    name, every = "fedavg", settings.rounds
    method = cell.method
    if method.startswith("gperxan") or method == "xan":
        name, own = "gperxan", {"select": "last"}
        model["norm"] = "xan"
        training["guide"] = 0.0 if method == "xan" else settings.guide
    elif method == "in_only":
        model["norm"] = "instance"
    elif method in ("fedbn", "bn_regularised"):
        model["personal_batch_norm"] = True
        training["guide"] = settings.guide if method == "bn_regularised" else 0.0
    elif method == "fedprox":
        training["proximal"] = settings.proximal
    elif method == "feddg_ga":
        name, every = "feddg_ga", 1
    elif method == "fedavg_guided":
        training["guide"] = settings.guide
    _ablate(method, model, training, own)
    return JobSpecification.model_validate(
        {
            "name": "gperxan-benchmark",
            "method": name,
            "dataset": "images",
            "model": "small_cnn",
            "rounds": settings.rounds,
            "seed": cell.seed,
            "selection": {"quorum": 1.0},
            "evaluation": {"every": every, "unseen": [cell.unseen]},
            "method_config": {"model": model, "training": training, **own},
        }
    )


def readings(method: str) -> tuple[str, ...]:
    """The ways in which the unseen domain reads a method's model, all after one training."""
    return ALL_READINGS if method == READOUTS else READINGS


def _ablate(method: str, model: dict[str, Any], training: dict[str, Any], own: dict[str, Any]) -> None:
    if "_lambda_" in method:
        training["guide"] = float(method.rpartition("_")[2])
    elif "_scores_" in method:
        first, second = method.rpartition("_scores_")[2].split("_")
        model["init_scores"] = [float(first), float(second)]
    elif method.endswith("_first_layer"):
        model |= {"stages": ["bn1"], "personal_batch_norm": True}
    elif method.endswith("_two_layers"):
        model |= {"stages": ["bn1", "bn2"], "personal_batch_norm": True}
    elif method.endswith("_moments"):
        own["bn_pool"] = "moments"
    elif method.endswith("_global_scores"):
        model["score_sharing"] = "global"
    elif method.endswith("_standard"):
        training["schedule"] = "standard"


def run_cell(cell: Cell, folder: Path, settings: Settings) -> list[dict[str, Any]]:
    """The rows of a cell: one for each way of reading the model at the unseen domain."""
    domains = {p.stem: read_domain(p, settings, cell.seed) for p in sorted(folder.glob("*.npz"))}
    job = specification(cell, settings)
    unseen = domains.pop(cell.unseen)
    if cell.method == "local":
        federations = [{name: domain} for name, domain in domains.items()]
    elif cell.method == "central":
        federations = [{"everything": pooled(domains.values())}]
    else:
        federations = [domains]
    installed("hanse.learners", job.method)  # loading torch is no part of a round
    began, busy = time.perf_counter(), time.process_time()
    results = [Harness(job.method, {**nodes, cell.unseen: unseen}, job).run() for nodes in federations]
    seconds = (time.perf_counter() - began) / settings.rounds
    processor = (time.process_time() - busy) / settings.rounds
    traffic = 0 if cell.method in ("local", "central") else bytes_per_round(results[0])
    rows = []
    for reading in readings(cell.method):
        name = "accuracy" if reading == "average" else f"{reading}_accuracy"
        accuracy = statistics.fmean(result.value(name, scope=Scope.UNSEEN) for result in results)
        rows.append(
            {
                "dataset": cell.dataset,
                "unseen": cell.unseen,
                "method": cell.method,
                "unseen_bn": reading,
                "seed": cell.seed,
                "accuracy": round(accuracy, 5),
                "bytes_per_round": traffic,
                "seconds_per_round": round(seconds, 4),
                "processor_seconds_per_round": round(processor, 4),
            }
        )
    return rows


def bytes_per_round(result: HarnessResult) -> int:
    """What a node receives and sends in a training phase, by the size of the payloads."""
    training = [record for record in result.phases if record.name == "train"]
    sent = statistics.fmean(size for record in training for size in record.sent.values())
    follows = training[0].outcome.next_phase
    assert follows is not None
    return round(sent + follows.instruction.size)


def known(out: Path | None) -> list[dict[str, Any]]:
    if out is None or not out.exists():
        return []
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits5")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--json", action="store_true", help="one JSON array of rows on standard output")
    parser.add_argument("--out", type=Path, help="append rows here, and skip those that are there")
    parser.add_argument("--quick", action="store_true", help="one cell: gperxan, the first domain, seed 0")
    parser.add_argument("--ablation", action="store_true", help="variants of gperxan instead of the rivals")
    parser.add_argument("--real", action="store_true", help="repeat one cell as a real federation, compare the bytes")
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at once (seconds are under them)")
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    options = parser.parse_args()
    settings = replace(Settings(), rounds=options.rounds)
    folder = options.data / options.dataset if (options.data / options.dataset).is_dir() else options.data
    domains = [path.stem for path in sorted(folder.glob("*.npz"))]
    if len(domains) < 2:
        sys.exit(f"There are no domains (*.npz) in {folder}.")
    print("settings:", json.dumps(asdict(settings) | {"jobs": options.jobs}), file=sys.stderr)
    if options.real:
        cell = Cell(dataset=options.dataset, unseen=domains[0], method="gperxan", seed=0)
        found = {p.stem.replace("_", "-"): read_domain(p, settings, 0) for p in sorted(folder.glob("*.npz"))}
        compare(specification(cell, settings), found)
        return
    methods = options.methods or (ABLATION if options.ablation else METHODS)
    cells = [
        Cell(dataset=options.dataset, unseen=domain, method=method, seed=seed)
        for seed in options.seeds
        for domain in domains
        for method in methods
    ]
    if options.quick:
        cells = [Cell(dataset=options.dataset, unseen=domains[0], method="gperxan", seed=0)]
    rows = known(options.out)
    there = {(row["dataset"], row["unseen"], row["method"], row["seed"]) for row in rows}
    todo = [cell for cell in cells if (cell.dataset, cell.unseen, cell.method, cell.seed) not in there]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, min(options.jobs, len(todo))), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_cell, cell, folder, settings): cell for cell in todo}
        for done in as_completed(running):
            found = done.result()
            rows += found
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
            cell, first = running[done], found[0]
            print(f"{cell.method:<16} {cell.unseen:<12} {cell.seed}  {first['accuracy']:.3f}", file=sys.stderr)
    wanted = {(cell.dataset, cell.unseen, cell.method, cell.seed) for cell in cells}
    shown = [row for row in rows if (row["dataset"], row["unseen"], row["method"], row["seed"]) in wanted]
    print(table(shown, absent=not options.ablation), cost(shown), sep="\n\n", file=sys.stderr)
    print(f"{len(todo)} cells in {time.monotonic() - began:.0f} s", file=sys.stderr)
    if options.json:
        print(json.dumps(shown))


if __name__ == "__main__":
    main()
