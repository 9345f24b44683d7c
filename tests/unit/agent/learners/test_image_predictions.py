"""Predictions of images at the site: with the node's own arrays where it took part, as an unseen node elsewhere."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from hanse.errors import NotFound, OperatorError, SiteError
from hanse.harness import Harness
from hanse.learning.networks.image_models import WEIGHTS_VARIABLE
from hanse.method import Predictor, Scope
from hanse.models import load_model
from hanse_agent.learners.image_predictions import predict
from hanse_agent.learners.images import GperxanLearner
from tests.unit.image_data import domains, image_job


def trained(folder: Path, **changes: Any) -> Any:
    """A model of two nodes in `folder/model`, images of a node that trained and of an unseen one, and the run."""
    nodes = domains(3)
    changes = {"evaluation": {"every": 1, "unseen": ["node-2"]}, "rounds": 2, "select": "last", **changes}
    job = image_job(**changes, training={"learning_rate": 0.1, "schedule": "constant"})
    result = Harness("gperxan", nodes, job, folder / "work").run()
    (folder / "model").mkdir()
    assert result.model is not None
    for name, array in result.model.arrays.items():
        (folder / "model" / name).write_bytes(array.tobytes())
    for node in ("node-0", "node-2"):
        (folder / node).mkdir()
        for i, image in enumerate(nodes[node].images.images):
            Image.fromarray(image).save(folder / node / f"{i:03d}.png")
    return nodes, result


def state(folder: Path, node: str) -> Path:
    (version,) = (folder / "work" / "nodes" / node).iterdir()
    return version


def hits(found: Any, labels: np.ndarray) -> int:
    return int((found.columns["class"] == labels).sum())


def test_a_node_that_took_part_reads_its_own_bn_and_any_other_the_average(tmp_path: Path) -> None:
    nodes, result = trained(tmp_path)
    learner = GperxanLearner(nodes["node-2"])
    assert isinstance(learner, Predictor)
    stranger = learner.predict(state(tmp_path, "node-2"), tmp_path / "node-2")
    labels = nodes["node-2"].images.labels
    assert "averaged" in stranger.columns["read"][0]
    assert hits(stranger, labels) / len(labels) == pytest.approx(result.value("accuracy", scope=Scope.UNSEEN))
    member = learner.predict(state(tmp_path, "node-0"), tmp_path / "node-0")
    own = nodes["node-0"].images
    right = int((member.columns["class"] == own.labels)[own.held_out].sum())
    assert "own batch normalisation" in member.columns["read"][0]
    assert right / int(own.held_out.sum()) == pytest.approx(result.by_node("accuracy")["node-0"])
    # The pulled file reads as at an unseen node.
    pulled = predict(tmp_path / "model", tmp_path / "node-2")
    assert np.array_equal(pulled.columns["chance"], stranger.columns["chance"])
    abroad = predict(tmp_path / "model", tmp_path / "node-0")
    assert not np.array_equal(abroad.columns["chance"], member.columns["chance"])


@pytest.mark.parametrize("way", ["in_only", "batch_stats"])
def test_an_unseen_node_that_was_given_an_ensemble_too_reads_in_the_jobs_first_way(tmp_path: Path, way: str) -> None:
    nodes = domains(3)
    for also in ([], ["client_ensemble"]):
        job = image_job(
            rounds=1,
            evaluation={"every": 1, "unseen": ["node-2"]},
            unseen_bn=way,
            training={"learning_rate": 0.1, "schedule": "constant", "also_read": also},
        )
        Harness("gperxan", nodes, job, tmp_path / f"run-{len(also)}" / "work").run()
    Image.fromarray(nodes["node-2"].images.images[0]).save(tmp_path / "a.png")
    plain, given = (
        predict(state(tmp_path / f"run-{number}", "node-2"), tmp_path / "a.png").columns for number in (0, 1)
    )
    assert given["read"][0] == f"as an unseen node, by {way}"
    assert np.array_equal(given["chance"], plain["chance"])


def test_a_model_whose_bn_never_left_is_read_in_the_jobs_way_or_not_at_all(tmp_path: Path) -> None:
    nodes, result = trained(tmp_path, model={"bn_upload": "never"}, unseen_bn="in_only")
    found = predict(state(tmp_path, "node-2"), tmp_path / "node-2")
    labels = nodes["node-2"].images.labels
    assert "in_only" in found.columns["read"][0]
    assert hits(found, labels) / len(labels) == pytest.approx(result.value("accuracy", scope=Scope.UNSEEN))
    elsewhere = tmp_path / "b"
    elsewhere.mkdir()
    trained(elsewhere, model={"bn_upload": "never"}, evaluation={"every": 1})
    with pytest.raises(OperatorError, match="never left the nodes"):
        predict(elsewhere / "model", tmp_path / "node-2")


def test_faults_are_named(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(NotFound, match="no finished model"):
        predict(tmp_path / "nowhere", tmp_path / "node-2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SiteError, match="no image in"):
        predict(tmp_path / "model", tmp_path / "empty")
    with pytest.raises(OperatorError, match="3 names were given"):
        predict(tmp_path / "model", tmp_path / "node-2", classes=("a", "b", "c"))
    named = predict(tmp_path / "model", tmp_path / "node-2" / "000.png", classes=("row", "column"))
    assert named.columns["class"][0] in ("row", "column")
    (tmp_path / "node-2" / "zzz.png").write_bytes(b"no image")
    with pytest.raises(SiteError, match=r"zzz\.png cannot be read"):
        predict(tmp_path / "model", tmp_path / "node-2")


def test_pretrained_weights_are_needed_to_train_and_not_to_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load_model("small_cnn", {"classes": 2, "size": 8, "width": 2}).build()  # type: ignore[attr-defined]
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    digest = hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path))
    weights = {"weights": "w.safetensors", "weights_sha256": digest}
    trained(tmp_path, model=weights)
    with_them = predict(tmp_path / "model", tmp_path / "node-2").columns["chance"]
    own_with_them = predict(state(tmp_path, "node-0"), tmp_path / "node-0", own=state(tmp_path, "node-0"))
    monkeypatch.delenv(WEIGHTS_VARIABLE)
    assert np.array_equal(predict(tmp_path / "model", tmp_path / "node-2").columns["chance"], with_them)
    own = predict(state(tmp_path, "node-0"), tmp_path / "node-0", own=state(tmp_path, "node-0"))
    assert np.array_equal(own.columns["chance"], own_with_them.columns["chance"])
    # Where BN never left the nodes, batch statistics are read with the scale and shift that everybody began with.
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path))
    (tmp_path / "b").mkdir()
    trained(tmp_path / "b", model={**weights, "bn_upload": "never"}, unseen_bn="batch_stats")
    monkeypatch.delenv(WEIGHTS_VARIABLE)
    with pytest.raises(OperatorError, match=WEIGHTS_VARIABLE):
        predict(tmp_path / "b" / "model", tmp_path / "node-2")


def test_a_file_that_lacks_an_array_is_refused_by_name(tmp_path: Path) -> None:
    trained(tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    with safe_open(str(path), framework="pt") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del arrays["conv2.weight"]
    save_file(arrays, path, metadata=metadata)
    with pytest.raises(SiteError, match=r"lacks the array 'conv2\.weight'"):
        predict(tmp_path / "model", tmp_path / "node-2")
