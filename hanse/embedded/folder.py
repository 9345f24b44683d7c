"""The state folder of an embedded federation: what is made once, and what every start writes anew.

Made once: the authority, the choice of ports, the first token. Written at every start: the programs'
configurations and `client.yaml`. Certificates are renewed when a third of their life is left.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from hanse.errors import Conflict, HanseError, OperatorError, PlatformError
from hanse.security import Authority, Identity, KeyPair, write_atomically
from hanse.security.certificates import require_issued_by
from hanse.security.identity import CERTIFICATE_FAULTS
from hanse.settings import Settings

SERVICE_LIFETIME = timedelta(days=398)
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - only when the operator names an address for other machines
# Below the range from which the kernel takes ports for outgoing connections, so that none of them is in the way.
_FREE_PORTS = range(20_000, 32_000)
_FLAGS = {"nodes": "--node-port", "control": "--control-port", "dashboard": "--dashboard-port"}


class Ports(Settings):
    """Where everything listens; chosen at the first start and kept, since invitations carry an address."""

    nodes: int = Field(gt=0, le=65535)
    control: int = Field(gt=0, le=65535)
    coordinator_health: int = Field(gt=0, le=65535)
    aggregator: int = Field(gt=0, le=65535)
    aggregator_health: int = Field(gt=0, le=65535)
    dashboard: int = Field(0, ge=0, le=65535)
    """0: no dashboard."""


class StateFolder:
    """Paths and files under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def authority(self) -> Path:
        """The authority's folder."""
        return self.root / "authority"

    @property
    def client_file(self) -> Path:
        """What the command line reads."""
        return self.root / "client.yaml"

    @property
    def token_file(self) -> Path:
        """The first admin token (0600)."""
        return self.root / "admin.token"

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.root / "ledger.sqlite"

    @property
    def logs(self) -> Path:
        """One file a program."""
        return self.root / "logs"

    def service(self, name: str) -> Path:
        """A service's certificate, key, configuration and bound ports."""
        return self.root / "services" / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: one supervisor at a time. The lock goes with the process, however it ends.

        Raises:
            Conflict: another one holds it.
            PlatformError: the folder cannot be made.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.root / "up.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PlatformError(
                f"{self.root} cannot be written: {error.strerror or error}.",
                remedy="Choose another folder with --state, or mend its permissions.",
                code="FOLDER_NOT_WRITTEN",
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 20).decode(errors="replace").strip()
                raise Conflict(
                    f"A federation already runs in {self.root}" + (f" (process {holder})." if holder else "."),
                    remedy="Use it, stop it first, or choose another folder with --state.",
                    code="ALREADY_RUNNING",
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def prepare_authority(self) -> bool:
        """Make the authority on the first start; whether it was the first."""
        if (self.authority / "authority.crt").exists():
            return False
        Authority.create(self.authority)
        return True

    def prepare_service(self, name: str) -> None:
        """Certificate and key of a service: made, or renewed in time."""
        authority = Authority.load(self.authority)
        folder = self.service(name)
        if _still_good(folder, authority):
            return
        pair = authority.issue(Identity.service(name), hosts=("localhost", LOOPBACK, "::1"), lifetime=SERVICE_LIFETIME)
        write_atomically(folder / "service.key", pair.key_pem)
        write_atomically(folder / "service.crt", pair.certificate_pem, mode=0o644)

    def choose_ports(
        self,
        *,
        nodes: int | None,
        control: int | None,
        listen: str,
        dashboard: int | None = None,
        with_dashboard: bool = False,
    ) -> Ports:
        """The ports of the last start, unless others are asked for; 0 means any that is free.

        Raises:
            Conflict: a port is taken by another program.
        """
        path = self.root / "ports.json"
        known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

        def chosen(key: str, asked: int | None, usual: int, host: str) -> int:
            if asked:
                return asked
            if key in known:
                return int(known[key])
            return free_port(host) if asked == 0 or not usual else usual

        ports = Ports(
            nodes=chosen("nodes", nodes, 7443, listen),
            control=chosen("control", control, 7444, LOOPBACK),
            coordinator_health=chosen("coordinator_health", None, 0, LOOPBACK),
            aggregator=chosen("aggregator", None, 0, LOOPBACK),
            aggregator_health=chosen("aggregator_health", None, 0, LOOPBACK),
            dashboard=chosen("dashboard", dashboard, 7480, LOOPBACK) if with_dashboard else 0,
        )
        kept = {key: port for key, port in ports.model_dump().items() if port}
        for key, port in kept.items():
            host = listen if key == "nodes" else LOOPBACK
            if not is_free(host, port):
                flag = _FLAGS.get(key)
                raise Conflict(
                    f"Port {port} on {host} is taken by another program.",
                    remedy=f"Choose another with {flag} (0: any free one)."
                    if flag
                    else f"Stop that program, or remove {path} to have other ports chosen.",
                    code="PORT_TAKEN",
                )
        write_atomically(path, json.dumps(known | kept, indent=2).encode() + b"\n", mode=0o644)
        return ports

    def write_configurations(
        self,
        ports: Ports,
        *,
        listen: str,
        advertised_host: str,
        coordinator: Mapping[str, object] | None = None,
        artifacts: str = "",
    ) -> None:
        """Configuration files of the programs, and `client.yaml`; `coordinator` adds keys to the coordinator's, and
        `artifacts` is the store of both (default: the state folder's)."""
        leader, aggregator = self.service("coordinator"), self.service("aggregator")
        artifacts = artifacts or str(self.root / "artifacts")
        self.write_yaml(
            aggregator / "config.yaml",
            {
                "listen": f"{LOOPBACK}:{ports.aggregator}",
                "health_listen": f"{LOOPBACK}:{ports.aggregator_health}",
                "certificate": str(aggregator / "service.crt"),
                "key": str(aggregator / "service.key"),
                "authority": str(self.authority / "authority.crt"),
                "artifacts": artifacts,
                "ports_file": str(aggregator / "ports.json"),
            },
        )
        host = f"[{advertised_host}]" if ":" in advertised_host else advertised_host
        self.write_yaml(
            leader / "config.yaml",
            {
                "name": self.root.name,
                "state": str(self.root),
                "ledger": f"sqlite:///{self.ledger}",
                "artifacts": artifacts,
                "authority": str(self.authority),
                "certificate": str(leader / "service.crt"),
                "key": str(leader / "service.key"),
                "nodes_listen": f"{listen}:{ports.nodes}",
                "control_listen": f"{LOOPBACK}:{ports.control}",
                "health_listen": f"{LOOPBACK}:{ports.coordinator_health}",
                "advertise": [f"{host}:{ports.nodes}"],
                "aggregators": [f"{LOOPBACK}:{ports.aggregator}"],
                "first_token": str(self.token_file),
                "ports_file": str(leader / "ports.json"),
                **(coordinator or {}),
            },
        )
        self.write_yaml(
            self.client_file,
            {
                "coordinator": f"{LOOPBACK}:{ports.control}",
                "authority": "authority/authority.crt",
                "token_file": "admin.token",
            },
            mode=0o644,
        )

    def write_yaml(self, path: Path, document: dict[str, Any], *, mode: int = 0o600) -> None:
        """A program's configuration."""
        write_atomically(path, yaml.safe_dump(document, sort_keys=False).encode(), mode=mode)


def _still_good(folder: Path, authority: Authority) -> bool:
    try:
        pair = KeyPair(
            certificate_pem=(folder / "service.crt").read_bytes(), key_pem=(folder / "service.key").read_bytes()
        )
        certificate = pair.certificate
        require_issued_by(certificate, authority.certificate)
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        return pair.is_consistent() and left > SERVICE_LIFETIME / 3
    except (OSError, HanseError, *CERTIFICATE_FAULTS):
        return False


def free_port(host: str) -> int:
    """A port that nobody listens on at the moment.

    Raises:
        OperatorError: none was found.
    """
    for port in random.sample(_FREE_PORTS, 200):
        if is_free(host, port):
            return port
    raise OperatorError(f"No free port was found on {host}.", remedy="Name one with --node-port and --control-port.")


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
