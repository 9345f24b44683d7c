"""An embedded federation's life, with small programs in the place of the services."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import stat
import threading

import pytest
import yaml

from hanse.cli.connection import CLIENT_FILE
from hanse.embedded import EmbeddedFederation, EmbeddedOptions, StateFolder
from hanse.embedded import federation as module
from hanse.errors import Conflict, PlatformError
from hanse.security import Authority

from .conftest import until

ANY = EmbeddedOptions(node_port=0, control_port=0)


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch):
    monkeypatch.setattr(module, "_MODULES", {"aggregator": "programs", "coordinator": "programs"})


def pid_of(federation, name):
    return json.loads((federation.state / "services" / name / "ports.json").read_text())["pid"]


def test_it_serves_when_start_returns_and_is_gone_after_stop(tmp_path):
    federation = EmbeddedFederation(tmp_path / "state", ANY)
    with federation.running():
        assert module.is_serving(f"127.0.0.1:{federation.ports.coordinator_health}")
        assert module.is_serving(f"127.0.0.1:{federation.ports.aggregator_health}")
        client = yaml.safe_load(federation.client_file.read_text())
        assert federation.client_file.name == CLIENT_FILE
        assert client["coordinator"] == federation.control_address
        assert (federation.state / client["authority"]).exists()
    assert not module.is_serving(f"127.0.0.1:{federation.ports.coordinator_health}", timeout_s=0.2)
    assert "drained" in (federation.state / "logs" / "coordinator.log").read_text()


def test_secrets_are_private(tmp_path):
    federation = EmbeddedFederation(tmp_path / "state", ANY)
    with federation.running():
        pass
    for path in ("authority/authority.key", "services/coordinator/service.key", "services/coordinator/config.yaml"):
        assert stat.S_IMODE((federation.state / path).stat().st_mode) == 0o600
    assert stat.S_IMODE(federation.state.stat().st_mode) == 0o700


def test_a_second_start_reuses_authority_certificates_and_ports(tmp_path):
    federation = EmbeddedFederation(tmp_path / "state", ANY)
    with federation.running():
        ports = federation.ports
    kept = ["authority/authority.crt", "services/coordinator/service.crt", "services/aggregator/service.key"]
    before = [(federation.state / path).read_bytes() for path in kept]
    again = EmbeddedFederation(tmp_path / "state")
    with again.running():
        assert again.ports == ports
    assert [(federation.state / path).read_bytes() for path in kept] == before


def test_two_at_once_on_one_folder_are_refused(tmp_path):
    refused = pytest.raises(Conflict, match=rf"already runs in .*state \(process {os.getpid()}\)")
    with EmbeddedFederation(tmp_path / "state", ANY).running(), refused:
        EmbeddedFederation(tmp_path / "state", ANY).start()
    with EmbeddedFederation(tmp_path / "state", ANY).running():
        pass


def test_a_program_that_dies_comes_back_on_its_port(tmp_path, said):
    with EmbeddedFederation(tmp_path / "state", ANY, say=said.append).running() as federation:
        first = pid_of(federation, "coordinator")
        os.kill(first, signal.SIGKILL)
        until(lambda: pid_of(federation, "coordinator") != first)
        assert module.is_serving(f"127.0.0.1:{federation.ports.coordinator_health}")
    assert any("coordinator was ended by SIGKILL" in line for line in said)


def test_a_program_that_cannot_start_stops_everything_and_frees_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MODULES", {"aggregator": "programs", "coordinator": "no_such_program"})
    federation = EmbeddedFederation(tmp_path / "state", ANY)
    with pytest.raises(PlatformError, match=r"coordinator ended before it served: .*no_such_program"):
        federation.start()
    assert federation.children["aggregator"].ended
    with StateFolder(tmp_path / "state").locked():
        pass


def test_a_start_can_be_called_off(tmp_path):
    asked = threading.Event()
    asked.set()
    federation = EmbeddedFederation(tmp_path / "state", ANY)
    assert federation.start(unless=asked) is False
    assert all(child.ended for child in federation.children.values())


def test_a_taken_port_is_named_with_the_flag(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Conflict, match=rf"Port {port} .*--node-port"):
            EmbeddedFederation(tmp_path / "state", EmbeddedOptions(node_port=port, control_port=0)).start()


def test_other_machines_reach_it_only_when_an_address_is_given(tmp_path):
    folder = StateFolder(tmp_path / "state")
    folder.root.mkdir()
    ports = folder.choose_ports(nodes=0, control=0, listen="127.0.0.1")
    options = EmbeddedOptions(node_port=0, control_port=0, nodes_address="federation.example.org")
    with EmbeddedFederation(tmp_path / "state", options).running() as federation:
        config = yaml.safe_load((federation.state / "services/coordinator/config.yaml").read_text())
    assert config["nodes_listen"] == f"0.0.0.0:{ports.nodes}"
    assert config["advertise"] == [f"federation.example.org:{ports.nodes}"]
    assert config["control_listen"].startswith("127.0.0.1:")


WITH_PAGES = EmbeddedOptions(node_port=0, control_port=0, dashboard=True, dashboard_port=0)


def test_pages_are_served_with_a_link_whose_code_is_nowhere_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DASHBOARD_MODULE", "programs")
    with EmbeddedFederation(tmp_path / "state", WITH_PAGES).running() as federation:
        dashboard = federation.dashboard
        assert dashboard is not None
        assert dashboard.is_ready()
        path = federation.state / "services/dashboard/config.yaml"
        config = yaml.safe_load(path.read_text())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert config["login_link_sha256"] == hashlib.sha256(dashboard.code.encode()).hexdigest()
        assert config["coordinator"] == federation.control_address
        assert dashboard.login_link == f"{dashboard.address}/login?code={dashboard.code}"
        texts = [each.read_bytes() for each in federation.state.rglob("*") if each.is_file()]
        assert not any(dashboard.code.encode() in text for text in texts)
    assert not dashboard.is_ready()


def test_pages_that_cannot_be_served_do_not_stop_the_federation(tmp_path, monkeypatch, said):
    monkeypatch.setattr(module, "DASHBOARD_MODULE", "no_such_program")
    with EmbeddedFederation(tmp_path / "state", WITH_PAGES, say=said.append).running() as federation:
        assert federation.dashboard is None
        assert module.is_serving(f"127.0.0.1:{federation.ports.coordinator_health}")
    assert any("going on without pages" in line for line in said)


def test_a_start_without_pages_keeps_their_port_for_later(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DASHBOARD_MODULE", "programs")
    with EmbeddedFederation(tmp_path / "state", WITH_PAGES).running() as federation:
        port = federation.ports.dashboard
    with EmbeddedFederation(tmp_path / "state", ANY).running() as federation:
        assert federation.ports.dashboard == 0
    with EmbeddedFederation(tmp_path / "state", EmbeddedOptions(dashboard=True)).running() as federation:
        assert federation.ports.dashboard == port


def test_a_certificate_of_another_authority_is_replaced(tmp_path):
    folder = StateFolder(tmp_path / "state")
    folder.prepare_authority()
    folder.prepare_service("coordinator")
    first = (folder.service("coordinator") / "service.crt").read_bytes()
    folder.prepare_service("coordinator")
    assert (folder.service("coordinator") / "service.crt").read_bytes() == first
    for path in folder.authority.iterdir():
        path.unlink()
    Authority.create(folder.authority)
    folder.prepare_service("coordinator")
    assert (folder.service("coordinator") / "service.crt").read_bytes() != first
