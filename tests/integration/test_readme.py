"""The README's commands, run as they stand there, from a copy of the folder that it names."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hanse.embedded.folder import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# These go on running, each in a terminal of its own.
IN_THE_BACKGROUND = ("hanse up", "hanse-agent run", "hanse-agent join ward-1.yaml")


def commands() -> list[str]:
    section = README.partition("## Run your own")[2].partition("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("hanse")]


class Terminal:
    """Where a person types: an own folder, the installed commands, nothing of ours in the environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[str]] = []
        # The README's ports may be taken on a machine that runs tests.
        self.ports = {"7443": str(free_port("127.0.0.1")), "7444": str(free_port("127.0.0.1"))}
        for path in folder.glob("*.yaml"):
            path.write_text(path.read_text().replace("7443", self.ports["7443"]))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HANSE_")}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{self.environment['PATH']}"

    def type(self, line: str) -> str:
        if line == "hanse up":
            ports = f"--node-port {self.ports['7443']} --control-port {self.ports['7444']} --dashboard-port 0"
            line = f"hanse up {ports}"
        if line.startswith(IN_THE_BACKGROUND):
            self.running.append(self._start(line))
            if line.startswith("hanse up"):
                assert self.running[-1].stdout is not None
                next(shown for shown in self.running[-1].stdout if "Ctrl-C" in shown)
            return ""
        done = self._start(line)
        out, err = done.communicate(timeout=120)
        assert done.returncode == 0, f"{line}: {err}"
        return out

    def _start(self, line: str) -> subprocess.Popen[str]:
        output = subprocess.PIPE
        # No shell: a line of the README is words, as a person would quote none of these.
        return subprocess.Popen(
            line.split(), cwd=self.folder, env=self.environment, stdout=output, stderr=output, text=True
        )

    def close(self) -> None:
        for process in reversed(self.running):
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    folder = tmp_path / "by-hand"
    shutil.copytree(ROOT / "examples" / "by-hand", folder, ignore=shutil.ignore_patterns("*state*", "*.invitation"))
    opened = Terminal(folder)
    yield opened
    opened.close()


def words_of(terminal: Terminal, node: str) -> str:
    """The fingerprint that the operator compares, once the node waits."""
    import json

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for each in json.loads(terminal.type("hanse node list --json"))["data"]:
            if each["name"] == node and each["trust"] == "pending":
                return str(each["fingerprint"])
        time.sleep(0.2)
    raise AssertionError(f"{node} never waited for approval")


def test_a_federation_by_hand_as_the_readme_says(terminal):
    shown: dict[str, str] = {}
    lines = commands()
    assert len(lines) >= 12
    for line in lines:
        if "SIX-WORDS" in line:
            line = line.replace("SIX-WORDS", words_of(terminal, "ward-1"))
        shown[line] = terminal.type(line)
        if line.startswith("hanse node approve"):  # the waiting `join` ends by itself
            assert terminal.running[-1].wait(30) == 0
    assert "succeeded after 10 of 10 rounds" in shown["hanse job submit job.yaml --watch"]
    assert (terminal.folder / "risk-model" / "model.ubj").is_file()
    assert "atom_statistics" in shown["hanse-agent egress --config ward-1.yaml"]
    verified = next(text for line, text in shown.items() if line.startswith("hanse ledger verify"))
    assert "is whole" in verified
    assert "compared with" in verified


def test_every_target_and_path_that_the_readme_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"`([a-z/_.-]+/[A-Za-z_.-]*)`", README):
        assert path.startswith("./") or (ROOT / path).exists(), path
