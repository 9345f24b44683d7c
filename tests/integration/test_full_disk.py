"""Disks that are really full: small file systems for the coordinator's artifacts and for an agent's state."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.world import World, world


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of a few megabytes at `folder`."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Leave no byte free."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler


def said(place: World, name: str, words: str) -> bool:
    return words in (place.federation.logs / f"{name}.log").read_text()


def test_a_full_disk_at_the_coordinator_loses_nothing(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "artifacts", 8) as disk,
        world(tmp_path, coordinator={"artifacts": str(disk), "lease": "6s"}) as place,
    ):
        for name in ("ada", "ben"):
            place.add_site(name)
        filler = fill(disk)
        job = place.submit("job", rounds=2)
        place.until(lambda: place.read(lambda view: view.job(job).state == "paused"))
        reason = place.detail(job).job.reason
        assert (reason.owner, reason.code) == ("platform", "DISK_FULL")
        assert str(disk) in reason.sentence
        assert "space" in reason.remedy.lower()
        filler.unlink()
        from hanse.v1 import control_pb2

        place.control.call("ResumeJob", control_pb2.ChangeJobRequest(job=job))
        place.until(lambda: place.read(lambda view: view.job(job).round == 1))
        filler = fill(disk)  # now while contributions arrive
        place.until(lambda: said(place, "coordinator", "contribution not taken") or paused(place, job))
        filler.unlink()
        if paused(place, job):
            place.control.call("ResumeJob", control_pb2.ChangeJobRequest(job=job))
        detail = place.until_ended(job)
        assert detail.job.state == "succeeded", detail.job.reason
        assert place.whole()


def paused(place: World, job: str) -> bool:
    return bool(place.read(lambda view: view.job(job).state == "paused"))


def test_a_full_disk_at_an_agent_is_its_own_trouble_and_passes(tmp_path: Path) -> None:
    with world(tmp_path) as place:
        for name in ("ada", "ben", "cyn"):
            place.add_site(name, run=name != "cyn")
        cyn = place.sites["cyn"]
        state = cyn.folder / "state"
        kept = cyn.folder / "kept"
        state.rename(kept)
        with small_disk(state, 4):
            subprocess.run(["cp", "-a", f"{kept}/.", str(state)], check=True)
            place.run(cyn)
            place.until(lambda: "connected" in cyn.log)
            filler = fill(state)
            job = place.submit(
                "job", rounds=40, selection={"minimum_nodes": 3, "quorum": 0.6}, evaluation={"every": 40}
            )
            place.until(lambda: [e for e in place.events("assignment_failed") if e.node == "cyn"])
            failed = next(event for event in place.events("assignment_failed") if event.node == "cyn")
            assert failed.facts["code"] in {"STATE_NOT_WRITABLE", "DISK_FULL"}
            assert "space" in failed.facts["sentence"].lower() or "state folder" in failed.facts["sentence"]
            assert "Traceback" not in cyn.log
            os.unlink(filler)
            seen = place.read(lambda view: view.head().sequence)
            place.until(
                lambda: any(
                    event.sequence > seen and "cyn" in event.facts["contributors"]
                    for event in place.events("phase_closed")
                )
            )
            assert place.until_ended(job).job.state == "succeeded"
            assert cyn.agent is not None
            cyn.agent.kill()
            cyn.agent.wait(10)
