"""Configuration by file and environment: where each value is from, and what a wrong one says, in every program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import Field

from hanse.configuration import load_configuration
from hanse.errors import OperatorError
from hanse.settings import Duration, Settings, Size, masked


class Inner(Settings):
    threads: int = Field(1, ge=1)


class Example(Settings):
    name: str = "federation"
    ledger: str = ""
    lease: Duration = timedelta(seconds=30)
    room: Size = 10
    peers: tuple[str, ...] = ()
    inner: Inner = Inner()
    key: Path | None = None


TEXT = """\
# a comment
name: wards
lease: 1m
peers: [a:1]
inner:
  threads: 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    return path


def load(file: Path | None, **environment: str):
    return load_configuration(
        Example, file, environment=environment, prefix="HANSE_X_", variables={"HANSE_DB": "ledger"}
    )


def test_every_value_has_an_origin(file):
    loaded = load(file, HANSE_X_PEERS="b:1, c:2", HANSE_DB="sqlite:///x", HANSE_X_PORT="tcp://10.0.0.1:7443")
    assert loaded.settings.peers == ("b:1", "c:2")
    shown = {value.key: (value.value, value.origin) for value in loaded.values()}
    assert shown == {
        "name": ("wards", f"{file}:2"),
        "ledger": ("sqlite:///x", "variable HANSE_DB"),
        "lease": ("1m", f"{file}:3"),
        "room": ("10B", "default"),
        "peers": (["b:1", "c:2"], "variable HANSE_X_PEERS"),
        "inner.threads": (3, f"{file}:6"),
        "key": (None, "default"),
    }


def test_the_text_is_one_line_a_value_with_its_origin_as_a_comment(file):
    lines = load(file).text().splitlines()
    assert len(lines) == 7
    assert re.fullmatch(rf"lease: 1m +# {re.escape(str(file))}:3", lines[2])
    assert re.fullmatch(r"room: 10B +# default", lines[3])


@pytest.mark.parametrize(
    ("change", "environment", "words"),
    [
        ("lease: 1m|lease: 60", {}, r"config.yaml:3: lease: '60' is not a duration; .*\(given: 60\)"),
        ("threads: 3|threads: 0", {}, r"config.yaml:6: inner.threads: .*greater than or equal to 1 \(given: 0\)"),
        ("threads: 3|treads: 3", {}, r"config.yaml:6: unknown key 'inner.treads' \(known here: threads\)"),
        ("name: wards|lease: 2m", {}, r"config.yaml:3: key 'lease' stands there twice, first in line 2"),
        ("|", {"HANSE_X_ROOM": "many"}, r"variable HANSE_X_ROOM: room: 'many' is not a size"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_its_value_and_where_it_stands(file, change, environment, words):
    old, _, new = change.partition("|")
    file.write_text(TEXT.replace(old, new) if old else TEXT)
    with pytest.raises(OperatorError, match=words) as error:
        load(file, **environment)
    assert "\n" not in str(error.value)


def test_secrets_are_masked_where_values_are_shown(file):
    loaded = load(file, HANSE_DB="postgresql://hanse:s3cret@db/hanse?sslpassword=hidden&x=1")
    assert "s3cret" not in loaded.text()
    assert "hidden" not in loaded.text()
    assert "postgresql://hanse:***@db/hanse?sslpassword=***&x=1" in loaded.text()


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("password", "abc", "***"),
        ("client_secret", "abc", "***"),
        ("access_token", "abc", "***"),
        ("token_file", "admin.token", "admin.token"),
        ("login_link_token", "/run/secrets/token", "/run/secrets/token"),
        ("tokens_per_row", 3, 3),
        ("options", {"password": "abc", "path": "x"}, {"password": "***", "path": "x"}),
        ("url", "https://a:b@c/d", "https://a:***@c/d"),
        ("password", "", ""),
    ],
)
def test_what_is_masked(key, value, shown):
    assert masked(key, value) == shown


def program(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HANSE_")}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=clean | environment,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


PROGRAMS = {
    "hanse_coordinator.main": (
        "state: /nowhere\ncertificate: a.crt\naggregators: [h:1]\nlease: LEASE\nledger: postgresql://h:s3cret@db/h\n",
        "HANSE_COORDINATOR_NAME",
    ),
    "hanse_aggregator.main": ("certificate: a.crt\nauthority: b.crt\ngrace: LEASE\n", "HANSE_AGGREGATOR_LISTEN"),
    "hanse_dashboard.main": (
        "ledger: postgresql://h:s3cret@db/h\ncoordinator: c:1\nauthority: b.crt\nheartbeat: LEASE\n",
        "HANSE_DASHBOARD_NAME",
    ),
}
AGENT = """\
coordinator: federation.example.org:7443
state: state
datasets:
  ward: {kind: table, path: table.csv, target: kind}
policy: {methods: [fedscs_xgb]}
worker: {idle_after: LEASE}
"""


@pytest.mark.parametrize("module", PROGRAMS)
def test_services_print_their_configuration_and_refuse_a_wrong_value_in_one_line(tmp_path, module):
    text, variable = PROGRAMS[module]
    path = tmp_path / "config.yaml"
    path.write_text(text.replace("LEASE", "45s"))
    shown = program(module, "--config", str(path), "--print-config", **{variable: "a.example.org:1"})
    assert shown.returncode == 0, shown.stderr
    assert re.search(rf": 45s +# {re.escape(str(path))}:\d\n", shown.stdout)
    assert re.search(rf"a\.example\.org:1\"? +# variable {variable}\n", shown.stdout)
    assert re.search(r"artifact_cache_size: 10000000000B +# default\n", shown.stdout)
    assert "s3cret" not in shown.stdout
    path.write_text(text.replace("LEASE", "45"))
    refused = program(module, "--config", str(path))
    assert refused.returncode == 1
    line = refused.stderr.strip()
    assert "\n" not in line
    assert re.search(rf"{re.escape(str(path))}:\d: \w+: '45' is not a duration", line)
    assert "--print-config" in line
    assert "s3cret" not in line


def test_the_agent_prints_its_configuration_and_refuses_a_wrong_value_in_one_line(tmp_path):
    path = tmp_path / "agent.yaml"
    path.write_text(AGENT.replace("LEASE", "45s"))
    run = ("hanse_agent.main", "run", str(path))
    shown = program(*run, "--print-config", HANSE_AGENT_STATE=str(tmp_path / "elsewhere"))
    assert shown.returncode == 0, shown.stderr
    assert re.search(rf"state: {re.escape(str(tmp_path / 'elsewhere'))} +# variable HANSE_AGENT_STATE\n", shown.stdout)
    assert re.search(rf"datasets\.ward\.path: table\.csv +# {re.escape(str(path))}:4\n", shown.stdout)
    document = json.loads(program(*run, "--print-config", "--json").stdout)["data"][str(path)]
    assert {"key": "worker.idle_after", "value": "45s", "origin": f"{path}:6"} in document
    path.write_text(AGENT.replace("LEASE", "45"))
    refused = program(*run)
    assert refused.returncode == 1
    assert f"{path}:6: worker.idle_after: '45' is not a duration" in refused.stderr
    assert refused.stderr.count("\n") == 1
