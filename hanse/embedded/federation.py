"""Coordinator and aggregator of one state folder, started in order and kept alive."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hanse.embedded.child import Child
from hanse.embedded.dashboard import MODULE as DASHBOARD_MODULE
from hanse.embedded.dashboard import Dashboard
from hanse.embedded.folder import EVERYWHERE, LOOPBACK, Ports, StateFolder
from hanse.errors import PlatformError
from hanse.security.addresses import check_host

START_TIMEOUT_S = 60.0
_MODULES = {"aggregator": "hanse_aggregator.main", "coordinator": "hanse_coordinator.main"}


@dataclass(frozen=True, kw_only=True)
class EmbeddedOptions:
    """How an embedded federation is started. Ports: None as at the last start (7443 and 7444 at first), 0 any."""

    node_port: int | None = None
    control_port: int | None = None
    nodes_address: str = ""
    """Host by which other machines reach the nodes' port; empty: loopback alone."""
    foreground_logs: bool = False
    dashboard: bool = False
    """Whether to serve pages as well."""
    dashboard_port: int | None = None
    coordinator: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the coordinator's configuration (`lease`, `certificate_lifetime`, `advertise` …)."""
    artifacts: str = ""
    """The artifact store of all programs: a folder or `s3://…`; empty: `artifacts` in the state folder."""


class EmbeddedFederation:
    """A federation in a state folder.

        with EmbeddedFederation(folder, EmbeddedOptions(node_port=0, control_port=0)).running() as federation:
            … federation.client_file …

    `start` returns when both programs serve. It can be stopped and started again.
    """

    def __init__(
        self, state: Path, options: EmbeddedOptions | None = None, *, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder = StateFolder(state)
        self._options = options or EmbeddedOptions()
        self._say = say
        self._stack = ExitStack()
        self._ports: Ports | None = None
        self.children: dict[str, Child] = {}
        self.dashboard: Dashboard | None = None
        """Set once pages are served."""

    @property
    def state(self) -> Path:
        """The state folder."""
        return self._folder.root

    @property
    def ports(self) -> Ports:
        """Where everything listens, once started."""
        if self._ports is None:
            raise RuntimeError("the federation was not started")
        return self._ports

    @property
    def nodes_address(self) -> str:
        """Where agents call."""
        return f"{self._options.nodes_address or LOOPBACK}:{self.ports.nodes}"

    @property
    def control_address(self) -> str:
        """Where operators call."""
        return f"{LOOPBACK}:{self.ports.control}"

    @property
    def client_file(self) -> Path:
        """What the command line reads."""
        return self._folder.client_file

    @property
    def token_file(self) -> Path:
        """The first admin token."""
        return self._folder.token_file

    @property
    def ledger_file(self) -> Path:
        """The ledger's SQLite file."""
        return self._folder.ledger

    @property
    def logs(self) -> Path | None:
        """The folder of the programs' logs; None when they go to standard error."""
        return None if self._options.foreground_logs else self._folder.logs

    def start(self, *, unless: threading.Event | None = None) -> bool:
        """Start everything and wait until it serves; False if `unless` was set before.

        Raises:
            Conflict: a federation already runs in the folder, or a port is taken.
            PlatformError: a program ended or did not serve in time; the sentence quotes its last words.
        """
        listen = EVERYWHERE if self._options.nodes_address else LOOPBACK
        advertised = check_host(self._options.nodes_address) if self._options.nodes_address else LOOPBACK
        with ExitStack() as stack:
            stack.enter_context(self._folder.locked())
            if self._folder.prepare_authority():
                self._say(f"made a new authority in {self._folder.authority}")
            for name in _MODULES:
                self._folder.prepare_service(name)
            self._ports = self._folder.choose_ports(
                nodes=self._options.node_port,
                control=self._options.control_port,
                listen=listen,
                dashboard=self._options.dashboard_port,
                with_dashboard=self._options.dashboard,
            )
            self._folder.write_configurations(
                self._ports,
                listen=listen,
                advertised_host=advertised,
                coordinator=self._options.coordinator,
                artifacts=self._options.artifacts,
            )
            for name, module in _MODULES.items():  # stopped in reverse: the coordinator first
                stack.callback(self._start_child(name, module).stop)
            for name, child in self.children.items():
                serving = self._serving_check(name)
                if not child.wait_ready(serving, timeout_s=START_TIMEOUT_S, unless=unless):
                    return False
            if self._ports.dashboard:
                self._start_dashboard(stack, unless)
            self._stack = stack.pop_all()
        return True

    def stop(self) -> None:
        """Drain and stop everything; the folder is free afterwards."""
        self._stack.close()

    def hurry(self) -> None:
        """End everything at once."""
        for child in self.children.values():
            child.kill()

    @contextmanager
    def running(self, *, unless: threading.Event | None = None) -> Iterator[Self]:
        """`start` and, whatever happens, `stop`."""
        try:
            self.start(unless=unless)
            yield self
        finally:
            self.stop()

    def _start_dashboard(self, stack: ExitStack, unless: threading.Event | None) -> None:
        """Pages are a convenience: when they cannot be served, the person is told and the federation goes on."""
        dashboard = Dashboard.at(self.ports.dashboard)
        dashboard.write_configuration(
            self._folder,
            coordinator=self.control_address,
            nodes_address=self.nodes_address,
            artifacts=self._options.artifacts,
        )
        child = self._start_child("dashboard", DASHBOARD_MODULE)
        stack.callback(child.stop)
        try:
            if child.wait_ready(dashboard.is_ready, timeout_s=START_TIMEOUT_S, unless=unless):
                self.dashboard = dashboard
        except PlatformError as error:
            child.stop()
            self._say(f"going on without pages: {error}")

    def _start_child(self, name: str, module: str) -> Child:
        folder = self._folder.service(name)
        (folder / "ports.json").unlink(missing_ok=True)
        log = None if self._options.foreground_logs else self._folder.logs / f"{name}.log"
        child = Child(name, [module, "--config", str(folder / "config.yaml")], log=log, say=self._say)
        self.children[name] = child
        child.start()
        return child

    def _serving_check(self, name: str) -> Callable[[], bool]:
        """Whether the program has bound its ports (its own word, so that no stranger is asked) and serves."""
        ports_file = self._folder.service(name) / "ports.json"
        health = self.ports.coordinator_health if name == "coordinator" else self.ports.aggregator_health

        def check() -> bool:
            try:
                bound = json.loads(ports_file.read_text())
            except (OSError, ValueError):
                return False
            return bound.get("health") == health and is_serving(f"{LOOPBACK}:{health}")

        return check


def is_serving(address: str, *, timeout_s: float = 1.0) -> bool:
    """Ask a plaintext health service (`grpc.health.v1`) whether the server as a whole serves."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
