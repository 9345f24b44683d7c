"""What of the site's policy reaches the learner, and what a job's folder remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hanse.v1 import node_pb2
from hanse_agent.files import read_json
from hanse_agent.jobs import JobFolder, Jobs
from hanse_agent.performing import Performing
from hanse_agent.settings import AgentConfig
from hanse_agent.spooled import Task

POLICIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"minimum_rows_per_atom": 5, "small_atoms": "refuse"}),
    ({"minimum_rows_per_atom": 9, "small_atoms": "coarsen"}, {"minimum_rows_per_atom": 9, "small_atoms": "coarsen"}),
]


@pytest.mark.parametrize(("policy", "limits"), POLICIES, ids=["default", "coarsen"])
def test_the_policy_on_atoms_reaches_the_learner(
    tmp_path: Path, policy: dict[str, Any], limits: dict[str, Any]
) -> None:
    document = {
        "coordinator": "there:7443",
        "state": "state",
        "datasets": {"rows": {"kind": "table", "path": "rows.csv", "target": "y"}},
        "policy": {"methods": ["m"], **policy},
    }
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(document))
    nothing: Any = None
    performing = Performing(
        node="ada",
        config=AgentConfig.load(tmp_path / "agent.yaml"),
        jobs=Jobs(tmp_path),
        links=nothing,
        pool=nothing,
        catalogue=nothing,
        approvals=nothing,
    )
    job = node_pb2.JobDescription(id="j", name="ward", method="m", dataset="rows")
    assign = node_pb2.Assign(assignment="a", job=job, phase="atoms", round=1, purpose="train")
    folder = JobFolder(tmp_path / "j")
    task = Task(
        assignment="a", fence=1, job="j", job_name="ward", phase="atoms", round=1, purpose="train", attempt=1,
        instruction="00",
    )  # fmt: skip
    command = performing._command(assign, folder, folder.begin(task), tmp_path / "instruction", None)
    assert command["limits"] == limits


def test_a_job_folder_remembers_whose_it_is_also_after_the_job(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "j")
    folder.remember(job="j", name="ward", method="m", dataset="rows")
    folder.remember(job="j", name="another", method="m", dataset="rows")
    folder.end()
    assert read_json(tmp_path / "j" / "job.json") == {"job": "j", "name": "ward", "method": "m", "dataset": "rows"}
