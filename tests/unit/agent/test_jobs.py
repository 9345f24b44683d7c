"""A job on disk: killed at any instant, the same work is done once and the state is the right one."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hanse_agent.egress import EgressJournal, Shipment
from hanse_agent.jobs import JobFolder, Jobs
from hanse_agent.spooled import Spooled, Task

CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "open", "write")


class Killed(BaseException):
    """kill -9: nothing after it is executed, no `except Exception`, and no clean-up that touches the disk."""


@contextmanager
def killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Let the process die at its n-th system call that changes the disk; yields whether it has."""
    count = 0

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count >= number:
                raise Killed
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, watched(getattr(os, name)))
        with suppress(Killed):
            yield lambda: count >= number


def task(assignment: str = "a1", **changes: Any) -> Task:
    facts = Task(
        assignment=assignment,
        fence=1,
        job="j1",
        job_name="activity",
        phase="train",
        round=1,
        purpose="train",
        attempt=1,
        instruction="00" * 32,
    )
    return replace(facts, **changes)


def work(folder: JobFolder, what: Task) -> Spooled:
    """What a learner and the agent do: count in the state, and answer with the count and something random."""
    attempt = folder.begin(what)
    before = int((attempt.state / "count").read_text()) if attempt.state else 0
    (attempt.next_state / "count").write_text(str(before + 1))
    image = f"{before + 1} {secrets.token_hex(8)}".encode()
    attempt.image.write_bytes(image)
    digest = hashlib.sha256(image).hexdigest()
    return folder.commit(what, attempt, kind="opaque", arrays=[], size=len(image), digest=digest)


def count(folder: JobFolder) -> int:
    """What the current state has counted."""
    path = folder.root / "versions" / f"{folder.current:08d}" / "count"
    return int(path.read_text()) if folder.current else 0


class Site:
    """An agent's life with one job, and a coordinator that remembers what it received."""

    def __init__(self, root: Path, assignments: int) -> None:
        self.root = root
        self.asked = [task(f"a{number}", round=number) for number in range(1, assignments + 1)]
        self.received: dict[str, bytes] = {}

    def live(self) -> None:
        """From start to the last assignment, unless killed."""
        folder = JobFolder(self.root / "job")
        journal = EgressJournal(self.root / "egress.jsonl")
        waiting = folder.spooled()
        if waiting is not None and not waiting.delivered:
            self._send(folder, journal, waiting, earlier=True)
        for what in self.asked:
            if what.assignment not in self.received:
                self._send(folder, journal, work(folder, what), earlier=False)

    def _send(self, folder: JobFolder, journal: EgressJournal, spooled: Spooled, *, earlier: bool) -> None:
        assignment, image = spooled.task.assignment, spooled.image.read_bytes()
        shipment = Shipment(
            node="site-a",
            job="j1",
            job_name="activity",
            phase="train",
            round=spooled.task.round,
            purpose="train",
            assignment=assignment,
            kind=spooled.kind,
            arrays=spooled.arrays,
            size=spooled.size,
            digest=spooled.digest,
        )
        journal.record(shipment, earlier=earlier)
        journaled = [line["digest"] for line in journal.entries() if line["assignment"] == assignment]
        assert spooled.digest in journaled, "bytes left that the journal does not know"
        assert self.received.setdefault(assignment, image) == image, "the same assignment was worked on twice"
        folder.delivered(assignment)

    def check(self) -> None:
        """Every assignment was answered once, each from the state that the one before left."""
        counted = [int(self.received[what.assignment].split()[0]) for what in self.asked]
        assert counted == list(range(1, len(self.asked) + 1))
        folder = JobFolder(self.root / "job")
        assert count(folder) == len(self.asked)
        assert list((folder.root / "work").iterdir()) == []
        lines = list(EgressJournal(self.root / "egress.jsonl").entries())
        left = [line["assignment"] for line in lines if line["event"] == "left"]
        assert sorted(left) == sorted(self.received)


def test_a_kill_at_every_single_instant_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0
    while True:
        number += 1
        site = Site(tmp_path / str(number), assignments=3)
        site.root.mkdir()
        with killed_at(number, monkeypatch) as died:
            site.live()
        site.live()
        site.check()
        if not died():
            break
    assert number > 60, "too few instants: the system calls are not those that are used"


@pytest.mark.parametrize("seed", range(20))
def test_many_kills_in_a_row_lose_and_repeat_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    site = Site(tmp_path, assignments=5)
    for _ in range(30):
        with killed_at(dice.randint(1, 80), monkeypatch):
            site.live()
    site.live()
    site.check()


def test_an_attempt_that_died_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    work(folder, task("a1"))
    attempt = folder.begin(task("a2"))
    (attempt.next_state / "count").write_text("99")

    again = JobFolder(tmp_path)

    assert count(again) == 1
    assert again.begin(task("a2")).base == 1


def test_a_retry_of_an_abandoned_phase_starts_from_the_state_before_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    work(folder, task("a1", round=1))
    first = work(folder, task("a2", round=2, attempt=1))
    retry = work(folder, task("a3", round=2, attempt=2))

    assert first.image.parent.exists() is False
    assert retry.image.read_bytes().split()[0] == b"2"
    assert count(folder) == 2
    assert count(JobFolder(tmp_path)) == 2


def test_the_next_phase_of_the_same_name_is_no_retry(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    work(folder, task("a1", phase="histogram", instruction="11" * 32))
    work(folder, task("a2", phase="histogram", instruction="22" * 32))
    work(folder, task("a3", phase="histogram", instruction="33" * 32, attempt=2))

    assert count(folder) == 3


def test_a_withdrawn_contribution_takes_its_state_back(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    work(folder, task("a1"))
    folder.delivered("a1")
    work(folder, task("a2", round=2))
    folder.withdraw("a2")

    assert count(folder) == 1
    assert folder.spooled() is None
    assert count(JobFolder(tmp_path)) == 1


def test_a_kill_in_the_middle_of_a_withdrawal_ends_it_or_leaves_it_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0
    while True:
        number += 1
        root = tmp_path / str(number)
        folder = JobFolder(root)
        work(folder, task("a1"))
        folder.delivered("a1")
        work(folder, task("a2", round=2))
        with killed_at(number, monkeypatch) as died:
            folder.withdraw("a2")
        again = JobFolder(root)
        spooled = again.spooled()
        assert count(again) == (2 if spooled else 1)
        if not died():
            break
    assert number > 3


def test_a_delivered_contribution_is_not_withdrawn(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    work(folder, task("a1"))
    folder.delivered("a1")
    folder.withdraw("a1")

    spooled = JobFolder(tmp_path).spooled()
    assert spooled is not None
    assert spooled.delivered
    assert count(folder) == 1


def test_a_job_that_is_over_keeps_the_last_state_and_nothing_else(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    for number in (1, 2, 3):
        work(folder, task(f"a{number}", round=number))
    folder.cached("ab" * 32).write_bytes(b"instruction")
    folder.end()

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "versions/00000003/count"
    ]


def test_only_two_states_and_one_contribution_are_kept(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    for number in range(1, 8):
        work(folder, task(f"a{number}", round=number))

    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == ["00000006", "00000007"]
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["a7"]


def test_a_restarted_agent_finds_what_nobody_confirmed(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    work(jobs.open("j1"), task("a1"))
    done = jobs.open("j2")
    work(done, task("b1", job="j2"))
    done.delivered("b1")

    assert [spooled.task.assignment for spooled in Jobs(tmp_path).undelivered()] == ["a1"]


def test_artifacts_that_the_last_assignment_did_not_use_are_deleted(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    for name in ("aa", "bb"):
        folder.cached(name * 32).write_bytes(b"x")
    folder.trim_cache({"bb" * 32})

    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["bb" * 32]


def test_an_image_that_a_power_cut_spoiled_is_found_out_and_the_work_done_again(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    work(folder, task("a1"))
    folder.delivered("a1")
    spooled = work(folder, task("a2", round=2))
    spooled.image.write_bytes(bytes(spooled.size))
    again = JobFolder(tmp_path)
    assert again.spooled() is None
    assert count(again) == 1
    work(again, task("a2", round=2))
    assert count(again) == 2


def test_a_delivered_image_that_is_spoiled_takes_no_state_with_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    spooled = work(folder, task("a1"))
    folder.delivered("a1")
    spooled.image.unlink()
    again = JobFolder(tmp_path)
    assert again.spooled() is None
    assert count(again) == 1
