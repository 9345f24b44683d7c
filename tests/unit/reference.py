"""The reference package of `benchmarks/` for tests: its models, its learner, and small tables that they learn."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hanse.method import DatasetDescription
from hanse.tables import Table

PATH = Path(__file__).parents[2] / "benchmarks" / "reference" / "hanse_reference.py"


def reference() -> ModuleType:
    """The module, imported once."""
    name = "hanse_reference"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PATH)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class TableInMemory:
    """A dataset of a table that is there."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def describe(self) -> DatasetDescription:
        return DatasetDescription(name="rows", kind="table", rows=len(self.table.target))

    def load(self) -> Table:
        return self.table


INPUTS, CLASSES = 6, 3
MODEL: Mapping[str, Any] = {"inputs": INPUTS, "classes": CLASSES}


def datasets(nodes: int = 4, rows: int = 60) -> dict[str, TableInMemory]:
    """Tables that one linear rule labels; every node has another number of rows, a fifth of them held out."""
    rule = np.random.default_rng(99).standard_normal((INPUTS, CLASSES))
    found = {}
    for number in range(nodes):
        rng = np.random.default_rng(number)
        features = rng.standard_normal((rows + 10 * number, INPUTS)).astype(np.float32)
        found[f"n{number}"] = TableInMemory(
            Table(
                features=features,
                feature_names=tuple("abcdef"),
                target=(features @ rule).argmax(axis=1).astype(np.float64),
                weight=np.ones(len(features), dtype=np.float32),
                held_out=np.arange(len(features)) % 5 == 0,
            )
        )
    return found
