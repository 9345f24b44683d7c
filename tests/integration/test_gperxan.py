"""Methods steered by evaluations as federations of processes: the bytes of the harness, and the selected round's model
at each node, with the node's own arrays of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from hanse.demos.federation import FinishedJob, federation, metric, run_job
from hanse.demos.people import Person
from hanse.harness import Harness, HarnessResult
from hanse.method import Assignment
from hanse.payload import Payload
from hanse_agent.datasets.images import ImagesDataset
from hanse_agent.learners.image_predictions import predict
from hanse_agent.learners.images import GperxanLearner
from hanse_agent.learners.network_state import NetworkState
from hanse_agent.main import run_command
from tests.unit.image_data import domains, image_job

UNSEEN, ROUNDS = "node-3", 5


class Remembering(GperxanLearner):
    """Keeps what every node held after each round."""

    own: ClassVar[dict[tuple[str, int], Any]] = {}

    def perform(self, assignment: Assignment) -> Payload:
        reply = super().perform(assignment)
        if assignment.phase == "train":
            Remembering.own[assignment.node, assignment.round] = dict(NetworkState.load(assignment.next_state).own)
        return reply


def people(folder: Path) -> dict[Person, dict[str, Any]]:
    """Four nodes and their blocks of `agent.yaml`; each has its images once more in a folder `new`."""
    blocks: dict[Person, dict[str, Any]] = {}
    for name, domain in domains(4).items():
        person = Person(name=name, folder=folder / "people" / name)
        images = domain.images
        (person.folder / "new").mkdir(parents=True)
        np.savez(person.folder / "d.npz", x=images.images, y=images.labels, test=images.held_out)
        for i, image in enumerate(images.images):
            Image.fromarray(image).save(person.folder / "new" / f"{i:03d}.png")
        blocks[person] = {"kind": "images", "path": str(person.folder / "d.npz"), "npz_holdout": "test"}
    return blocks


def both(method: str, folder: Path, **changes: Any) -> tuple[FinishedJob, HarnessResult, list[Person]]:
    """A job over processes and in this one; the models are the same."""
    torch.set_num_threads(1)  # as the agents' workers do: the same bytes
    blocks = people(folder)
    job = image_job(
        method,
        seed=3,
        selection={"minimum_nodes": 3, "quorum": 1.0, "deadline": "2m"},
        training={"learning_rate": 0.3, "schedule": "constant"},
        **changes,
    )
    with federation(blocks, folder=folder, dataset="d", method=method, say=lambda _: None) as control:
        done = run_job(control, list(blocks), job, folder=folder, say=lambda _: None)
    nodes = {
        person.name: ImagesDataset("d", {key: value for key, value in block.items() if key != "kind"})
        for person, block in blocks.items()
    }
    result = Harness(method, nodes, job, learner=Remembering if method == "gperxan" else None).run()
    assert result.model_digest == done.digest
    return done, result, list(blocks)


def test_agents_predict_with_the_selected_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = {"every": 1, "unseen": [UNSEEN]}
    done, _, everybody = both("gperxan", tmp_path, rounds=ROUNDS, evaluation=evaluation)
    best = int(metric(done.detail, "selected_round", "aggregation"))
    assert 1 <= best < ROUNDS  # else this run shows nothing
    assert metric(done.detail, "nodes_with_the_model", "aggregation") == 4
    for person in everybody:
        output = person.folder / "out.csv"
        arguments = ["--job", done.job, "--input", str(person.folder / "new"), "--output", str(output)]
        assert run_command(["predict", *arguments, "--config", str(person.config), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["data"]["rows"] == 40
        with output.open(newline="") as file:
            rows = list(csv.DictReader(file))
        own = None
        if person.name != UNSEEN:
            own = person.folder / "expected"
            own.mkdir()
            NetworkState(round=best, own=Remembering.own[person.name, best]).save(own)
            assert rows[0]["read"].endswith(f"own batch normalisation (round {best})")
        expected = predict(done.files["model.safetensors"], person.folder / "new", own=own).columns
        assert [float(row["chance"]) for row in rows] == [float(str(chance)) for chance in expected["chance"]]
        assert [int(row["class"]) for row in rows] == expected["class"].tolist()


def test_feddg_ga_weighs_by_gaps_over_processes_as_in_one(tmp_path: Path) -> None:
    done, result, _ = both("feddg_ga", tmp_path, rounds=2, gap_step=1.0)
    weights = result.by_node("gap_weight")
    assert len(set(weights.values())) > 1
    assert {node: metric(done.detail, "gap_weight", "node", node) for node in weights} == weights


def test_a_site_that_took_no_part_reads_a_pulled_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = domains(3)
    model = Harness("gperxan", nodes, image_job(rounds=1)).run().model
    assert model is not None
    (tmp_path / "model").mkdir()
    for name, array in model.arrays.items():
        (tmp_path / "model" / name).write_bytes(array.tobytes())
    (tmp_path / "new").mkdir()
    for i, image in enumerate(nodes["node-2"].images.images[:5]):
        Image.fromarray(image).save(tmp_path / "new" / f"{i}.png")
    block = {"kind": "images", "path": "not-here", "classes": ["row", "column"]}
    site = {"coordinator": "nowhere.example.org:7443", "state": "state", "policy": {"methods": ["gperxan"]}}

    def answer(datasets: dict[str, Any], *source: str) -> tuple[int, Any]:
        (tmp_path / "agent.yaml").write_text(yaml.safe_dump({**site, "datasets": datasets}))
        places = ["--input", str(tmp_path / "new"), "--output", str(tmp_path / "out.csv")]
        code = run_command(["predict", *source, *places, "--config", str(tmp_path / "agent.yaml"), "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, said = answer({"d": block}, "--model", str(tmp_path / "model"))
    assert (code, said["data"]["rows"], said["data"]["job"]) == (0, 5, "")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = predict(tmp_path / "model", tmp_path / "new", classes=("row", "column")).columns
    assert [row["class"] for row in rows] == expected["class"].tolist()
    assert "as an unseen node" in rows[0]["read"]
    assert answer({"d": block}, "--model", str(tmp_path / "model"), "--job", "j")[0] == 2
    assert answer({"d": block})[0] == 2
    code, said = answer({"d": block, "e": block}, "--model", str(tmp_path / "model"))
    assert said["error"]["code"] == "DATASET_NOT_DECLARED"
    assert "d, e" in said["error"]["sentence"]
    code, said = answer({"d": block}, "--model", str(tmp_path / "new"))
    assert said["error"]["code"] == "NO_MODEL"
