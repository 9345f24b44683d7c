"""`hanse-agent` from the outside: exit codes, one envelope, one clear line, nothing heavy before it is needed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hanse.security import Authority
from hanse_agent.approvals import Approvals
from hanse_agent.egress import EgressJournal
from hanse_agent.folder import StateFolder
from hanse_agent.main import run_command
from hanse_agent.status import read_status
from tests.unit.agent.living import a_coordinator, an_agent
from tests.unit.agent.probe import assign, eventually, job, receipt, write_config
from tests.unit.agent.test_egress import SHIPMENT

HEAVY = ("numpy", "xgboost", "pyarrow", "torch", "scipy", "pandas")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command with --json; its exit code and envelope."""
    code = run_command([*arguments, "--json"])
    envelope = json.loads(capsys.readouterr().out)
    assert set(envelope) == {"ok", "command", "data", "error"}
    assert envelope["ok"] is (code == 0)
    return code, envelope


@pytest.fixture
def config(probe: None, tmp_path: Path) -> Path:
    return write_config(tmp_path)


@pytest.mark.parametrize("module", ["main", "session", "agent", "runner", "status", "enrolment"])
def test_the_agents_own_process_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, hanse_agent.{module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


async def test_an_agent_that_has_worked_is_still_lean(authority: Authority, tmp_path: Path, probe: None) -> None:
    """The whole life of an assignment, small and large, leaves numpy to the workers."""
    async with a_coordinator(authority, tmp_path) as coordinator:
        path = write_config(tmp_path, coordinator=coordinator.address)
        coordinator.enrol(tmp_path / "state" / "identity")
        script = (
            "import asyncio, sys\n"
            "from pathlib import Path\n"
            "from hanse_agent.runner import run_agents\n"
            "from hanse_agent.settings import AgentConfig\n"
            f"asyncio.run(run_agents([AgentConfig.load(Path({str(path)!r}))]))\n"
            f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        )
        agent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
        session = await coordinator.session()
        session.send(assign=assign("a1", ask={"bytes": 600_000}))
        await eventually(lambda: coordinator.uploads and coordinator.store.exists(coordinator.uploads[0].digest))
        session.send(assign=assign("a2", round_=2))
        contribution = await coordinator.event("contribution")
        session.send(receipt=receipt(contribution))
        agent.send_signal(signal.SIGTERM)
        assert agent.stdout is not None
        printed = (await agent.stdout.read()).decode().splitlines()
        assert await agent.wait() == 0

    assert printed[-1] == "[]"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("join", "run", "status", "approvals", "egress"))


@pytest.mark.parametrize("arguments", [["jion"], ["run"], ["egress", "--since", "yesterday"], ["join", "--wait", "10"]])
def test_a_wrong_command_line_exits_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], config: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(config.parent)

    assert run_command(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_wrong_configuration_exits_with_1_and_names_the_key(
    capsys: pytest.CaptureFixture[str], probe: None, tmp_path: Path
) -> None:
    path = write_config(tmp_path, colour="red")

    assert run_command(["run", str(path)]) == 1
    shown = capsys.readouterr().err
    assert len(shown.strip().splitlines()) == 1
    assert "unknown key 'colour'" in shown


def test_join_without_an_invitation_says_how_to_give_one(
    capsys: pytest.CaptureFixture[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANSE_INVITATION", raising=False)
    code, envelope = command(capsys, "join", str(config))

    assert code == 2
    assert "--token file:PATH" in envelope["error"]["remedy"]


def test_join_with_something_else_than_an_invitation_does_not_repeat_it(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("my secret password")
    code, envelope = command(capsys, "join", str(config), "--token", f"file:{tmp_path / 'token'}")

    assert (code, envelope["error"]["code"]) == (1, "INVITATION_NOT_ONE")
    assert "password" not in json.dumps(envelope)


async def test_join_and_run_and_sigterm(authority: Authority, tmp_path: Path, probe: None) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.approved.set()
        path = write_config(tmp_path, coordinator=coordinator.address)

        async def agent(*arguments: str, invitation: str = "") -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hanse_agent.main", *arguments),
                env={**os.environ, "HANSE_INVITATION": invitation},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )

        text = coordinator.invitation().text()
        first = await agent("join", str(path), "--json", invitation=text)
        out, err = await first.communicate()
        assert first.returncode == 0, err
        assert json.loads(out)["data"]["already"] is False
        assert err.decode().count("✓") == 5

        second = await agent("join", str(path), "--json")
        out, _ = await second.communicate()
        assert (second.returncode, json.loads(out)["data"]["already"]) == (0, True)

        running = await agent("run", str(path))
        session = await coordinator.session()
        async with asyncio.timeout(30):
            while not session.of("heartbeat"):  # until then it has not taken the welcome, and has nobody to tell
                await asyncio.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        _, err = await running.communicate()
        assert running.returncode == 0, err
        assert session.of("leaving")


async def test_run_without_a_certificate_exits_with_1(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    code, envelope = await asyncio.to_thread(_run_without_loop, capsys, config)

    assert (code, envelope["error"]["code"]) == (1, "NOT_JOINED")


def _run_without_loop(capsys: pytest.CaptureFixture[str], config: Path) -> tuple[int, dict[str, Any]]:
    return command(capsys, "run", str(config))


def test_status_before_anything_happened(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    code, envelope = command(capsys, "status", str(config))

    assert code == 0
    assert (envelope["data"]["joined"], envelope["data"]["running"]) == (False, False)
    assert run_command(["status", str(config)]) == 0
    assert "has not joined" in capsys.readouterr().out


async def test_status_of_a_running_agent(
    authority: Authority, tmp_path: Path, probe: None, capsys: pytest.CaptureFixture[str]
) -> None:
    began = tmp_path / "began"
    ask = {"do": "wait", "began": str(began), "until": str(tmp_path / "never")}
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        session.send(assign=assign("a1", ask=ask))
        await eventually(began.exists)
        await eventually(lambda: read_status(living.agent.config)["work"])
        capsys.readouterr()
        code, envelope = command(capsys, "status", str(tmp_path / "agent.yaml"))

        found = envelope["data"]
        assert code == 0
        assert (found["node"], found["running"], found["connection"]["state"]) == ("site-a", True, "connected")
        assert [(item["assignment"], item["stage"]) for item in found["work"]] == [("a1", "working")]
        assert found["datasets"] == [{"name": "records", "kind": "probe", "rows": 100}]
        assert found["certificate"]["expired"] is False


def test_approvals_are_listed_given_and_refused_while_no_agent_runs(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.create()
    Approvals(folder.approvals).ask(job())

    _, envelope = command(capsys, "approvals", "list", "-c", str(config))
    assert [item["state"] for item in envelope["data"]] == ["waiting"]
    code, envelope = command(capsys, "approvals", "approve", "job-1", "-c", str(config))
    assert (code, envelope["data"]["state"]) == (0, "approved")
    code, envelope = command(capsys, "approvals", "refuse", "job-1", "--why", "no", "-c", str(config))
    assert (code, envelope["data"]["state"], envelope["data"]["why"]) == (0, "refused", "no")
    code, envelope = command(capsys, "approvals", "approve", "job-2", "-c", str(config))
    assert (code, envelope["error"]["code"]) == (1, "NO_SUCH_JOB")


def test_egress_lists_the_journal(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    journal = EgressJournal(tmp_path / "state" / "egress.jsonl")
    journal.record(SHIPMENT)
    journal.record(replace(SHIPMENT, job="j2", job_name="other", assignment="a2"))

    _, envelope = command(capsys, "egress", "-c", str(config), "--job", "activity", "--since", "1h")
    assert [line["assignment"] for line in envelope["data"]] == ["a1"]
    assert run_command(["egress", "-c", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "atom_statistics" in shown
    assert "4,096" in shown
