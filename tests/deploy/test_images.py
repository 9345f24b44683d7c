"""The Containerfile: a target for each program, nobody in particular as the user, nothing left that builds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest

from tests.deploy.manifests import DEPLOY, OVERLAYS, ROOT, rendered, tool, workloads

CONTAINERFILE = DEPLOY / "images" / "Containerfile"
TEXT = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.M).replace("\\\n", " ")
STAGES = {
    found[2]: (found[1], found[3])
    for found in re.finditer(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT, flags=re.M | re.S)
}
PROGRAMS = {"coordinator", "aggregator", "dashboard", "agent", "agent-torch", "dev-store"}


def test_there_is_a_target_for_every_image_that_a_manifest_names() -> None:
    containers = [item for overlay in OVERLAYS for pod in workloads(rendered(overlay)) for item in pod.containers]
    named = {container["image"].rpartition("/")[2].partition(":")[0] for container in containers}
    assert {name.removeprefix("hanse-") for name in named if name.startswith("hanse-")} <= PROGRAMS
    assert STAGES.keys() >= PROGRAMS


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_what_runs_comes_from_the_lean_stage_and_only_takes_what_was_installed(program: str) -> None:
    base, body = STAGES[program]
    assert base == "runtime"
    assert not re.search(r"^(RUN|USER|ADD)", body, flags=re.M)
    assert f"COPY --from={program}-environment /opt/hanse /opt/hanse" in body


def test_the_lean_stage_has_a_numbered_user_and_no_pip() -> None:
    base, body = STAGES["runtime"]
    assert base == "${PYTHON}"
    assert "ARG PYTHON=python:3.11-slim-bookworm" in TEXT
    assert re.search(r"^USER 10001:10001$", body, flags=re.M)
    assert "pip uninstall --yes" in body
    assert not re.search(r"apt-get|gcc|build-essential", TEXT)


def extras(stage: str) -> set[str]:
    return set(re.findall(r"\[([a-z0-9,]+)\]\"", STAGES[stage][1])[-1].split(","))


def required(names: set[str]) -> set[str]:
    """The packages that extras name, those that they name in turn included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known, found, open_ = project["optional-dependencies"], set(project["dependencies"]), list(names)
    while open_:
        for requirement in known[open_.pop()]:
            inner = re.fullmatch(r"hanse\[([^\]]+)\]", requirement)
            open_ += inner[1].split(",") if inner else []
            found.add(requirement)
    return {re.match(r"[a-z0-9-]+", name)[0] for name in found}  # type: ignore[index]


def test_torch_is_in_the_one_image_that_trains_networks() -> None:
    for program in PROGRAMS - {"agent-torch", "dev-store"}:
        assert "torch" not in required(extras(f"{program}-environment"))
        assert "TORCH" not in STAGES[f"{program}-environment"][1]
    assert {"agent", "torch"} == extras("agent-torch-environment")
    base, body = STAGES["agent-torch-environment"]
    assert base == "agent-environment"
    assert "ARG TORCH=torch==2.13.0" in body


@pytest.mark.parametrize(("program", "needed"), [("coordinator", {"psycopg", "obstore"}), ("dashboard", {"psycopg"})])
def test_an_image_has_what_its_overlay_is_configured_for(program: str, needed: set[str]) -> None:
    assert needed <= required(extras(f"{program}-environment"))


@pytest.mark.parametrize(
    ("module", "program"),
    [("hanse_coordinator.main", "coordinator"), ("hanse_dashboard.main", "dashboard"), ("hanse.cli", "coordinator")],
)
def test_a_program_starts_without_what_its_image_lacks(module: str, program: str) -> None:
    """Imported with every package hidden that only other images have."""
    here = required(extras(f"{program}-environment"))
    others = {
        "torch": "torch",
        "xgboost-cpu": "xgboost",
        "pyarrow": "pyarrow",
        "fastapi": "fastapi",
        "psutil": "psutil",
    }
    hidden = [name for package, name in others.items() if package not in here]
    script = (
        f"import sys, json\nsys.modules.update(dict.fromkeys({hidden!r}))\n"
        f"import {module}\nprint(json.dumps([name for name in {hidden!r} if sys.modules[name] is not None]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


hadolint = tool("hadolint")


@pytest.mark.skipif(hadolint is None, reason="needs hadolint: `make tools`")
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run([str(hadolint), str(CONTAINERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
