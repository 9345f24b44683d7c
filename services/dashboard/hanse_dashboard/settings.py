"""The dashboard's configuration: a YAML file, and `HANSE_DASHBOARD_…` variables, which win over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from hanse.artifacts import ArtifactSettings
from hanse.configuration import Loaded, load_configuration
from hanse.security import Role
from hanse.settings import Duration, Settings

__all__ = ["DashboardSettings", "OidcSettings", "configuration", "load"]

PREFIX = "HANSE_DASHBOARD_"


class OidcSettings(Settings):
    """Logging in through an organisation's own provider (OpenID Connect), beside operator tokens."""

    issuer: str
    """The provider's address, as it writes it itself: `https://login.example.org/realms/hospital`."""
    client_id: str = Field(min_length=1)
    """What the provider calls this dashboard. Its redirect address there: `PUBLIC_URL/login/oidc/back`."""
    client_secret_file: Path | None = None
    """File with the client's secret; absent: a public client, which PKCE protects."""
    authority: Path | None = None
    """Root certificates (PEM) to trust the provider by; absent: the system's."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """What is asked for."""
    name_claim: str = "email"
    """What people are called here, and in the ledger."""
    roles_claim: str = "groups"
    """Where the groups stand: a claim, or a path of claims with dots between (`realm_access.roles`)."""
    roles: dict[str, Role] = Field(min_length=1)
    """Which group has which role here; of several, the one that may most. Whoever is in none does not get in."""
    token_file: Path
    """File with an administrator's token of the dashboard's own, by which the coordinator makes one for each log-in."""
    label: str = Field("Log in with your organisation", max_length=60)
    """What stands on the button."""

    @field_validator("issuer")
    @classmethod
    def _safe(cls, issuer: str) -> str:
        parts = urlsplit(issuer)
        if not parts.netloc or (parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1")):
            raise ValueError("must be an https:// address")
        return issuer


class DashboardSettings(ArtifactSettings):
    """Every key of the dashboard's configuration.

    Without `artifacts`, the artifact store where this machine reaches it, pictures come from the coordinator.
    """

    name: str = "federation"
    """What the federation is called on every page."""
    ledger: str
    """Database URL of the ledger: `sqlite:///PATH` or `postgresql+psycopg://USER@HOST/DATABASE`."""
    coordinator: str
    """host:port of the coordinator's control port."""
    authority: Path
    """The federation's root certificate (PEM)."""
    nodes_address: str = ""
    """host:port at which agents reach the coordinator; shown in the onboarding commands."""
    agent_image: str = ""
    """The agent's image, shown there; default: `hanse-agent` of this release, as `deploy/images` names it."""
    listen: str = "127.0.0.1:7480"
    """Where browsers call; port 0: any free one."""
    health_listen: str = ""
    """Plaintext health, readiness and metrics for kubelet and Prometheus. Empty: at `listen`, beside the pages."""
    certificate: Path | None = None
    """Certificate (PEM), to speak TLS here; empty: plain HTTP, for loopback or behind an ingress that ends TLS."""
    key: Path | None = None
    """Its private key; default: in the certificate's file."""
    root_path: str = Field("", pattern=r"^(/[A-Za-z0-9._~-]+)*$")
    """The path under which an ingress shows the dashboard, for instance `/hanse`. The ingress may strip it or not."""
    public_url: str = ""
    """The address in the browser's bar (`https://federation.example.org`), where a proxy hides it."""
    trusted_proxies: str = "127.0.0.1"
    """Addresses whose X-Forwarded-For and X-Forwarded-Proto are believed, with commas between; `*`: all."""
    session_lifetime: Duration = timedelta(hours=12)
    """After so long, everybody logs in again."""
    session_idle: Duration = timedelta(hours=1)
    """Whoever asked for nothing for so long logs in again."""
    login_attempts: int = Field(10, ge=1)
    """Bad attempts to log in from one address within `login_window`, before it must wait."""
    login_window: Duration = timedelta(minutes=5)
    login_link_sha256: str = Field("", pattern="^([0-9a-f]{64})?$")
    """SHA-256 of a code that logs somebody in once with the token in `login_link_token` (`hanse up` makes one)."""
    login_link_token: Path | None = None
    oidc: OidcSettings | None = None
    """Log in through a provider as well; absent: with operator tokens alone."""
    heartbeat: Duration = timedelta(seconds=10)
    """How often a live page hears that it is still connected."""
    largest_export: int = Field(100_000, ge=1)
    """Rows of a CSV export."""
    ports_file: Path | None = None
    """Where to write the bound port (JSON), once the dashboard answers."""
    log_json: bool = False
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")


def configuration(path: Path | None, environment: Mapping[str, str] = os.environ) -> Loaded[DashboardSettings]:
    """Read the file, if there is one, and the environment.

    Raises:
        OperatorError: unreadable, or a wrong or unknown key; the sentence names it and where it stands.
    """
    return load_configuration(DashboardSettings, path, environment=environment, prefix=PREFIX)


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> DashboardSettings:
    """The settings alone.

    Raises:
        OperatorError: as `configuration`.
    """
    return configuration(path, environment).settings
