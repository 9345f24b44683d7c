"""agent.yaml: every key counts, and a wrong one is named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hanse.errors import OperatorError
from hanse_agent.settings import AgentConfig

SAMPLE = """
coordinator: federation.example.org:7443
state: /var/lib/hanse
labels: {kind: wearable}
datasets:
  activity:
    kind: table
    path: /data/activity.parquet
    target: exercise
policy:
  methods: [fedscs_xgb]
  minimum_rows: 200
  largest_payload: 200MB
  minimum_rows_per_atom: 5
  approve: automatically
worker: {threads: 1, memory: 4GB}
"""


def load(folder: Path, document: Any) -> AgentConfig:
    path = folder / "agent.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return AgentConfig.load(path)


def changed(key: str, value: object) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(SAMPLE)
    *folders, last = key.split(".")
    place = document
    for folder in folders:
        place = place[folder]
    place[last] = value
    return document


def test_the_sample_of_the_design_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, SAMPLE)

    assert [str(address) for address in config.coordinator] == ["federation.example.org:7443"]
    assert config.state == Path("/var/lib/hanse")
    assert config.datasets["activity"].kind == "table"
    assert config.datasets["activity"].options == {"path": "/data/activity.parquet", "target": "exercise"}
    assert config.policy.largest_payload == 200_000_000
    assert config.worker.memory == 4_000_000_000
    assert config.worker.idle_after == timedelta(minutes=5)
    config.check_datasets()


def test_several_coordinators_may_be_named(tmp_path: Path) -> None:
    listed = ["one.example.org:7443", "two.example.org:7443"]
    assert [str(address) for address in load(tmp_path, changed("coordinator", listed)).coordinator] == listed
    with pytest.raises(OperatorError, match="coordinator"):
        load(tmp_path, changed("coordinator", []))


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, changed("state", "here")).state == tmp_path / "here"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("colour", "red", "unknown key 'colour'"),
        ("coordinator", "federation.example.org", "coordinator"),
        ("coordinator", "", "coordinator"),
        ("state", None, "state"),
        ("labels", ["wearable"], "labels"),
        ("labels", {"kind": 3}, "labels.kind"),
        ("datasets", {}, "datasets"),
        ("datasets.activity", {"path": "/x"}, "key 'datasets.activity.kind' is missing"),
        ("datasets.activity.kind", "spreadsheet", "no dataset kind 'spreadsheet' is installed"),
        ("datasets", {"bad name!": {"kind": "table"}}, "bad name!"),
        ("policy", None, "policy"),
        ("policy.methods", None, "policy.methods"),
        ("policy.methods", ["../x"], "policy.methods.0"),
        ("policy.datasets", ["elsewhere"], "policy.datasets names 'elsewhere'"),
        ("policy.minimum_rows", 0, "policy.minimum_rows"),
        ("policy.largest_payload", 200, "200MB"),
        ("policy.minimum_rows_per_atom", 0, "policy.minimum_rows_per_atom"),
        ("policy.small_atoms", "hide", "policy.small_atoms"),
        ("policy.secure_aggregation", "maybe", "policy.secure_aggregation"),
        ("policy.privacy_budget", {"epsilon": -1, "delta": 0.1}, "policy.privacy_budget.epsilon"),
        ("policy.privacy_budget", {"epsilon": 1}, "policy.privacy_budget.delta"),
        ("policy.approve", "sometimes", "policy.approve"),
        ("policy.allow_everything", True, "unknown key 'policy.allow_everything'"),
        ("worker.threads", 0, "worker.threads"),
        ("worker.memory", "lots", "worker.memory"),
        ("worker.idle_after", 5, "with a unit"),
        ("worker.processes", 0, "worker.processes"),
        ("worker.learners", 0, "worker.learners"),
        ("worker.nice", 3, "unknown key 'worker.nice'"),
    ],
)
def test_a_wrong_key_is_refused_and_named(tmp_path: Path, key: str, value: object, named: str) -> None:
    with pytest.raises(OperatorError) as caught:
        load(tmp_path, changed(key, value))

    assert named in caught.value.sentence
    assert str(tmp_path / "agent.yaml") in caught.value.sentence


@pytest.mark.parametrize("key", ["coordinator", "state", "datasets", "policy"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    document = yaml.safe_load(SAMPLE)
    del document[key]

    with pytest.raises(OperatorError, match=f"key '{key}' is missing"):
        load(tmp_path, document)


def test_a_wrong_option_of_a_dataset_is_named(tmp_path: Path) -> None:
    config = load(tmp_path, changed("datasets.activity.colour", "red"))

    with pytest.raises(OperatorError, match=r"datasets\.activity: unknown key 'colour'"):
        config.check_datasets()


def test_a_file_that_is_no_yaml_or_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="is not YAML"):
        load(tmp_path, "a: [")
    with pytest.raises(OperatorError, match=r"cannot read .*nowhere.yaml"):
        AgentConfig.load(tmp_path / "nowhere.yaml")


def test_the_policy_digest_changes_with_the_policy_alone(tmp_path: Path) -> None:
    first = load(tmp_path, SAMPLE).policy.digest

    assert load(tmp_path, changed("labels", {"kind": "other"})).policy.digest == first
    assert load(tmp_path, changed("policy.minimum_rows", 201)).policy.digest != first
