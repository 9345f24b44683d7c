"""The method author's guide, followed from an empty folder: its commands as they stand there."""

from __future__ import annotations

import filecmp
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hanse.cli.plugins import write_package
from hanse.errors import Conflict, OperatorError
from tests.integration.test_readme import Terminal

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "method-authors-guide.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "plugin" / "hanse-federated-mean"


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "work").mkdir()
    opened = Terminal(tmp_path / "work")
    yield opened
    opened.close()


def install(package: Path, site: Path) -> None:
    """What `pip install .` does, without an index to build from: a wheel of the package's files and entry points."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    info = f"{name}-{project['version']}.dist-info"
    (module,) = (path for path in package.iterdir() if path.name.startswith("hanse_"))
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    contents = {f"{module.name}/{path.name}": path.read_text() for path in module.glob("*.py")}
    contents |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    contents[f"{info}/RECORD"] = "".join(f"{place},,\n" for place in [*contents, f"{info}/RECORD"])
    wheel = site.parent / f"{name}-{project['version']}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for place, text in contents.items():
            archive.writestr(place, text)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True)


def test_the_guide_leads_from_an_empty_folder_to_a_running_federation(terminal: Terminal, tmp_path: Path) -> None:
    site, shown = tmp_path / "site", {}
    lines = commands()
    assert len(lines) >= 13
    for line in lines:
        if line.startswith("cd "):
            terminal.folder = terminal.folder / line.split()[1]
            for path in terminal.folder.glob("*.yaml"):
                path.write_text(path.read_text().replace("7443", terminal.ports["7443"]))
        elif line.startswith("pip install"):
            install(terminal.folder, site)
            terminal.environment["PYTHONPATH"] = str(site)
        elif line.startswith("pytest"):
            shown[line] = terminal.type(f"{sys.executable} -m {line}")
        else:
            shown[line] = terminal.type(line)
    assert "3 passed" in shown["pytest tests"]
    assert "succeeded after 2 of 2 rounds" in shown["hanse job submit job.yaml --watch"]
    assert json.loads((terminal.folder / "mean" / "mean.json").read_text()) == {"mean": 32.0, "rows": 5}
    assert shown["hanse-agent egress --config site-1.yaml"].count("metrics") == 2


def test_the_example_in_the_repository_is_what_the_command_writes(tmp_path: Path) -> None:
    written = write_package("federated_mean", tmp_path / "new")
    for path in written:
        assert filecmp.cmp(path, EXAMPLE / path.relative_to(tmp_path / "new"), shallow=False), path
    kept = {path.relative_to(EXAMPLE) for path in EXAMPLE.rglob("*") if path.is_file()}
    kept = {path for path in kept if "__pycache__" not in path.parts and ".pytest_cache" not in path.parts}
    assert kept == {path.relative_to(tmp_path / "new") for path in written}


def test_other_names_make_other_packages_and_bad_ones_none(tmp_path: Path) -> None:
    places = write_package("krum2_x", tmp_path / "p")
    assert tmp_path / "p" / "hanse_krum2_x" / "learner.py" in places
    assert not any("@" in path.read_text() for path in places)
    assert "class Krum2X:" in (tmp_path / "p" / "hanse_krum2_x" / "plugin.py").read_text()
    for name in ("Mean", "a-b", "class", "", "../x"):
        with pytest.raises(OperatorError, match="no name for a method"):
            write_package(name, tmp_path / "q")
    with pytest.raises(Conflict):
        write_package("mean", tmp_path / "p")


def test_paths_and_names_in_the_guide_exist() -> None:
    for path in re.findall(r"`((?:tests|examples|docs)/[a-z_/.-]+)`", GUIDE):
        assert (ROOT / path).exists(), path
