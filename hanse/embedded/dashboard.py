"""The dashboard of an embedded federation: started when it is installed, and never in the way when it cannot start."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import secrets
from dataclasses import dataclass
from pathlib import Path

from hanse.embedded.folder import LOOPBACK, StateFolder

MODULE = "hanse_dashboard.main"
# The package is part of every installation; what it stands on comes with the extra `dashboard`.
_NEEDS = ("hanse_dashboard", "fastapi", "uvicorn", "jinja2")


def is_installed() -> bool:
    """Whether this installation can serve pages."""
    return all(importlib.util.find_spec(name) for name in _NEEDS)


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Where pages are, and the way in: a link that logs in once, as the first administrator."""

    port: int
    code: str

    @classmethod
    def at(cls, port: int) -> Dashboard:
        """With a new code; the one of an earlier start is worthless."""
        return cls(port=port, code=secrets.token_urlsafe(24))

    @property
    def address(self) -> str:
        """For a browser on this machine."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def login_link(self) -> str:
        """A secret until it is used."""
        return f"{self.address}/login?code={self.code}"

    def write_configuration(
        self, folder: StateFolder, *, coordinator: str, nodes_address: str, artifacts: str = ""
    ) -> Path:
        """The dashboard's file; of the code it holds the SHA-256 alone."""
        service = folder.service("dashboard")
        path = service / "config.yaml"
        folder.write_yaml(
            path,
            {
                "name": folder.root.name,
                "ledger": f"sqlite:///{folder.ledger}",
                "artifacts": artifacts or str(folder.root / "artifacts"),
                "coordinator": coordinator,
                "authority": str(folder.authority / "authority.crt"),
                "nodes_address": nodes_address,
                "listen": f"{LOOPBACK}:{self.port}",
                "login_link_sha256": hashlib.sha256(self.code.encode()).hexdigest(),
                "login_link_token": str(folder.token_file),
                "ports_file": str(service / "ports.json"),
            },
        )
        return path

    def is_ready(self) -> bool:
        """Whether it answers."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=1.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
