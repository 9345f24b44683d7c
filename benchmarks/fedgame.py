"""Fed-GAME beside fifteen other ways to forecast charging demand, with the same settings for all: QS, ICP, MIL.

    python benchmarks/fedgame.py                            the whole table, on ../shared/data/ev_charging
    python benchmarks/fedgame.py --horizon 6 --dataset charged --json --out rows.jsonl
    python benchmarks/fedgame.py --history 1                with three seeds also there; the whole table has one
    python benchmarks/fedgame.py --quick                    one cell of it
    python benchmarks/fedgame.py --ablation                 variants of fedgame, one seed
    python benchmarks/fedgame.py --check-federation         one cell again as a real federation: the same bytes?

Everything learned runs on `hanse.harness`: the same plug-ins and learners as in a federation, without sockets. The
first 80 % of the hours are for training, the rest is the test, for every station; unseen stations never train. Rows:
`dataset, horizon, history_weeks, seen, method, seed, qs, icp, mil` (`qs` and `mil`: means over stations, each divided
by its own training scale, its 0.99 quantile of training values that are not zero; `icp` in percent) and more figures.

Not here, and why: PAG-FedAvg. PAG is the physics-informed forecaster of the ST-EVCDP authors; it needs a price series
with known elasticity and the whole adjacency at each node, and how it was put under FedAvg is not published.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from fedgame_data import (
    CITIES,
    PLANTED,
    Station,
    StationDataset,
    file_of,
    neighbours,
    read_stations,
    shortened,
    with_neighbours,
)
from fedgame_federation import check
from fedgame_methods import (
    ABLATION,
    FLOORS,
    GCRN_NEIGHBOURS,
    METHODS,
    TOGETHER,
    Settings,
    prefix,
    specification,
)
from fedgame_table import ratios, table

from hanse.errors import HanseError
from hanse.harness import Harness, HarnessResult
from hanse.learning.quantiles import nominal_coverage, score_quantiles
from hanse.learning.series import fit_scale, origins
from hanse.learning.series_baselines import persistence, seasonal_naive

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "ev_charging"
FIGURES = ("qs", "icp", "mil", "icp_gap", "qs_original", "mil_original")
SEEDS = (0, 1, 2)
QUICK = ("fedgame", "fedavg", "local", "persistence", "seasonal_naive")


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    dataset: str
    horizon: int
    history_weeks: int | None
    method: str
    seed: int

    @property
    def methods(self) -> tuple[str, ...]:
        """Whose rows the cell makes."""
        return (self.method, *(name for name, of in TOGETHER.items() if of == self.method))


@cache
def stations_of(folder: Path, dataset: str) -> tuple[Station, ...]:
    return tuple(read_stations(folder, dataset))


def run_cell(cell: Cell, folder: Path, settings: Settings) -> list[dict[str, Any]]:
    """The rows of a cell: seen and unseen stations, for each of its methods."""
    import torch

    torch.set_num_threads(1)
    everybody = stations_of(folder, cell.dataset)
    minimum = max(settings.window, *settings.lags) + cell.horizon + 48
    stations, _ = shortened(everybody, cell.history_weeks, minimum)
    began = time.perf_counter()
    if cell.method in FLOORS:
        found = {cell.method: _floor(cell, stations, settings)}
    else:
        try:
            found = _learned(cell, stations, settings)
        except HanseError as error:
            raise RuntimeError(f"{cell}: {error}") from None  # plain, so that it comes back from its process
    seconds = round(time.perf_counter() - began, 1)
    return [
        row
        for method, figures in found.items()
        for row in _rows(replace(cell, method=method), stations, figures, seconds)
    ]


def _learned(cell: Cell, stations: Sequence[Station], settings: Settings) -> dict[str, dict[str, dict[str, float]]]:
    """Method to station to figures."""
    graph = neighbours(stations)
    if cell.method == "gcrn_fedavg":
        stations = with_neighbours(stations, graph, GCRN_NEIGHBOURS)
    unseen = tuple(station.name for station in stations if station.unseen)
    groups = {station.name: station.city for station in stations}
    job = specification(
        cell.method, settings, horizon=cell.horizon, seed=cell.seed, unseen=unseen, graph=graph, groups=groups
    )
    nodes = {station.name: StationDataset([station.series]) for station in stations}
    if cell.method == "local":
        alone = job.model_copy(update={"evaluation": job.evaluation.model_copy(update={"unseen": ()})})
        results = [Harness(job.method, {name: node}, alone).run() for name, node in nodes.items()]
    elif cell.method == "central":
        results = [_central(job, stations, nodes, settings)]
    else:
        results = [Harness(job.method, nodes, job).run()]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for method in cell.methods:
        found[method] = {}
        for station in stations:
            start = prefix(method, seen=not station.unseen)
            found[method][station.name] = {name: _value(results, start + name, station.name) for name in FIGURES}
    return found


def _central(job: Any, stations: Sequence[Station], nodes: Mapping[str, StationDataset], settings: Settings) -> Any:
    """One node that holds all training stations; it sees as many windows as they would together."""
    seen = [station.series for station in stations if not station.unseen]
    batch = job.method_config["training"]["batch_size"]
    windows = len(seen) * settings.rounds * settings.local_steps * settings.batch_size
    job.method_config["training"]["local_steps"] = max(1, windows // batch)
    everybody = job.evaluation.model_copy(update={"unseen": tuple(nodes)})
    job = job.model_copy(update={"evaluation": everybody})
    return Harness(job.method, {**nodes, "everything": StationDataset(seen)}, job).run()


def _value(results: Iterable[HarnessResult], name: str, node: str) -> float:
    for result in results:
        values = result.by_node(name)
        if node in values:
            return values[node]
    raise KeyError(f"{name} of {node}")


def _floor(cell: Cell, stations: Sequence[Station], settings: Settings) -> dict[str, dict[str, float]]:
    forecaster = persistence if cell.method == "persistence" else seasonal_naive
    found = {}
    for station in stations:
        series = station.series
        _, rows = origins(series, window=settings.window, lags=settings.lags, horizon=cell.horizon)
        level = fit_scale(series, cell.horizon).level
        forecast = forecaster(series, rows, horizon=cell.horizon, quantiles=settings.quantiles)
        truth = series.values[rows[:, None] + np.arange(1, cell.horizon + 1)]
        scores = score_quantiles(truth / level, forecast / level, settings.quantiles)
        icp = 100.0 * float(scores.icp.mean())
        found[station.name] = {
            "qs": float(scores.qs.mean()),
            "icp": icp,
            "mil": float(scores.mil.mean()),
            "icp_gap": abs(icp - 100.0 * nominal_coverage(settings.quantiles)),
            "qs_original": float(scores.qs.mean()) * level,
            "mil_original": float(scores.mil.mean()) * level,
        }
    return found


def _rows(
    cell: Cell, stations: Sequence[Station], figures: Mapping[str, Mapping[str, float]], seconds: float
) -> list[dict[str, Any]]:
    rows = []
    for seen in (True, False):
        own = [station for station in stations if station.unseen != seen]
        if not own:
            continue
        row: dict[str, Any] = {
            "dataset": cell.dataset,
            "horizon": cell.horizon,
            "history_weeks": cell.history_weeks,
            "seen": seen,
            "method": cell.method,
            "seed": cell.seed,
        }
        for name in FIGURES:
            row[name] = round(statistics.fmean(figures[station.name][name] for station in own), 6)
        row["qs_median"] = round(statistics.median(figures[station.name]["qs"] for station in own), 6)
        row["qs_sd"] = round(statistics.pstdev([figures[station.name]["qs"] for station in own]), 6)
        row["qs_by_city"] = {
            city: round(statistics.fmean(figures[s.name]["qs"] for s in own if s.city == city), 6)
            for city in sorted({station.city for station in own})
        }
        rows.append(row | {"stations": len(own), "seconds": seconds})
    return rows


def available(folder: Path) -> list[str]:
    """The data sets of a folder, the largest first."""
    if (folder / "occupancy.csv").exists():
        return ["st_evcdp"]
    found = [name for name in CITIES if all(file_of(folder, name, city).exists() for city in CITIES[name])]
    if not found:
        sys.exit(f"{folder} holds none of the data sets {', '.join(CITIES)}, and no occupancy.csv of ST-EVCDP.")
    return found


def planned(options: argparse.Namespace) -> list[Cell]:
    """The cells of the table, the most telling ones first."""
    methods = [m for m in (options.methods or (ABLATION if options.ablation else METHODS)) if m not in TOGETHER]
    first = options.seeds[0]
    here = [PLANTED] if options.dataset == PLANTED else available(options.data)
    if options.quick:
        dataset = options.dataset or here[-1]
        return [Cell(dataset=dataset, horizon=6, history_weeks=4, method=method, seed=first) for method in QUICK]
    wanted: list[tuple[str, int, int | None, int]]
    wanted = [(here[0], 6, weeks, seed) for seed in options.seeds for weeks in (4, None)]
    wanted += [(here[0], 6, 1, seed) for seed in (options.seeds if options.history == 1 else [first])]
    wanted += [(here[0], horizon, None, first) for horizon in (3, 12)]
    wanted += [(name, horizon, None, first) for name in here[1:] for horizon in (6, 3, 12)]
    if options.ablation and not options.horizon:
        wanted = [(here[0], 6, 4, first)]
    cells = []
    for dataset, horizon, weeks, seed in wanted:
        if options.dataset not in (None, dataset) or options.horizon not in (None, horizon):
            continue
        if options.history is not None and options.history != (weeks or 0):
            continue
        for method in methods:
            if method in FLOORS and seed != first:
                continue  # nothing about them is random
            cells.append(Cell(dataset=dataset, horizon=horizon, history_weeks=weeks, method=method, seed=seed))
    return cells


def known(out: Path | None) -> list[dict[str, Any]]:
    if out is None or not out.exists():
        return []
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines() if line.strip()]


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("dataset", "horizon", "history_weeks", "method", "seed"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of .npz files, or one of ST-EVCDP's layout")
    parser.add_argument("--dataset", choices=[*CITIES, "st_evcdp", PLANTED], default=None)
    parser.add_argument("--horizon", type=int, choices=(3, 6, 12), default=None)
    parser.add_argument("--history", type=int, choices=(0, 1, 4), default=None, help="weeks of training data; 0: all")
    parser.add_argument("--methods", nargs="*", default=None, choices=[*METHODS, *ABLATION], metavar="METHOD")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--json", action="store_true", help="one JSON array of rows on standard output")
    parser.add_argument("--out", type=Path, help="append rows here, and skip those that are there")
    parser.add_argument("--quick", action="store_true", help="one place of the table: palo_alto, 6 steps, 4 weeks")
    parser.add_argument("--ablation", action="store_true", help="variants of fedgame instead of its rivals")
    parser.add_argument("--check-federation", action="store_true", help="one cell again with processes and sockets")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    parser.add_argument("--client", choices=("adam", "sgd"), default=Settings.optimiser, help="its optimiser")
    parser.add_argument("--local-steps", type=int, default=Settings.local_steps)
    parser.add_argument("--window", type=int, default=Settings.window)
    options = parser.parse_args()
    changed: dict[str, Any] = {
        "optimiser": options.client,
        "rounds": options.rounds,
        "local_steps": options.local_steps,
        "window": options.window,
    }
    settings = replace(Settings(), **changed)
    print("settings:", json.dumps(asdict(settings)), file=sys.stderr)
    if options.check_federation:
        _check_federation(options.data, settings)
        return
    cells = planned(options)
    rows = known(options.out)
    there = {key(row) for row in rows}
    todo = [cell for cell in cells if any(key(asdict(replace(cell, method=m))) not in there for m in cell.methods)]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, min(options.jobs, len(todo))), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_cell, cell, options.data, settings): cell for cell in todo}
        for done in as_completed(running):
            found = [row for row in done.result() if key(row) not in there]
            rows += found
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
            for row in found:
                shown = (row["dataset"], row["horizon"], row["history_weeks"], row["method"], row["seed"], row["seen"])
                print(*shown, f"qs {row['qs']:.5f} icp {row['icp']:.1f} mil {row['mil']:.4f}", f"{row['seconds']} s",
                      file=sys.stderr, flush=True)  # fmt: skip
    wanted = {key(asdict(replace(cell, method=method))) for cell in cells for method in cell.methods}
    shown_rows = [row for row in rows if key(row) in wanted]
    print(table(shown_rows), ratios(shown_rows), sep="\n\n", file=sys.stderr)
    print(f"{len(todo)} cells in {time.monotonic() - began:.0f} s", file=sys.stderr)
    if options.json:
        print(json.dumps(shown_rows))


def _check_federation(folder: Path, settings: Settings) -> None:
    everybody = read_stations(folder, "palo_alto")
    settings = replace(settings, rounds=min(2, settings.rounds))
    stations, _ = shortened(everybody, 4, 100)
    unseen = tuple(station.name for station in stations if station.unseen)
    check(specification("fedgame", settings, horizon=6, seed=0, unseen=unseen, graph={}, groups={}), stations)


if __name__ == "__main__":
    main()
