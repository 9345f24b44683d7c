"""`hanse-agent doctor`: each fault that it knows is made for real, and told with cause, remedy and where to read on."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hanse.embedded.child import child_environment
from hanse.security import Authority
from hanse.v1 import control_pb2
from tests.chaos.world import Site, World, world
from tests.integration.test_full_disk import fill, small_disk
from tests.integration.test_wrong_clock import faked
from tests.middleboxes import ConnectProxy, IdleCutter, Interceptor, Middlebox, OldLoadBalancer, standing

GUIDE = Path(__file__).parents[2] / "docs" / "site-guide.md"


@dataclass(frozen=True)
class Examined:
    """What the program said."""

    code: int
    checks: Mapping[str, Mapping[str, Any]]
    text: str

    def states(self) -> dict[str, str]:
        return {name: check["state"] for name, check in self.checks.items()}

    def failed(self) -> set[str]:
        return {name for name, check in self.checks.items() if check["state"] == "failed"}


def doctor(*arguments: object, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Examined:
    command = [sys.executable, "-m", "hanse_agent.main", "doctor", *map(str, arguments), "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=child_environment() if environment is None else dict(environment),
        cwd=folder,
        timeout=120,
        check=False,
    )
    document = json.loads(done.stdout or "{}")
    assert document.get("data"), done.stderr
    return Examined(done.returncode, {check["check"]: check for check in document["data"]["checks"]}, done.stderr)


def through(proxy: Middlebox, variable: str = "https_proxy", login: str = "") -> dict[str, str]:
    """The environment of a site behind a proxy."""
    environment = {name: value for name, value in child_environment().items() if "proxy" not in name.lower()}
    return environment | {variable: f"http://{login + '@' if login else ''}{proxy.address}"}


def assert_told(found: Examined, check: str, *words: str) -> None:
    """The check failed, and its line says everything that a person needs."""
    assert found.code == 1
    line = found.checks[check]
    assert line["state"] == "failed", found.states()
    for word in words:
        assert word in line["sentence"], line
    assert line["cause"]
    assert line["remedy"]
    assert line["documentation"] == f"docs/site-guide.md#doctor-{check}"
    assert "DOCTOR" in found.text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("doctor")) as made:
        made.add_site("ada", run=False)
        yield made


@pytest.fixture(scope="module")
def site(place: World) -> Site:
    """A node that has joined and does not run."""
    return place.sites["ada"]


@pytest.fixture(scope="module")
def port(place: World) -> int:
    return int(place.federation.nodes_address.rpartition(":")[2])


@pytest.fixture(scope="module")
def authority(place: World) -> Authority:
    return Authority.load(place.federation.state / "authority")


@pytest.fixture
def behind(site: Site, tmp_path: Path) -> Any:
    """The node's configuration with another address, or other keys."""

    def write(address: str = "", **changes: Any) -> Path:
        document = yaml.safe_load(site.config.read_text())
        document["state"] = str(site.folder / "state")
        document["datasets"]["ward"]["path"] = str(site.folder / "table.csv")
        if address:
            document["coordinator"] = address
            facts = json.loads((site.folder / "state" / "identity" / "node.json").read_text())
            copied = tmp_path / "state"
            shutil.copytree(site.folder / "state", copied)
            (copied / "identity" / "node.json").write_text(json.dumps(facts | {"addresses": [address]}))
            document["state"] = str(copied)
        path = tmp_path / "agent.yaml"
        path.write_text(yaml.safe_dump(document | changes))
        return path

    return write


def test_a_healthy_node_is_told_so(site: Site) -> None:
    found = doctor(site.config, "--idle", "1s")
    assert found.code == 0, found.states()
    assert set(found.states().values()) == {"ok"}, found.states()
    assert len(found.checks) == 14
    assert found.checks["datasets"]["facts"]["ward"]["rows"] == 150
    assert found.checks["datasets"]["sentence"] == "ward: 150 rows, 5 columns, target kind"
    assert abs(found.checks["clock"]["facts"]["skew_s"]) < 5


def test_before_any_invitation_an_empty_folder_is_enough(port: int, tmp_path: Path) -> None:
    found = doctor("--pre", f"127.0.0.1:{port}", "--idle", "1s", folder=tmp_path)
    assert found.code == 0, found.states()
    assert {"dns", "tcp", "proxy", "tls", "interception", "http2", "idle", "clock", "disk", "memory"} == set(
        found.checks
    )
    assert found.checks["interception"]["state"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_an_invitation_is_examined_and_not_used_up(place: World, tmp_path: Path) -> None:
    request = control_pb2.InviteNodeRequest(name="cyn", valid_s=600, pre_approved=True)
    invitation = tmp_path / "invitation"
    invitation.write_text(place.control.call("InviteNode", request).text)
    config = tmp_path / "agent.yaml"
    document = yaml.safe_load(place.sites["ada"].config.read_text())
    document["datasets"]["ward"]["path"] = str(place.sites["ada"].folder / "table.csv")
    config.write_text(yaml.safe_dump(document))
    found = doctor(config, "--token", f"file:{invitation}", "--idle", "1s")
    assert found.code == 0, found.states()
    assert found.checks["http2"]["sentence"].startswith("HTTP/2 and gRPC reach")
    command = [sys.executable, "-m", "hanse_agent.main", "join", str(config), "--token", f"file:{invitation}"]
    joined = subprocess.run(command, capture_output=True, text=True, env=child_environment(), timeout=60, check=False)
    assert joined.returncode == 0, joined.stderr


def test_a_name_that_dns_does_not_know(tmp_path: Path) -> None:
    found = doctor("--pre", "no-such-coordinator.invalid:7443", folder=tmp_path)
    assert_told(found, "dns", "no-such-coordinator.invalid")
    assert found.failed() == {"dns"}  # no line for what follows from it


def test_a_port_where_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = doctor("--pre", f"127.0.0.1:{taken.getsockname()[1]}", folder=tmp_path)
    assert_told(found, "tcp", "Connection refused")
    assert found.failed() == {"tcp"}


def test_a_port_that_speaks_no_tls(tmp_path: Path) -> None:
    class Talker(Middlebox):
        def serve(self, near: socket.socket) -> None:
            near.sendall(b"220 mail.example.org ESMTP\r\n")
            near.recv(1000)

    with standing(Talker(0)) as box:
        assert_told(doctor("--pre", box.address, "--idle", "0s", folder=tmp_path), "tls", "not with TLS")


@pytest.mark.parametrize("joined", [False, True])
def test_tls_inspection_names_who_opens_it(port: int, tmp_path: Path, behind: Any, joined: bool) -> None:
    with standing(Interceptor(port, tmp_path)) as box:
        arguments = [behind(box.address)] if joined else ["--pre", box.address]
        found = doctor(*arguments, "--idle", "0s", folder=tmp_path)
    assert_told(found, "interception", f"CN={Interceptor.ISSUER}")
    assert found.checks["interception"]["facts"]["issuer"] == f"CN={Interceptor.ISSUER}"
    assert f"127.0.0.1, port {box.port}" in found.checks["interception"]["remedy"]


@pytest.mark.parametrize("joined", [False, True])
def test_a_load_balancer_that_knows_no_http2(
    port: int, tmp_path: Path, behind: Any, authority: Authority, joined: bool
) -> None:
    with standing(OldLoadBalancer(port, tmp_path, authority)) as box:
        arguments = [behind(box.address)] if joined else ["--pre", box.address]
        found = doctor(*arguments, "--idle", "0s", folder=tmp_path)
    assert_told(found, "http2", "does not agree to HTTP/2")
    assert found.failed() == {"http2"}


@pytest.mark.parametrize("joined", [False, True])
def test_a_firewall_that_cuts_idle_connections(port: int, tmp_path: Path, behind: Any, joined: bool) -> None:
    with standing(IdleCutter(port, idle_s=2)) as box:
        arguments = [behind(box.address)] if joined else ["--pre", box.address]
        found = doctor(*arguments, "--idle", "30s", folder=tmp_path)
        assert_told(found, "idle", "was cut after")
        assert found.failed() == {"idle"}
        assert 1.5 < found.checks["idle"]["facts"]["seconds"] < 29


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY"])
def test_a_proxy_that_lets_through_is_used_and_named(site: Site, port: int, variable: str) -> None:
    with standing(ConnectProxy(port)) as proxy:
        found = doctor(site.config, "--idle", "1s", environment=through(proxy, variable))
        assert found.code == 0, found.states()
        assert proxy.address in found.checks["proxy"]["sentence"]
        assert len(proxy.asked) >= 3  # TCP, TLS, and gRPC itself
        assert set(proxy.asked) == {f"CONNECT 127.0.0.1:{port} HTTP/1.1"}


def test_a_proxy_that_refuses(port: int, tmp_path: Path) -> None:
    with standing(ConnectProxy(port, refuse=True)) as proxy:
        found = doctor("--pre", f"127.0.0.1:{port}", environment=through(proxy), folder=tmp_path)
    assert_told(found, "proxy", proxy.address, "403 Forbidden")
    assert found.failed() == {"proxy"}


def test_a_proxy_that_wants_a_password_gets_it_and_it_is_not_shown(port: int, tmp_path: Path) -> None:
    pre = ("--pre", f"127.0.0.1:{port}", "--idle", "0s")
    with standing(ConnectProxy(port, login="ada:s3cret")) as proxy:
        refused = doctor(*pre, environment=through(proxy), folder=tmp_path)
        assert_told(refused, "proxy", "asks for a user and a password")
        found = doctor(*pre, environment=through(proxy, login="ada:s3cret"), folder=tmp_path)
        assert found.code == 0, found.states()
    assert "s3cret" not in json.dumps(found.checks)


def test_a_proxy_that_is_not_there(port: int, tmp_path: Path) -> None:
    box = ConnectProxy(port)
    box.close()
    found = doctor("--pre", f"127.0.0.1:{port}", environment=through(box), folder=tmp_path)
    assert_told(found, "proxy", "cannot be reached")


def test_a_proxy_variable_that_is_no_address(port: int, tmp_path: Path) -> None:
    environment = through(ConnectProxy(port)) | {"https_proxy": "socks5://10.0.0.1:1080"}
    assert_told(doctor("--pre", f"127.0.0.1:{port}", environment=environment, folder=tmp_path), "proxy", "https_proxy")


@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs the Debian package faketime")
class TestClock:
    """Clocks that are really wrong, by faketime."""

    @pytest.mark.parametrize(("offset", "words"), [("+1h", "ahead of"), ("-1h", "behind")])
    def test_an_hour_off_is_measured(self, site: Site, offset: str, words: str) -> None:
        found = doctor(site.config, "--idle", "0s", environment=faked(offset))
        assert_told(found, "clock", words)
        assert abs(abs(found.checks["clock"]["facts"]["skew_s"]) - 3600) < 60
        assert found.failed() == {"clock"}

    def test_twenty_seconds_off_is_a_warning(self, site: Site) -> None:
        found = doctor(site.config, "--idle", "0s", environment=faked("+20s"))
        assert found.checks["clock"]["state"] == "warning"
        assert found.code == 0
        assert doctor(site.config, "--idle", "0s", "--strict", environment=faked("+20s")).code == 1

    def test_ten_days_behind_is_seen_before_any_invitation(self, port: int, tmp_path: Path) -> None:
        pre = ("--pre", f"127.0.0.1:{port}", "--idle", "0s")
        assert_told(doctor(*pre, environment=faked("-10d"), folder=tmp_path), "clock", "clock says")

    def test_a_certificate_that_ran_out(self, site: Site) -> None:
        found = doctor(site.config, "--idle", "0s", environment=faked("+30d"))
        assert_told(found, "certificate", "expired")
        assert "hanse node invite ada --again" in found.checks["certificate"]["remedy"]


def test_a_full_disk(behind: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        fill(disk)
        found = doctor(behind(state=str(disk / "state")), "--idle", "0s")
        assert_told(found, "disk", str(disk))


def test_a_disk_with_too_little_room(behind: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        found = doctor(behind(state=str(disk / "state")), "--idle", "0s")
        assert_told(found, "disk", "free; 400 MB are needed")


def test_workers_that_want_more_memory_than_there_is(behind: Any) -> None:
    found = doctor(behind(worker={"memory": "900TB"}), "--idle", "0s")
    assert_told(found, "memory", "workers may take 900.0 TB")


def test_a_key_that_others_may_read(site: Site, behind: Any, port: int) -> None:
    config = behind(f"127.0.0.1:{port}")
    key = Path(yaml.safe_load(config.read_text())["state"]) / "identity" / "node.pem"
    key.chmod(0o644)
    assert_told(doctor(config, "--idle", "0s"), "certificate", str(key))


@pytest.mark.parametrize(
    ("dataset", "policy", "check", "words"),
    [
        ({"path": "nowhere.csv"}, {}, "datasets", "nowhere.csv"),
        ({"target": "diagnosis"}, {}, "datasets", "diagnosis"),
        ({"colour": "red"}, {}, "datasets", "colour"),
        ({}, {"minimum_rows": 10_000}, "datasets", "policy.minimum_rows asks for 10,000"),
        ({}, {"methods": ["fedscs_xbg"]}, "policy", "fedscs_xbg"),
        ({}, {"approve": "maybe"}, "configuration", "policy.approve"),
    ],
)
def test_a_wrong_dataset_or_policy(
    site: Site, behind: Any, dataset: dict[str, Any], policy: dict[str, Any], check: str, words: str
) -> None:
    document = yaml.safe_load(site.config.read_text())
    block = {**document["datasets"]["ward"], "path": str(site.folder / "table.csv"), **dataset}
    config = behind(datasets={"ward": block}, policy={**document["policy"], **policy})
    assert_told(doctor(config, "--idle", "0s"), check, words)


def test_people_are_told_in_lines_with_cause_remedy_and_guide(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hanse_agent.main", "doctor", "--pre", "no-such-coordinator.invalid:7443"]
    environment = child_environment() | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 1
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0].startswith("✗ DNS")
    assert [line.partition(":")[0] for line in lines[1:4]] == ["cause", "remedy", "guide"]
    assert done.stderr.strip().endswith("[DOCTOR]")
    assert os.linesep + "Traceback" not in done.stderr


def test_every_check_is_explained_in_the_guide() -> None:
    from hanse_agent.doctor import TITLES

    headings = {line.strip() for line in GUIDE.read_text().splitlines() if line.startswith("### doctor: ")}
    assert headings == {f"### doctor: {check}" for check in TITLES}
