"""A site is brought in from an empty folder with the very commands that `hanse node invite` prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

from hanse.embedded.child import child_environment
from tests.chaos.world import world, write_table


def test_the_commands_of_an_invitation_bring_a_site_in_and_out_again(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    binaries = Path(sys.executable).parent
    environment = child_environment() | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}

    def shell(line: str, code: int = 0) -> str:
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            cwd=site,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    with world(tmp_path) as place:
        address = place.federation.nodes_address
        shell(f"hanse-agent doctor --pre {address} --idle 1s")
        assert list(site.iterdir()) == []
        invite = f"hanse node invite ward --pre-approved --json --state {place.federation.state}"
        invited = json.loads(shell(invite))["data"]
        (site / "invitation").write_text(invited["invitation"] + "\n")
        write_table(site / "table.csv", seed=1, rows=60)
        document = {
            "coordinator": address,
            "state": "state",
            "datasets": {"ward": {"kind": "table", "path": "table.csv", "target": "kind"}},
            "policy": {"methods": ["fedscs_xgb"]},
        }
        (site / "agent.yaml").write_text(yaml.safe_dump(document))
        lines = [line for line in invited["commands"]["pip"].splitlines() if line.startswith("hanse-agent")]
        examine, join, run = lines
        shell(examine.replace("doctor", "doctor --idle 1s"))
        shell(join)
        command = ["/bin/bash", "-c", f"exec {run}"]
        agent = subprocess.Popen(command, cwd=site, env=environment, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while json.loads(shell("hanse-agent status --json"))["data"]["connection"]["state"] != "connected":
                assert time.monotonic() < deadline, "it did not connect"
            shell("hanse-agent leave --yes", code=1)  # not while it runs
        finally:
            agent.terminate()
            agent.wait(60)
        shell("hanse-agent leave --yes")
        assert not (site / "state" / "identity").exists()
