"""A site whose clock is an hour off, ahead or behind: it joins, trains, and is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hanse.embedded import Child
from hanse.embedded.child import child_environment
from hanse.v1 import control_pb2
from tests.chaos.world import world

pytestmark = pytest.mark.skipif(shutil.which("faketime") is None, reason="needs the Debian package faketime")


def faked(offset: str) -> dict[str, str]:
    """The environment that `faketime` would give a program, without its wrapper process."""
    found = subprocess.run(
        ["faketime", "-f", offset, sys.executable, "-c", "import os; print(os.environ['LD_PRELOAD'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    fake = {"LD_PRELOAD": found.stdout.strip(), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return child_environment() | fake


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_an_hour_off_joins_trains_and_warns(tmp_path: Path, offset: str) -> None:
    with world(tmp_path) as place:
        place.add_site("ada")
        site = place.add_site("ben", run=False)
        shutil.rmtree(site.folder / "state")
        request = control_pb2.InviteNodeRequest(name="ben", valid_s=600, pre_approved=True, again=True)
        invitation = site.folder / "invitation"
        invitation.write_text(place.control.call("InviteNode", request).text)
        command = [sys.executable, "-m", "hanse_agent.main", "join", str(site.config), "--token", f"file:{invitation}"]
        joined = subprocess.run(command, env=faked(offset), capture_output=True, text=True, timeout=60, check=False)
        assert joined.returncode == 0, joined.stderr
        arguments = ["hanse_agent.main", "run", str(site.config)]
        site.agent = Child(
            "ben", arguments, log=site.folder / "agent.log", say=lambda _: None, environment=faked(offset)
        )
        site.agent.start()
        site.agent.assume_ready()
        detail = place.until_ended(place.submit("job", rounds=1))
        assert detail.job.state == "succeeded", detail.job.reason
        assert "clocks differ" in site.log
        assert os.linesep + "Traceback" not in site.log
