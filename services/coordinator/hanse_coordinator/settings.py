"""The coordinator's configuration: a YAML file, and `HANSE_…` variables for what differs from place to place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from pydantic import Field

from hanse.artifacts import ArtifactSettings
from hanse.configuration import Loaded, load_configuration
from hanse.settings import Duration

PREFIX = "HANSE_COORDINATOR_"
"""`HANSE_COORDINATOR_LEASE` and so on: any key may be given by the environment."""
# Shorter names for what is a secret or differs between machines.
ENVIRONMENT = {
    "HANSE_DATABASE_URL": "ledger",
    "HANSE_NODES_LISTEN": "nodes_listen",
    "HANSE_CONTROL_LISTEN": "control_listen",
    "HANSE_HEALTH_LISTEN": "health_listen",
    "HANSE_ARTIFACTS": "artifacts",
    "HANSE_STATE": "state",
    "HANSE_TRACES": "traces",
}


class CoordinatorSettings(ArtifactSettings):
    """Every key of the coordinator's configuration."""

    name: str = "federation"
    """Shown to people and in every invitation's log line."""
    state: Path
    """Folder for everything that has no path of its own below."""
    ledger: str = ""
    """Database URL; empty: `ledger.sqlite` in the state folder."""
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
    """Plaintext health and metrics; empty: none."""
    health_address: str = ""
    """host:port at which other coordinators reach `health_listen`; a standby sees there that the leader has ended, and
    need not wait for its lease. Default: `health_listen`, where that names one machine."""
    leader_lease: Duration = Field(timedelta(seconds=5), ge=timedelta(seconds=1), le=timedelta(minutes=5))
    """On PostgreSQL: how long a leader that is silent still leads. It is renewed three times as often."""
    grace: Duration = Field(timedelta(seconds=15), ge=timedelta(0))
    """After SIGTERM: how long uploads that are running may go on."""
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
    aggregation_limit: Duration = timedelta(minutes=30)
    """How long an aggregator may work at one contribution, or at an outcome, before the job pauses."""
    largest_payload: int = Field(64 * 2**30, ge=1)
    """Bytes; a larger contribution is refused before anything is stored."""
    first_token: Path | None = None
    """Where to write an administrator's token when the ledger holds no token at all."""
    ports_file: Path | None = None
    """Where to write the bound ports (JSON), once the coordinator serves."""
    traces: str = ""
    """OTLP endpoint (`http://collector:4317`) that is sent a trace of each phase; empty: none."""
    log_json: bool = False

    @property
    def ledger_url(self) -> str:
        """The database's URL."""
        return self.ledger or f"sqlite:///{self.state / 'ledger.sqlite'}"

    @property
    def artifact_folder(self) -> Path:
        """Where artifacts lie unless `artifacts` says it."""
        return self.state / "artifacts"

    @property
    def authority_folder(self) -> Path:
        """The authority's folder."""
        return self.authority or self.state / "authority"


def configuration(path: Path, environment: Mapping[str, str] = os.environ) -> Loaded[CoordinatorSettings]:
    """Read the configuration file; the environment wins over it.

    Raises:
        OperatorError: unreadable, or a wrong or unknown key; the sentence names it and where it stands.
    """
    return load_configuration(CoordinatorSettings, path, environment=environment, prefix=PREFIX, variables=ENVIRONMENT)


def load(path: Path) -> CoordinatorSettings:
    """The settings alone.

    Raises:
        OperatorError: as `configuration`.
    """
    return configuration(path).settings
