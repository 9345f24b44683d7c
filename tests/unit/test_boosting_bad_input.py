"""What nodes may get wrong: each case is handled as XGBoost does, or refused by node and column with a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hanse.errors import Reason
from hanse.harness import Harness, HarnessResult
from hanse.tables import Table
from tests.unit.boosting_data import MemoryDataset, make_table, random_table, specification

NAMES = ("f0", "f1", "f2")


def good(seed: int, rows: int = 60) -> Table:
    return random_table(rows, seed=seed)


def changed(table: Table, **changes: Any) -> Table:
    values = {"feature_names": table.feature_names, "held_out": table.held_out} | changes
    features, target = values.pop("features", table.features), values.pop("target", table.target)
    return make_table(features, target, **values)


def run(odd: Table, statistics: str = "histograms", **changes: Any) -> HarnessResult:
    tables = {"ada": good(1), "ben": good(2), "eve": odd}
    job = specification(rounds=2, every=2, statistics=statistics, selection={"quorum": 0.6}, **changes)
    return Harness("fedscs_xgb", {name: MemoryDataset(each) for name, each in tables.items()}, job).run()


def refusal(odd: Table, **changes: Any) -> Reason:
    """Why the odd node was refused; the others have gone on."""
    result = run(odd, **changes)
    assert result.model is not None
    assert "ada" in result.phases[1].contributions
    return result.phases[0].refusals["eve"]


def with_value(value: float) -> np.ndarray:
    features = good(3).features.copy()
    features[7, 1] = value
    return features


@pytest.mark.parametrize(
    ("changes", "words", "remedy"),
    [
        (
            {"feature_names": ("f0", "f2", "f1")},
            "Column 2 of this dataset is 'f2', and that of the job is 'f1'",
            "order",
        ),
        ({"feature_names": ("f0", "f1", "mass")}, "'f2' is not in this dataset", "features"),
        ({"features": with_value(np.inf)}, "column 'f1' holds a value that is infinite", "Replace"),
        ({"features": with_value(-np.inf)}, "column 'f1' holds a value that is infinite", "Replace"),
        ({"target": np.full(60, 3.0)}, "(target column 'label'): The label of row 0 is 3.0", "target"),
        ({"target": np.full(60, -1.0)}, "(target column 'label'): The label of row 0 is -1.0", "target"),
        ({"target": np.full(60, 0.5)}, "(target column 'label'): The label of row 0 is 0.5", "target"),
    ],
)
def test_what_does_not_fit_is_refused_by_node_and_column(changes: dict[str, Any], words: str, remedy: str) -> None:
    reason = refusal(changed(good(3), **changes))
    assert "Node 'eve'" in reason.sentence
    assert words in reason.sentence
    assert remedy in reason.remedy
    assert reason.owner.value == "site"


@pytest.mark.parametrize("statistics", ["atoms", "histograms"])
@pytest.mark.parametrize(
    "odd",
    [
        changed(good(3), target=np.zeros(60)),
        changed(good(3), features=np.full((60, 3), 7.0)),
        changed(good(3), features=np.full((60, 3), np.nan)),
        changed(good(3), held_out=np.ones(60)),
        changed(good(3, rows=1), held_out=np.zeros(1)),
    ],
    ids=["one class alone", "constant columns", "all values missing", "no training row", "a single row"],
)
def test_what_xgboost_takes_is_taken(odd: Table, statistics: str) -> None:
    result = run(odd, statistics)
    assert not any(record.refusals for record in result.phases)
    assert result.model is not None


def test_a_class_that_no_node_has_costs_nothing() -> None:
    result = run(good(3), classes=5)
    assert result.value("accuracy") > 0.4


def test_columns_that_are_constant_or_missing_everywhere_are_never_split() -> None:
    tables = {}
    for name, seed in (("ada", 1), ("ben", 2)):
        table = good(seed)
        features = table.features.copy()
        features[:, 1], features[:, 2] = 5.0, np.nan
        tables[name] = MemoryDataset(changed(table, features=features))
    result = Harness("fedscs_xgb", tables, specification(rounds=3, statistics="histograms")).run()
    (importance,) = (picture for picture in result.phases[-2].outcome.pictures if picture.name == "feature_importance")
    assert importance.payload.arrays["splits"].tolist()[1:] == [0, 0]
