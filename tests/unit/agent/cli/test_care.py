"""`hanse-agent report` and `hanse-agent leave`: what goes into the archive and what never does; what is removed."""

from __future__ import annotations

import json
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from hanse.security import Address, Authority, Identity, Invitation
from hanse_agent.egress import EgressJournal, Shipment
from hanse_agent.folder import StateFolder
from hanse_agent.identity import NodeIdentity
from hanse_agent.main import run_command

RECORD = "Zebrafish-4711"
HOST = "no-such-coordinator.invalid"


@pytest.fixture
def invitation(authority: Authority) -> str:
    made = Invitation.create(authority, node="st-marys", addresses=(Address(HOST, 7443),), lifetime=timedelta(hours=1))
    return made.text()


@pytest.fixture
def config(tmp_path: Path, authority: Authority) -> Path:
    """A node that has joined, with records, a journal, and a learner's state."""
    folder = StateFolder(tmp_path / "node-state")
    folder.create()
    NodeIdentity(
        node="st-marys",
        pair=authority.issue(Identity.node("st-marys")),
        authority_pem=authority.certificate_pem,
        addresses=(Address(HOST, 7443),),
        server_name="coordinator.hanse.internal",
        invitation="i-1",
    ).save(folder.identity)
    rows = "\n".join(f"{n}.5,{RECORD},{n % 2}" for n in range(40))
    (tmp_path / "cardiology.csv").write_text(f"creatinine,patient,infarction\n{rows}\n")
    (folder.jobs / "j-1").mkdir()
    (folder.jobs / "j-1" / "state").write_text(RECORD)
    journal = EgressJournal(folder.egress)
    for number in (1, 2):
        journal.record(
            Shipment(
                node="st-marys",
                job="j-1",
                job_name="risk",
                phase="p",
                round=number,
                purpose="train",
                assignment=f"a-{number}",
                kind="histogram_statistics",
                arrays=[],
                size=1000,
                digest="ab" * 32,
            )
        )
    document = {
        "coordinator": f"{HOST}:7443",
        "state": str(folder.root),
        "labels": {"ward": "cardiology-three"},
        "datasets": {
            "heart-failures": {
                "kind": "table",
                "path": "cardiology.csv",
                "target": "infarction",
                "features": ["creatinine"],
            }
        },
        "policy": {"methods": ["fedscs_xgb"]},
    }
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def report(config: Path, *flags: str) -> dict[str, str]:
    path = config.parent / f"report-{len(flags)}.zip"
    assert run_command(["report", str(config), "--output", str(path), *flags]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    return contents(path)


def test_a_report_holds_what_helps_and_neither_key_nor_secret_nor_record(config, invitation, tmp_path, capfd):
    key = (tmp_path / "node-state" / "identity" / "node.pem").read_text()
    log = tmp_path / "agent.log"
    log.write_text(
        f"joined with {invitation}\n{key}\nproxy http://ada:s3cret@proxy:3128 used\nauthorization: Bearer abc.def-1\n"
        + "connected\n"
    )
    files = report(config, "--log", str(log))
    assert list(files) == [
        "contents.json",
        "versions.json",
        "configuration.txt",
        "doctor.json",
        "doctor.txt",
        "status.json",
        "egress.json",
        "log.txt",
    ]
    everything = "\n".join(files.values())
    for line in key.splitlines():
        if line and "-----" not in line:
            assert line not in everything
    for secret in (RECORD, "HNS1_", invitation[8:40], "s3cret", "abc.def-1"):
        assert secret not in everything
    assert files["log.txt"].endswith("connected\n")
    assert "proxy http://***@proxy:3128 used" in files["log.txt"]
    assert json.loads(files["versions.json"])["packages"]["grpcio"]
    assert "policy.methods" in files["configuration.txt"]
    assert {check["check"] for check in json.loads(files["doctor.json"])} >= {"dns", "disk", "datasets", "policy"}
    (sums,) = json.loads(files["egress.json"])
    assert (sums["payloads"], sums["bytes"], sums["kind"]) == (2, 2000, "histogram_statistics")
    assert json.loads(files["status.json"])["node"] == "st-marys"
    assert json.loads(files["contents.json"])["redacted"] is False
    assert "contents.json" in capfd.readouterr().out


def test_a_redacted_report_has_none_of_the_sites_own_words(config, tmp_path):
    log = tmp_path / "agent.log"
    log.write_text(f"reading {tmp_path}/cardiology.csv for st-marys; {HOST}:7443 does not answer\n")
    files = report(config, "--redact", "--log", str(log))
    everything = "\n".join(files.values())
    own = ("st-marys", HOST, "heart-failures", "infarction", "creatinine", "cardiology", str(tmp_path))
    for word in own:
        assert word not in everything, word
    assert "<dataset-1>" in files["configuration.txt"]
    assert "<host-1>" in files["log.txt"]
    assert json.loads(files["contents.json"])["redacted"] is True
    for name, content in files.items():  # still what it was
        if name.endswith(".json"):
            json.loads(content)


def test_a_report_overwrites_nothing(config, tmp_path, capfd):
    (tmp_path / "taken.zip").write_text("mine")
    assert run_command(["report", str(config), "--output", str(tmp_path / "taken.zip")]) == 1
    assert (tmp_path / "taken.zip").read_text() == "mine"
    assert "FILE_EXISTS" in capfd.readouterr().err


def test_leaving_removes_everything_but_the_journal_and_what_is_the_sites(config, tmp_path, capfd):
    state = tmp_path / "node-state"
    assert run_command(["leave", str(config), "--yes"]) == 0
    assert [path.name for path in state.iterdir()] == ["egress.jsonl"]
    assert (tmp_path / "cardiology.csv").exists()
    assert config.exists()
    assert "hanse node revoke st-marys" in capfd.readouterr().out
    assert run_command(["leave", str(config), "--yes", "--journal"]) == 0
    assert not state.exists()
    assert run_command(["leave", str(config), "--yes"]) == 0
    assert "nothing to remove" in capfd.readouterr().out


def test_nobody_leaves_while_the_agent_runs_or_without_saying_yes(config, tmp_path, capfd):
    assert run_command(["leave", str(config), "--json"]) == 2
    folder = StateFolder(tmp_path / "node-state")
    with folder.lock():
        assert run_command(["leave", str(config), "--yes"]) == 1
    assert "STATE_IN_USE" in capfd.readouterr().err
    assert (folder.identity / "node.pem").exists()
