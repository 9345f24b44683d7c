"""`hanse-agent predict`: a finished job's model on new records, with nobody else asked."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
import yaml

from hanse.harness import Harness
from hanse.method import DatasetDescription
from hanse.payload import Payload
from hanse_agent.files import write_json
from hanse_agent.learners.boosting_model import keep_model
from hanse_agent.main import run_command
from tests.unit.boosting_data import MemoryDataset, make_table, random_table, specification

CLASSES = ("calm", "busy", "ill")


class NamedClasses(MemoryDataset):
    def describe(self) -> DatasetDescription:
        return dataclasses.replace(super().describe(), facts={"classes": json.dumps(CLASSES)})


@pytest.fixture(scope="module")
def model() -> Payload:
    table = random_table(200, seed=3, features=3)
    named = make_table(table.features, table.target, feature_names=("age", "weight[kg]", "pulse"), class_names=CLASSES)
    found = Harness("fedscs_xgb", {"a": NamedClasses(named)}, specification(rounds=3)).run().model
    assert found is not None
    return found


class Site:
    """A node that has worked on jobs, as its folder says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "agent.yaml"
        document = {
            "coordinator": "nowhere.example.org:7443",
            "state": str(folder / "state"),
            "datasets": {
                "rows": {"kind": "table", "path": "gone.csv", "target": "y", "classes": ["calm", "busy", "ill"]}
            },
            "policy": {"methods": ["fedscs_xgb"]},
        }
        self.config.write_text(yaml.safe_dump(document))

    def job(self, identifier: str, name: str, model: Payload | None, method: str = "fedscs_xgb") -> None:
        root = self.folder / "state" / "jobs" / identifier
        for version in ("00000008", "00000009"):
            (root / "versions" / version).mkdir(parents=True)
        write_json(root / "job.json", {"job": identifier, "name": name, "method": method, "dataset": "rows"})
        if model is not None:
            keep_model(model, root / "versions" / "00000009")

    def predict(self, job: str, text: str, capsys: Any, output: str = "out.csv") -> tuple[int, dict[str, Any]]:
        (self.folder / "new.csv").write_text(text)
        arguments = ["--job", job, "--input", str(self.folder / "new.csv"), "--output", str(self.folder / output)]
        capsys.readouterr()
        code = run_command(["predict", *arguments, "--config", str(self.config), "--json"])
        return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def site(tmp_path: Path, model: Payload) -> Site:
    made = Site(tmp_path)
    made.job("job-1", "ward", model)
    return made


NEW = "pulse,remark,age,weight[kg]\n0.5,fine,1.5,\n-1.0,,-0.25,0.75\n"


def test_predictions_are_those_of_the_model_for_columns_in_any_order(site: Site, model: Payload, capsys: Any) -> None:
    code, said = site.predict("ward", NEW, capsys)
    assert (code, said["data"]["rows"], said["data"]["job"]) == (0, 2, "job-1")
    with (site.folder / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    booster = xgboost.Booster()
    booster.load_model(bytearray(model.arrays["model.ubj"].tobytes()))
    rows = np.array([[1.5, np.nan, 0.5], [-0.25, 0.75, -1.0]], dtype=np.float32)
    expected = booster.predict(xgboost.DMatrix(rows, feature_names=["age", "weight(kg)", "pulse"]))
    assert list(lines[0]) == ["prediction", "probability_calm", "probability_busy", "probability_ill"]
    assert [line["prediction"] for line in lines] == [CLASSES[k] for k in expected.argmax(axis=1)]
    found = [[float(value) for value in list(line.values())[1:]] for line in lines]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_parquet_comes_out_where_parquet_is_asked_for(site: Site, capsys: Any) -> None:
    import pyarrow.parquet

    assert site.predict("job-1", NEW, capsys, output="out.parquet")[0] == 0
    table = pyarrow.parquet.read_table(site.folder / "out.parquet")
    assert table.num_rows == 2
    assert table.column_names[0] == "prediction"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pulse,age\n1,2\n", r"lacks 1 of the model's 3 columns: weight\(kg\)\."),
        ("pulse,age,weight[kg]\n1,2,heavy\n", r"'weight\(kg\)'.*is not numeric"),
        ("pulse,age,weight[kg]\n1,inf,3\n", "'age' holds a value that is infinite"),
    ],
)
def test_records_that_do_not_fit_are_refused_by_column(site: Site, text: str, sentence: str, capsys: Any) -> None:
    import re

    code, said = site.predict("ward", text, capsys)
    assert code != 0
    assert re.search(sentence, said["error"]["sentence"]), said
    assert said["error"]["owner"] == "site"
    assert said["error"]["remedy"]
    assert not (site.folder / "out.csv").exists()


def test_an_unknown_job_and_a_model_that_has_not_come_are_named(site: Site, capsys: Any) -> None:
    code, said = site.predict("nothing", NEW, capsys)
    assert code != 0
    assert "knows: ward (job-1)" in said["error"]["sentence"]
    site.job("job-2", "later", None)
    code, said = site.predict("later", NEW, capsys)
    assert said["error"]["code"] == "MODEL_NOT_HERE"
    assert "hanse model pull" in said["error"]["remedy"]


def test_an_output_of_an_unknown_form_is_refused_before_anything_is_read(site: Site, capsys: Any) -> None:
    code, said = site.predict("ward", NEW, capsys, output="out.xlsx")
    assert code != 0
    assert ".csv" in said["error"]["remedy"]


@pytest.mark.usefixtures("probe")
def test_a_method_that_does_not_predict_at_nodes_says_so(site: Site, capsys: Any) -> None:
    site.job("job-3", "probing", None, method="probe")
    code, said = site.predict("probing", NEW, capsys)
    assert code != 0
    assert said["error"]["code"] == "NO_PREDICTION"
