"""The data of the FedSCS-XGB benchmark: tables by node, and the splits into rows to learn from and rows to judge by.

dsads_har      8 people, 19 activities, 270 columns (CC BY 4.0)
heart4         4 hospitals, 13 columns with many values missing (CC BY 4.0)
eicu_demo186   186 hospitals with about 11 stays each (ODbL 1.0)
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hanse.method import Column, DatasetDescription
from hanse.tables import Table

_FILES = {
    "dsads_har": "dsads_features.npz",
    "heart4": "heart4.csv.gz",
    "eicu_demo186": "eicu_demo186.csv.gz",
}
# What is not an input: targets, other outcomes, APACHE's own scores, and the split into nodes.
_HEART_OTHERS = {"hospital", "num", "disease"}
_EICU_OTHERS = {
    "hospital", "region", "died_in_hospital", "died_in_icu", "icu_days", "acutephysiologyscore", "apachescore",
    "apache_iva_predicted_mortality",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Source:
    """All rows of a data set: features float32 [n, F], labels int64 [n], the node of each row, its place in time.

    `parts`: into how many folds the split `folds` cuts the rows of each node.
    """

    features: np.ndarray
    names: tuple[str, ...]
    labels: np.ndarray
    classes: int
    node: np.ndarray
    time: np.ndarray
    parts: int = 5


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One training run: tables by node, whose held-out rows are those to judge by; `unseen` nodes never train."""

    tables: Mapping[str, Table]
    unseen: tuple[str, ...] = ()

    @property
    def training(self) -> dict[str, Table]:
        """The nodes that train."""
        return {name: table for name, table in self.tables.items() if name not in self.unseen}


class MemoryDataset:
    """A node's table as the harness wants it."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def describe(self) -> DatasetDescription:
        columns = [Column(name=name, dtype="float32") for name in self.table.feature_names]
        columns.append(Column(name="label", dtype="float64"))
        rows = len(self.table.target)
        return DatasetDescription(name="rows", kind="table", rows=rows, columns=tuple(columns), target="label")

    def load(self) -> Table:
        return self.table


def load(dataset: str, root: Path) -> Source:
    """Read a data set from its file, or from a folder that holds it (or a folder of its name)."""
    file = _FILES[dataset]
    path = next((p for p in (root, root / file, root / dataset / file) if p.is_file()), None)
    if path is None:
        raise SystemExit(f"{root} holds no {file}; give the folder with --data.")
    return _har(path) if dataset == "dsads_har" else _table(path, heart=dataset == "heart4")


def splits(dataset: str) -> tuple[str, ...]:
    """The splits of a data set."""
    return ("time", "unseen_subject") if dataset == "dsads_har" else ("folds",)


def folds(source: Source, split: str) -> Iterator[Fold]:
    """The training runs of a split. `folds`: each row is judged once, by a model that has not seen it."""
    if split == "time":
        yield Fold(tables=_by_node(source, source.time > 48))
    elif split == "unseen_subject":
        for name in sorted(set(source.node)):
            yield Fold(tables=_by_node(source, source.node == name), unseen=(name,))
    else:
        part = np.zeros(len(source.labels), dtype=np.int64)
        rng = np.random.default_rng(0)
        for name in sorted(set(source.node)):
            own = np.flatnonzero(source.node == name)
            part[own] = (rng.permutation(len(own)) + rng.integers(source.parts)) % source.parts
        for k in range(source.parts):
            yield Fold(tables=_by_node(source, part == k))


def with_columns(source: Source, ending: str) -> Source:
    """Only the columns whose names end so."""
    chosen = [i for i, name in enumerate(source.names) if name.endswith(ending)]
    return replace(source, features=source.features[:, chosen], names=tuple(source.names[i] for i in chosen))


def _by_node(source: Source, held_out: np.ndarray) -> dict[str, Table]:
    tables = {}
    for name in sorted(set(source.node)):
        own = source.node == name
        tables[str(name)] = Table(
            features=source.features[own],
            feature_names=source.names,
            target=source.labels[own].astype(np.float64),
            weight=np.ones(int(own.sum()), dtype=np.float32),
            held_out=held_out[own],
        )
    return tables


def _har(path: Path) -> Source:
    with np.load(path, allow_pickle=False) as file:
        return Source(
            features=file["X"].astype(np.float32),
            names=tuple(str(name) for name in file["feature_names"]),
            labels=file["y"].astype(np.int64),
            classes=int(file["y"].max()) + 1,
            node=np.array([f"subject-{s}" for s in file["subject"]]),
            time=file["segment"].astype(np.int64),
        )


def _table(path: Path, *, heart: bool) -> Source:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    others, target = (_HEART_OTHERS, "disease") if heart else (_EICU_OTHERS, "died_in_hospital")
    names = tuple(name for name in rows[0] if name not in others and _numeric(rows, name))
    values = [[float(row[name]) if row[name] else np.nan for name in names] for row in rows]
    width = 0 if heart else 3
    return Source(
        features=np.array(values, dtype=np.float32),
        names=names,
        labels=np.array([int(float(row[target])) for row in rows]),
        classes=2,
        node=np.array([f"hospital-{row['hospital'].zfill(width)}" for row in rows]),
        time=np.zeros(len(rows), dtype=np.int64),
        parts=5 if heart else 3,
    )


def _numeric(rows: list[dict[str, str]], name: str) -> bool:
    try:
        return sum(bool(row[name]) and bool(np.isfinite(float(row[name]))) for row in rows) > 0
    except ValueError:
        return False
