"""A database with the roles of the deployment, made by the deployment's own scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.deploy.manifests import DEPLOY

ROLES = {"owner": "hanse_owner", "application": "hanse_app", "dashboard": "hanse_dashboard"}
URL = "postgresql+psycopg:///?service=hanse"


@dataclass(frozen=True, kw_only=True)
class Database:
    """A server of the tests' own, and what connects to it in each role."""

    server: Any
    folder: Path

    @property
    def programs(self) -> Path:
        """The server's own psql, pg_dump and pg_restore."""
        options = (Path(self.server.pgdata) / "postmaster.opts").read_text()
        return Path(options.split()[0].strip('"')).parent

    def make(self) -> None:
        """Roles and database, by `roles.sql`."""
        passwords = self.folder / "passwords"
        passwords.mkdir(exist_ok=True)
        for name in ROLES:
            (passwords / name).write_text(f'{name}\'s "secret"')
        script = DEPLOY / "postgres" / "roles.sql"
        self.run(["psql", "--no-psqlrc", "--file", str(script), self.server.get_uri()], HANSE_PASSWORDS=str(passwords))

    def service_file(self, role: str) -> Path:
        """What PGSERVICEFILE names, for one of the roles."""
        host = self.server.get_uri().partition("host=")[2]
        path = self.folder / f"{role}.conf"
        lines = {"host": host, "dbname": "hanse", "user": ROLES[role], "password": f'{role}\'s "secret"'}
        path.write_text("[hanse]\n" + "".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    def migrate(self) -> None:
        """What the Job does: tables, then rights."""
        config = self.folder / "coordinator.yaml"
        config.write_text(f"state: /nowhere\ncertificate: /nowhere\naggregators: [nowhere:1]\nledger: {URL}\n")
        grants = [str(DEPLOY / "postgres" / "grant.py"), str(DEPLOY / "postgres" / "grants.sql")]
        owner = str(self.service_file("owner"))
        for arguments in (["-m", "hanse_coordinator.main", "--config", str(config), "--migrate"], grants):
            self.run([sys.executable, *arguments], PGSERVICEFILE=owner)

    def connect(self, role: str) -> psycopg.Connection[Any]:
        """A connection in a role."""
        host = self.server.get_uri().partition("host=")[2]
        return psycopg.connect(host=host, dbname="hanse", user=ROLES[role], autocommit=True)

    def superuser(self, statement: str) -> None:
        """A statement outside the database, as the server's administrator."""
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def run(self, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program with the server's own ones on its path; it must succeed."""
        done = self.attempt(command, variables)
        assert done.returncode == 0, done.stderr
        return done

    def attempt(self, command: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a program, and see what comes."""
        path = os.pathsep.join([str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, **variables}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
