"""Where a server listens: `host:port`, as people write it in files and invitations."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from hanse.errors import OperatorError

_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
_PORT = re.compile(r"[0-9]{1,5}")
_LONGEST = 320

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Address:
    """A host (DNS name in lower case, or IP address) and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host:port`; an IPv6 address stands in brackets.

        Raises:
            OperatorError: it is not of that form.
        """
        host, colon, port = text.strip().rpartition(":") if len(text) <= _LONGEST else ("", "", "")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""  # an IPv6 address without brackets: the port would be a guess
        if not colon or not host or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
            raise OperatorError(
                f"{text[:80]!r} is not an address.",
                remedy="Write it as host:port, for example federation.example.org:7443 or [2001:db8::1]:7443.",
                code="INVALID_ADDRESS",
            )
        return cls(check_host(host), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_host(host: str) -> str:
    """The host in the one form that certificates and comparisons use: lower case, no final dot.

    Raises:
        OperatorError: it is neither a DNS name nor an IP address.
    """
    if (address := ip_address(host)) is not None:
        return str(address)
    name = host.lower().removesuffix(".")
    if not _DNS_NAME.fullmatch(name) or name.rpartition(".")[2].isdigit():
        raise OperatorError(
            f"{host[:80]!r} is neither a host name nor an IP address.",
            remedy="Write for example federation.example.org, 192.0.2.7 or 2001:db8::1.",
            code="INVALID_ADDRESS",
        )
    return name


def ip_address(host: str) -> IPAddress | None:
    """The IP address that `host` writes, or None for a name. Zones (`fe80::1%eth0`) mean nothing elsewhere."""
    if "%" in host:
        return None
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
