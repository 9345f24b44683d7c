"""Children whose programs lie beside these tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hanse.embedded import Child


@pytest.fixture(autouse=True)
def _programs_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def said() -> list[str]:
    """What a supervisor told the person."""
    return []


@pytest.fixture
def child(tmp_path: Path, said: list[str]) -> Iterator[Callable[..., Child]]:
    """Start a program under supervision."""
    started = []

    def start(*arguments: str, ready: bool = True) -> Child:
        made = Child(arguments[0], ["programs", *arguments], log=tmp_path / "child.log", say=said.append)
        made.start()
        if ready:
            made.assume_ready()
        started.append(made)
        return made

    yield start
    for made in started:
        made.kill()
        made.stop(grace_s=5)


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for a condition; a test that waits in vain fails."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")
