"""The benchmark of FedSCS-XGB on a small table: every cell, its keys, and rows that are there already."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import fedscs
from fedscs_data import folds, load

KEYS = {"dataset", "split", "bins", "method", "statistics", "accuracy", "macro_f1", "accuracy_sd_over_nodes"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people, three activities, sixty segments of each, four columns."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    subject, y, segment = (each.ravel() for each in np.meshgrid([1, 2, 3], [0, 1, 2], np.arange(1, 61), indexing="ij"))
    values = rng.normal(size=(len(y), 4)) + y[:, None] * [1.5, 0.5, 0, 0] + subject[:, None] * 0.2
    names = np.array(["a_mean", "b_mean", "a_std", "b_std"])
    path = folder / "dsads_features.npz"
    np.savez(path, X=values.astype(np.float32), feature_names=names, y=y, subject=subject, segment=segment)
    return folder


def test_the_whole_table_has_every_cell_once() -> None:
    cells = list(fedscs.cells(fedscs.DATASETS, fedscs.BINS))
    assert len(set(cells)) == len(cells)
    har = {(cell.split, cell.bins, cell.method) for cell in cells if cell.columns == "all" and "har" in cell.dataset}
    assert len(har) == 2 * 4 * 5
    assert {cell.dataset for cell in cells} == set(fedscs.DATASETS)
    few = [cell for cell in cells if cell.columns == "mean"]
    assert {cell.statistics for cell in few} == {"atoms", "histograms", ""}


def test_unseen_people_never_train_and_each_row_is_judged_once(data: Path) -> None:
    source = load("dsads_har", data)
    every = list(folds(source, "unseen_subject"))
    assert [fold.unseen for fold in every] == [("subject-1",), ("subject-2",), ("subject-3",)]
    assert all(not table.held_out.any() for fold in every for table in fold.training.values())
    (time,) = folds(source, "time")
    assert {int(table.held_out.sum()) for table in time.tables.values()} == {36}


def test_a_row_is_computed_once_and_has_the_promised_keys(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(fedscs.SHAPES, "dsads_har", {"rounds": 2, "depth": 3, "eta": 0.3})
    options = argparse.Namespace(
        dataset=("dsads_har",), bins=(16,), out=tmp_path / "rows.jsonl", quick=False, data=data, json=True, jobs=1
    )
    rows = fedscs.run(options)
    assert all(row.keys() >= KEYS | {"bytes_per_round"} for row in rows)
    assert {row["method"] for row in rows} == {"central", "fedscs", "pax_like", "bagging", "local"}
    assert all(0.4 < row["accuracy"] <= 1 for row in rows)
    sending = {row["method"] for row in rows if row["bytes_per_round"] > 0}
    assert sending == {"fedscs", "pax_like", "bagging"}
    monkeypatch.setattr(fedscs, "measure", lambda *_: pytest.fail("computed again"))
    assert fedscs.run(options) == [json.loads(line) for line in options.out.read_text().splitlines()]


def test_both_statistics_give_one_model(data: Path) -> None:
    source = load("dsads_har", data)
    cell = fedscs.Cell(
        dataset="dsads_har", split="time", bins=16, method="fedscs", statistics="atoms", rounds=2, depth=3, eta=0.3
    )
    atoms, _ = fedscs.measure(cell, source)
    histograms, _ = fedscs.measure(dataclasses.replace(cell, statistics="histograms"), source)
    assert atoms["model"] == histograms["model"]
    assert atoms["bytes_per_round"] != histograms["bytes_per_round"]


def test_the_area_under_the_curve_counts_ties_by_half() -> None:
    assert fedscs.auc(np.array([0, 1]), np.array([0.1, 0.9])) == 1.0
    assert fedscs.auc(np.array([0, 1, 1, 0]), np.array([0.5, 0.5, 0.7, 0.2])) == pytest.approx(3.5 / 4)
