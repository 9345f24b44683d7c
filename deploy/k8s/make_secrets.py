"""The Secrets that the overlays `dev` and `production` mount: certificates, database roles, store credentials.

    python deploy/k8s/make_secrets.py FOLDER [--database HOST[:PORT]] [--database-option sslmode=verify-full …]
    kubectl apply --filename FOLDER/secrets.yaml

FOLDER keeps what they are made of: the authority, passwords, the store's credentials. What lies there already is used:
put the house's own files in place first, or run this again to renew the services' certificates (90 days). Keep the
folder as carefully as the authority itself. Needs an installed Hanse (`pip install hanse`, or the image).
"""

from __future__ import annotations

import argparse
import base64
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from hanse.errors import HanseError, OperatorError
from hanse.security import Authority, Identity, write_atomically

SERVICES = ("coordinator", "aggregator", "dashboard")
ROLES = {"owner": "hanse_owner", "application": "hanse_app", "dashboard": "hanse_dashboard"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write FOLDER/secrets.yaml (mode 600)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--namespace", default="hanse")
    parser.add_argument("--database", default="postgres", metavar="HOST[:PORT]", help="where PostgreSQL is")
    parser.add_argument(
        "--database-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of libpq, for instance sslmode=verify-full or sslrootcert=system; may be repeated",
    )
    parser.add_argument(
        "--dashboard-host", action="append", default=[], metavar="NAME", help="name in the dashboard's certificate"
    )
    given = parser.parse_args(arguments)
    try:
        documents = make(
            given.folder,
            database=given.database,
            options=given.database_option,
            dashboard_hosts=given.dashboard_host,
            namespace=given.namespace,
        )
        target = given.folder / "secrets.yaml"
        write_atomically(target, yaml.safe_dump_all(documents, sort_keys=False).encode())
    except HanseError as error:
        print(f"make_secrets: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from None
    print(target)  # noqa: T201


def make(
    folder: Path, *, database: str, options: Sequence[str] = (), dashboard_hosts: Sequence[str] = (), namespace: str
) -> list[dict[str, object]]:
    """The Secrets, of what lies in `folder` and what is made there.

    Raises:
        HanseError: a file cannot be written or used, or an option has not the form KEY=VALUE.
    """
    authority = _authority(folder / "authority")
    kept = folder / "passwords"
    passwords = {name: _kept(kept / name) for name in ("superuser", *ROLES)}
    contents: dict[str, Mapping[str, bytes]] = {
        "authority": {name: (folder / "authority" / name).read_bytes() for name in ("authority.crt", "authority.key")},
        "database-passwords": {name: password.encode() for name, password in passwords.items()},
        "artifact-store": {
            name: _kept(folder / "artifact-store" / name).encode() for name in ("access_key_id", "secret_access_key")
        },
    }
    for service in SERVICES:
        hosts = ["localhost", *dashboard_hosts] if service == "dashboard" else []
        pair = authority.issue(Identity.service(service), hosts=hosts)
        contents[f"{service}-certificate"] = {
            "service.crt": pair.certificate_pem,
            "service.key": pair.key_pem,
            "authority.crt": authority.certificate_pem,
        }
    for name, role in ROLES.items():
        contents[f"database-{name}"] = {
            "pg_service.conf": _service_file(database, role, passwords[name], options).encode()
        }
    return [_secret(name, namespace, content) for name, content in sorted(contents.items())]


def _authority(folder: Path) -> Authority:
    return Authority.load(folder) if (folder / "authority.crt").exists() else Authority.create(folder)


def _kept(path: Path) -> str:
    """What the file says; drawn and written there if it is missing."""
    if not path.exists():
        write_atomically(path, secrets.token_urlsafe(24).encode())
    text = path.read_text(encoding="utf-8").strip()
    if not text or "\n" in text:
        raise OperatorError(f"{path} must hold one line.", remedy="Write the secret there, and nothing else.")
    return text


def _service_file(database: str, role: str, password: str, options: Sequence[str]) -> str:
    """libpq's file of connections: read at every new connection, so that a new password needs no restart."""
    host, _, port = database.partition(":")
    lines = {"host": host, "port": port or "5432", "dbname": "hanse", "user": role, "password": password}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise OperatorError(f"--database-option {option[:80]} is not KEY=VALUE.")
        lines[key] = value
    return "[hanse]\n" + "".join(f"{key}={value}\n" for key, value in lines.items())


def _secret(name: str, namespace: str, content: Mapping[str, bytes]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "hanse"}},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
    }


if __name__ == "__main__":
    main()
