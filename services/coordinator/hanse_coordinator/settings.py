"""The coordinator's configuration: a YAML file, and `HANSE_…` variables for what differs from place to place."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from hanse.errors import OperatorError
from hanse.settings import Duration, Settings, validate

# What may be given by the environment, since it is a secret or differs between machines.
ENVIRONMENT = {
    "HANSE_DATABASE_URL": "ledger",
    "HANSE_NODES_LISTEN": "nodes_listen",
    "HANSE_CONTROL_LISTEN": "control_listen",
    "HANSE_HEALTH_LISTEN": "health_listen",
    "HANSE_ARTIFACTS": "artifacts",
    "HANSE_STATE": "state",
}


class CoordinatorSettings(Settings):
    """Every key of the coordinator's configuration."""

    name: str = "federation"
    """Shown to people and in every invitation's log line."""
    state: Path
    """Folder for everything that has no path of its own below."""
    ledger: str = ""
    """Database URL; empty: `ledger.sqlite` in the state folder."""
    artifacts: Path | None = None
    """Folder of the artifact store; default `artifacts` in the state folder."""
    authority: Path | None = None
    """Folder with authority.crt and authority.key; default `authority` in the state folder."""
    certificate: Path
    """The coordinator's own certificate (PEM)."""
    key: Path | None = None
    """Its private key; default: in the certificate's file."""
    client_certificate: Path | None = None
    """Shown to aggregators; default: the coordinator's own certificate."""
    client_key: Path | None = None
    nodes_listen: str = "0.0.0.0:7443"
    """Where agents call (mutual TLS)."""
    control_listen: str = "0.0.0.0:7444"
    """Where operators call (TLS and a token)."""
    health_listen: str = ""
    """Plaintext health service; empty: none."""
    advertise: tuple[str, ...] = ()
    """host:port at which agents reach `nodes_listen`; written into invitations. Default: the bound address."""
    aggregators: tuple[str, ...] = Field(min_length=1)
    """host:port of the aggregator services."""
    lease: Duration = timedelta(seconds=30)
    """An assignment whose node shows no progress for so long is given up for the phase."""
    heartbeat: Duration = timedelta(seconds=10)
    """How often an agent says that it is there."""
    certificate_lifetime: Duration = timedelta(days=7)
    """Of node certificates; agents renew after two thirds."""
    retention: Duration = timedelta(days=1)
    """Contributions are deleted so long after their phase closed; digest and size stay."""
    aggregator_patience: Duration = timedelta(minutes=5)
    """How long a phase waits for an aggregator that does not answer before the job pauses."""
    largest_payload: int = Field(64 * 2**30, ge=1)
    """Bytes; a larger contribution is refused before anything is stored."""
    first_token: Path | None = None
    """Where to write an administrator's token when the ledger holds no token at all."""
    ports_file: Path | None = None
    """Where to write the bound ports (JSON), once the coordinator serves."""
    log_json: bool = False

    @property
    def ledger_url(self) -> str:
        """The database's URL."""
        return self.ledger or f"sqlite:///{self.state / 'ledger.sqlite'}"

    @property
    def artifact_folder(self) -> Path:
        """The artifact store's folder."""
        return self.artifacts or self.state / "artifacts"

    @property
    def authority_folder(self) -> Path:
        """The authority's folder."""
        return self.authority or self.state / "authority"


def load(path: Path) -> CoordinatorSettings:
    """Read the configuration file; the environment wins over it.

    Raises:
        OperatorError: unreadable, or a wrong or unknown key; the sentence names it.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OperatorError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise OperatorError(f"{path} must hold keys and values, not {type(document).__name__}.")
    given: dict[str, Any] = {key: os.environ[name] for name, key in ENVIRONMENT.items() if os.environ.get(name)}
    return validate(CoordinatorSettings, document | given, source=str(path))
