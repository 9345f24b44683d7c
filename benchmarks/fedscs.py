"""FedSCS-XGB beside central XGBoost, a PAX-like method, bagging and local training: accuracy, macro-F1, bytes.

    python benchmarks/fedscs.py                         the whole table, on data/ or where --data points
    python benchmarks/fedscs.py --dataset dsads_har --bins 64 --json
    python benchmarks/fedscs.py --quick                 one cell
    python benchmarks/fedscs.py --real                  one cell again as a real federation: the same bytes?

All methods have the same rounds, depth and learning rate (printed, and part of each row); the seed of the folds is 0.
FedSCS-XGB runs by atoms; by histograms as well where their bytes are few, and then the trees must be the same. Rows of
`--out` that are there already are not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from fedscs_data import Source, folds, load, splits, with_columns
from fedscs_methods import METHODS, Judged, Setting, fedscs

from hanse.learning.metrics import Confusion

BINS = (64, 128, 256, 512)
DATASETS = ("dsads_har", "heart4", "eicu_demo186")
SHAPES = {
    "dsads_har": {"rounds": 8, "depth": 6, "eta": 0.3},
    "heart4": {"rounds": 30, "depth": 3, "eta": 0.1},
    "eicu_demo186": {"rounds": 15, "depth": 3, "eta": 0.2},
}
DATA = Path(__file__).parents[2] / "shared" / "data"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of the table."""

    dataset: str
    split: str
    bins: int
    method: str
    statistics: str = ""
    columns: str = "all"
    rounds: int
    depth: int
    eta: float


def cells(datasets: tuple[str, ...], bins: tuple[int, ...]) -> Iterator[Cell]:
    """The whole table: dsads_har at each number of bins, the others at 256 (or the least asked for); the split that
    takes longest comes last."""
    every = [(name, split) for name in datasets for split in splits(name)]
    for dataset, split in sorted(every, key=lambda pair: pair[1] == "unseen_subject"):
        shape, har = SHAPES[dataset], dataset == "dsads_har"
        for count in bins if har else (256 if 256 in bins else bins[0],):
            cell = Cell(dataset=dataset, split=split, bins=count, method="fedscs", statistics="atoms", **shape)
            yield cell
            if dataset == "heart4":
                yield replace(cell, statistics="histograms")
            for method in METHODS:
                yield replace(cell, method=method, statistics="")
        if (dataset, split) == ("dsads_har", "time") and 64 in bins:
            # Dense histograms of 270 columns and 19 classes are gigabytes a round: 45 columns show the same trees.
            few = replace(cell, bins=64, columns="mean", rounds=10)
            yield few
            yield replace(few, statistics="histograms")
            yield replace(few, method="central", statistics="")


def measure(cell: Cell, source: Source) -> tuple[dict[str, Any], list[Judged]]:
    """Run one cell."""
    if cell.columns != "all":
        source = with_columns(source, cell.columns)
    setting = Setting(classes=source.classes, bins=cell.bins, rounds=cell.rounds, depth=cell.depth, eta=cell.eta)
    began, runs = time.monotonic(), []
    by_node: dict[str, Confusion] = {}
    truth, scores, sent = [], [], []
    for fold in folds(source, cell.split):
        judged = (
            fedscs(fold, setting, cell.statistics) if cell.method == "fedscs" else METHODS[cell.method](fold, setting)
        )
        runs.append(judged)
        sent.append(judged.bytes_per_round)
        for name, answers in judged.probabilities.items():
            labels = fold.tables[name].target[fold.tables[name].held_out].astype(np.int64)
            for probabilities in answers:
                found = Confusion.of(labels, probabilities.argmax(axis=1), source.classes)
                by_node[name] = by_node[name] + found if name in by_node else found
                truth.append(labels)
                scores.append(probabilities[:, 1])
    first, *others = by_node.values()
    pooled = sum(others, start=first)
    row = asdict(cell) | {
        "accuracy": round(pooled.accuracy, 5),
        "macro_f1": round(pooled.macro_f1, 5),
        "accuracy_sd_over_nodes": round(float(np.std([each.accuracy for each in by_node.values()])), 5),
        "macro_f1_sd_over_nodes": round(float(np.std([each.macro_f1 for each in by_node.values()])), 5),
        "bytes_per_round": round(float(np.mean(sent))),
        "seconds": round(time.monotonic() - began, 1),
    }
    if source.classes == 2:
        row["auc"] = round(auc(np.concatenate(truth), np.concatenate(scores)), 5)
    if runs[0].run is not None:
        row["model"] = runs[0].run.model_digest.hex()[:16]
    return row, runs


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve from ranks; ties count one half."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    ranks = np.empty(len(scores))
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(np.append(starts, len(scores)))
    ranks[order] = np.repeat(starts + (counts + 1) / 2, counts)
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def known(path: Path | None) -> dict[Cell, dict[str, Any]]:
    """The rows that a file holds already."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = Cell.__dataclass_fields__
    return {Cell(**{name: row[name] for name in names}): row for row in rows}


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compute what is missing and return all rows in order."""
    wanted = list(cells(options.dataset or DATASETS, options.bins or BINS))
    if options.quick:
        wanted = [cell for cell in wanted if cell.columns == "all"][:2]
    found = known(options.out)
    missing = [cell for cell in wanted if cell not in found]
    for cell in wanted:
        if cell in found:
            print(_line(found[cell]), file=sys.stderr, flush=True)
    for cell, row in _computed(missing, options):
        found[cell] = row
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        print(_line(row), file=sys.stderr, flush=True)
    return [found[cell] for cell in wanted]


def _computed(missing: list[Cell], options: argparse.Namespace) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Each cell with its row, as they become ready."""
    if options.jobs == 1:
        for cell in missing:
            yield cell, _measured(cell, options.data)
        return
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_measured, cell, options.data): cell for cell in missing}
        for done in as_completed(running):
            yield running[done], done.result()


def _measured(cell: Cell, data: Path) -> dict[str, Any]:
    row, _ = measure(cell, _source(cell.dataset, data))
    return row


@cache
def _source(name: str, data: Path) -> Source:
    return load(name, data)


def _line(row: dict[str, Any]) -> str:
    method = row["method"] + (f" ({row['statistics']})" if row["statistics"] else "")
    extra = f"  auc {row['auc']:.4f}" if "auc" in row else ""
    return (
        f"{row['dataset']:13} {row['split']:15} {row['bins']:4} {row['columns']:5} {method:20} "
        f"accuracy {row['accuracy']:.4f} ± {row['accuracy_sd_over_nodes']:.4f}  macro-F1 {row['macro_f1']:.4f}{extra}  "
        f"{row['bytes_per_round'] / 1e6:9.3f} MB/round  {row['seconds']:7.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", action="append", choices=DATASETS, help="only this one; may be repeated")
    parser.add_argument("--bins", action="append", type=int, metavar="N", help="only so many bins; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON array of rows on standard output")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append each row to this file; skip what is there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="cells that run at once (cores)")
    parser.add_argument("--quick", action="store_true", help="one cell: FedSCS-XGB and central training")
    parser.add_argument("--data", type=Path, default=DATA, metavar="PATH", help="the data: a file, or the folder of it")
    parser.add_argument("--real", action="store_true", help="a cell by histograms again, as a real federation")
    options = parser.parse_args()
    options.dataset = tuple(options.dataset) if options.dataset else None
    options.bins = tuple(options.bins) if options.bins else None
    for name in options.dataset or DATASETS:
        print(f"settings of {name}: {SHAPES[name]}", file=sys.stderr)
    if options.real:
        from fedscs_real import compare

        rows = compare(options.data)
    else:
        rows = run(options)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
