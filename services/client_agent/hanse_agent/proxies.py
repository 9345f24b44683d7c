"""The site's HTTP proxy: which one gRPC uses for an address, and the way through it by CONNECT."""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from hanse.errors import SiteError, Unreachable
from hanse.security import Address
from hanse.security.probe import connect_directly

# In the order in which gRPC looks at them. It knows the lower-case names alone.
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
EXEMPTION_VARIABLES = ("no_grpc_proxy", "no_proxy")
_LONGEST_ANSWER = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """An HTTP proxy of the site."""

    host: str
    port: int
    variable: str
    """The variable that names it."""
    credentials: str = field(default="", repr=False)
    """`user:password`, where the variable holds them."""

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(self.host, self.port)

    def connect(self, target: Address, timeout_s: float) -> socket.socket:
        """A connection through the proxy to `target`.

        Raises:
            SiteError: the proxy refuses, or is none.
            OSError: the proxy is not reached.
        """
        connection = connect_directly(self.address, timeout_s)
        try:
            status, reason = _ask(connection, target, self.credentials)
        except BaseException:
            connection.close()
            raise
        if status == 200:
            return connection
        connection.close()
        raise self.refusal(target, status, reason)

    def refusal(self, target: Address, status: int, reason: str) -> SiteError:
        """What a person is told when the proxy does not let through."""
        if status == 407:
            return SiteError(
                f"The proxy {self.address} ({self.variable}) asks for a user and a password.",
                remedy=f"Write them into the variable: {self.variable}=http://USER:PASSWORD@{self.address}",
                code="PROXY_LOGIN",
            )
        if status == 0:
            return SiteError(
                f"What {self.variable} names, {self.address}, answers, but not as an HTTP proxy ({reason}).",
                remedy=f"Correct {self.variable}.",
                code="NO_PROXY",
            )
        return SiteError(
            f"The proxy {self.address} ({self.variable}) refuses CONNECT to {target}: {status} {reason}.",
            remedy=f"Have the proxy allow CONNECT to {target.host}, port {target.port}, without opening TLS.",
            code="PROXY_REFUSES",
        )


def proxy_for(target: Address, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """The proxy that gRPC would use for `target`; None: the direct way.

    Raises:
        SiteError: the variable does not hold an address.
    """
    name = next((name for name in PROXY_VARIABLES if environment.get(name)), None)
    if name is None or _exempt(target, environment):
        return None
    text = environment[name]
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "http":
        raise SiteError(
            f"The variable {name} does not hold an address of the form http://host:port.",
            remedy=f"Correct it, or take it away: unset {name}",
            code="PROXY_VARIABLE",
        )
    user = unquote(parts.username or "")
    credentials = f"{user}:{unquote(parts.password or '')}" if user else ""
    return Proxy(host=host, port=port, variable=name, credentials=credentials)


def _exempt(target: Address, environment: Mapping[str, str]) -> bool:
    listed = next((environment[name] for name in EXEMPTION_VARIABLES if environment.get(name)), "")
    for entry in (part.strip().lower() for part in listed.split(",")):
        if entry and (target.host.endswith(entry) or _within(target.host, entry)):
            return True
    return False


def _within(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _ask(connection: socket.socket, target: Address, credentials: str) -> tuple[int, str]:
    """Send CONNECT; the answer's status and reason, 0 where it is no HTTP."""
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if credentials:
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials.encode()).decode()}")
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < _LONGEST_ANSWER:
        block = connection.recv(1)  # not one byte more: what follows belongs to the tunnel
        if not block:
            break
        answer += block
    first, _, _ = answer.partition(b"\r\n")
    words = first.decode("latin-1").split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdecimal():
        return 0, f"it said {first[:60]!r}"
    return int(words[1]), words[2].strip()[:100] if len(words) > 2 else ""


def connect(target: Address, timeout_s: float) -> socket.socket:
    """A connection to `target` by the way that gRPC takes.

    Raises:
        SiteError: the proxy refuses, or its variable is wrong.
        Unreachable: the proxy itself is not reached.
        OSError: the target is not reached on the direct way.
    """
    proxy = proxy_for(target)
    if proxy is None:
        return connect_directly(target, timeout_s)
    try:
        return proxy.connect(target, timeout_s)
    except OSError as error:
        raise Unreachable(
            f"The proxy {proxy.address} ({proxy.variable}) cannot be reached: {error.strerror or error}.",
            remedy=f"Check the variable {proxy.variable} and that the proxy runs.",
            code="PROXY_UNREACHABLE",
        ) from error
