"""Tables at a node: the same rows from every format, and errors that name file, column and row."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from hanse.errors import OperatorError, SiteError
from hanse.method import Dataset
from hanse.settings import validate
from hanse.tables import Table
from hanse_agent.datasets.table import TableDataset

CSV = """age,weight,kept,city,label
41,70.5,0,Bern,0
,80.25,0,Basel,1
60,NaN,0,Bern,1
52,66,1,Bern,0
"""


def table(path: Path, **options: Any) -> TableDataset:
    return TableDataset("heart", {"path": path, "target": "label", **options})


@pytest.fixture(params=["csv", "csv.gz", "parquet", "npz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / f"heart.{request.param}"
    age = np.array([41, np.nan, 60, 52])
    weight = np.array([70.5, 80.25, np.nan, 66])
    rest = {"kept": np.array([0, 0, 0, 1]), "label": np.array([0, 1, 1, 0])}
    city = ["Bern", "Basel", "Bern", "Bern"]
    if request.param == "csv":
        file.write_text(CSV)
    elif request.param == "csv.gz":
        file.write_bytes(gzip.compress(CSV.encode()))
    elif request.param == "parquet":
        ages = pyarrow.array([41, None, 60, 52], pyarrow.int64())
        parquet.write_table(pyarrow.table({"age": ages, "weight": weight, "city": city, **rest}), file)
    else:
        np.savez(file, X=np.stack([age, weight], axis=1), feature_names=["age", "weight"], city=city, **rest)
    return file


def test_every_format_gives_the_same_rows(path: Path) -> None:
    rows = table(path, holdout_column="kept").load()
    assert isinstance(rows, Table)
    assert rows.feature_names == ("age", "weight")
    np.testing.assert_array_equal(
        rows.features, np.array([[41, 70.5], [np.nan, 80.25], [60, np.nan], [52, 66]], dtype=np.float32)
    )
    assert rows.features.dtype == np.float32
    assert rows.target.tolist() == [0, 1, 1, 0]
    assert rows.held_out.tolist() == [False, False, False, True]
    assert rows.weight.tolist() == [1, 1, 1, 1]


def test_where_chooses_rows_by_text_and_by_number(path: Path) -> None:
    rows = table(path, holdout_column="kept", where={"city": "Bern", "label": [0, 2]}).load()
    assert rows.target.tolist() == [0, 0]
    assert rows.features[:, 0].tolist() == [41, 52]


def test_the_description_says_shape_and_schema_and_no_records(path: Path) -> None:
    description = table(path, holdout_column="kept", where={"city": "Bern"}).describe()
    assert (description.name, description.kind, description.rows, description.target) == ("heart", "table", 3, "label")
    assert [(c.name, c.dtype) for c in description.columns] == [
        ("age", "float32"),
        ("weight", "float32"),
        ("label", "float64"),
    ]
    assert not description.facts


def test_the_last_rows_are_held_out_by_share(path: Path) -> None:
    assert table(path, holdout=0.5).load().held_out.tolist() == [False, False, True, True]
    assert table(path, holdout=0.2).load().held_out.tolist() == [False, False, False, True]
    assert table(path).load().held_out.tolist() == [False] * 4


def test_rows_above_a_value_are_held_out(path: Path) -> None:
    held_out = table(path, features=["weight"], holdout_column="label", holdout_above=0, target="kept").load().held_out
    assert held_out.tolist() == [False, True, True, False]


def test_features_come_in_the_order_asked_for(path: Path) -> None:
    rows = table(path, features=["weight", "age"]).load()
    assert rows.feature_names == ("weight", "age")
    assert rows.features[0].tolist() == [70.5, 41]


def test_classes_of_text_get_the_numbers_of_the_list(path: Path) -> None:
    dataset = table(path, target="city", classes=["Basel", "Bern"])
    assert dataset.load().target.tolist() == [1, 0, 1, 1]
    assert dataset.load().class_names == ("Basel", "Bern")
    assert dataset.describe().facts == {"classes": '["Basel", "Bern"]'}


def test_instance_weights_are_read_and_not_learned_from(path: Path) -> None:
    with pytest.raises(SiteError, match=r"'age'.*not a positive finite number in row 2"):
        table(path, weight="age").load()


def test_weights_are_one_a_row(tmp_path: Path) -> None:
    file = tmp_path / "weights.csv"
    file.write_text("a,w,label\n1,0.5,0\n2,3,1\n")
    rows = table(file, weight="w").load()
    assert rows.feature_names == ("a",)
    assert rows.weight.tolist() == [0.5, 3.0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "disease"}, "no column 'disease'"),
        ({"features": ["age", "height"]}, "no column 'height'"),
        ({"where": {"town": 1}}, "no column 'town'"),
        ({"where": {"city": "Genf"}}, "No row of"),
        ({"features": ["city"]}, r"'city'.*not numeric"),
        ({"target": "city"}, r"'city'.*holds text"),
        ({"target": "city", "classes": ["Bern"]}, r"'city'.*none of 'classes' in row 2"),
        ({"target": "age"}, r"'age'.*no value in row 2"),
        ({"columns": {"label": "text"}}, r"'label'.*declared schema says text"),
        ({"columns": {"income": "number"}}, "no column 'income'"),
    ],
)
def test_what_does_not_fit_is_named_with_file_column_and_row(
    path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SiteError, match=sentence) as caught:
        table(path, **options).load()
    assert str(path) in caught.value.sentence
    assert caught.value.remedy


def test_a_declared_schema_that_fits_is_accepted(path: Path) -> None:
    table(path, columns={"city": "text", "age": "number", "weight": "float64"}).load()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"holdout": 0.2, "holdout_column": "kept"}, "not both"),
        ({"features": ["a", "a"]}, "twice"),
        ({"features": ["label"]}, "cannot be a feature"),
        ({"colums": {}}, "unknown key 'colums'"),
        ({"columns": {"a": "integer"}}, "unknown type 'integer'"),
        ({"holdout_above": 3}, "needs holdout_column"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OperatorError, match=sentence):
        validate(TableDataset.Options, {"path": "x.csv", "target": "label", **options}, source="datasets.heart")


def test_a_number_that_appears_late_does_not_upset_the_guess_of_a_type(tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    rows = 200_000
    file.write_text("a,b,label\n" + "1,2,0\n" * rows + "1.5,,1\n")
    loaded = table(file).load()
    assert loaded.features[-1, 0] == 1.5
    assert np.isnan(loaded.features[-1, 1])
    assert len(loaded.target) == rows + 1


def test_a_word_among_numbers_is_found_by_its_row(tmp_path: Path) -> None:
    file = tmp_path / "words.csv"
    file.write_text("a,label\n1,0\n,1\n'3,5',1\n".replace("'", '"'))
    with pytest.raises(SiteError, match=r"'a' of .*words.csv is not numeric: row 3 holds '3,5'"):
        table(file, features=["a"]).load()


def test_infinities_and_numbers_beyond_float32_stay_visible(tmp_path: Path) -> None:
    file = tmp_path / "large.csv"
    file.write_text("a,label\n1e300,0\n-inf,1\n")
    assert table(file).load().features.ravel().tolist() == [np.inf, -np.inf]


def test_an_all_missing_column_is_a_feature_without_values(tmp_path: Path) -> None:
    file = tmp_path / "empty.csv"
    file.write_text("a,b,label\n,1,0\n,2,1\n")
    rows = table(file).load()
    assert rows.feature_names == ("a", "b")
    assert np.isnan(rows.features[:, 0]).all()


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "npz"])
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"broken.{suffix}"
    file.write_bytes(b"\x00\x01not a table\n" * 3)
    with pytest.raises(SiteError, match=r"broken"):
        table(file).load()


def test_missing_unknown_and_unreadable_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="does not exist"):
        table(tmp_path / "none.csv").describe()
    with pytest.raises(SiteError, match="is not a file"):
        table(tmp_path).describe()
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises(SiteError, match="suffix"):
        table(tmp_path / "a.xlsx").describe()


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a,label\n1,0\n")
    file.chmod(0)
    if os.geteuid() == 0:  # root may read everything
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SiteError, match="may not be read by the user"):
        table(file).describe()


def test_pickled_objects_in_an_npz_file_are_never_read(tmp_path: Path) -> None:
    file = tmp_path / "objects.npz"
    np.savez(file, X=np.ones((1, 1)), label=np.array([{}], dtype=object))
    with pytest.raises(SiteError, match="objects, which are never read"):
        table(file).load()


def test_a_description_tells_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "growing.csv"
    file.write_text("a,label\n1,0\n")
    dataset = table(file)
    assert dataset.describe().rows == 1
    file.write_text("a,label\n1,0\n2,1\n")
    assert dataset.describe().rows == 2
    assert len(dataset.load().target) == 2


def test_a_table_is_a_dataset(tmp_path: Path) -> None:
    assert isinstance(table(tmp_path / "x.csv"), Dataset)
