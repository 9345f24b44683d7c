"""The way to the coordinator, step by step: each check says what the one before could not."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from hanse.errors import HanseError, SiteError, Unreachable
from hanse.security import Address, IdentityKind, KeyPair, internal_name
from hanse.security.identity import CERTIFICATE_FAULTS, certificate_identity
from hanse.security.probe import Shown, foreign, look, require_authority, require_name
from hanse_agent.doctor.findings import Finding, failed, failure, ok, skipped
from hanse_agent.proxies import Proxy, connect, proxy_for

PATIENCE_S = 10.0
LONGEST_IDLE_S = 100.0
"""A coordinator gives a connection two minutes to begin with TLS."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What is known of the coordinator: nothing before an invitation, all with one or after joining."""

    authority_pem: bytes = b""
    server_name: str = field(default_factory=lambda: internal_name("coordinator"))
    pair: KeyPair | None = field(default=None, repr=False)


class Blocked(Exception):
    """The way ends here; what lies behind cannot be examined."""


def examine_way(address: Address, trust: Trust) -> Iterator[Finding | Shown]:
    """DNS, proxy, TCP, TLS, interception and HTTP/2's agreement, and last what the server showed.

    Raises:
        Blocked: a step failed; its finding came before.
    """
    try:
        proxy = proxy_for(address)
    except SiteError as error:
        yield failure("proxy", error, "A variable of the environment names the site's proxy.")
        raise Blocked from error
    yield from _dns(address, proxy)
    yield from _tcp(address, proxy)
    shown = yield from _tls(address, trust)
    yield _unopened(address, trust, shown)
    yield _agreed(address, shown)
    yield shown


def _dns(address: Address, proxy: Proxy | None) -> Iterator[Finding]:
    host = proxy.host if proxy else address.host
    try:
        found = sorted({str(item[4][0]) for item in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except (socket.gaierror, UnicodeError) as error:
        yield failed(
            "dns",
            f"The name {host} is unknown here.",
            cause=f"This machine's resolver answers: {error}.",
            remedy="Check the spelling; have your network resolve the name, or use the proxy (https_proxy) that does.",
        )
        raise Blocked from error
    whose = f"the proxy {host}" if proxy else host
    yield ok("dns", f"{whose} is {', '.join(found[:4])}", addresses=found)


def _tcp(address: Address, proxy: Proxy | None) -> Iterator[Finding]:
    begun = time.monotonic()
    try:
        connect(address, PATIENCE_S).close()
    except SiteError as error:
        yield ok("tcp", f"the proxy {proxy.address if proxy else ''} answers")
        yield failure("proxy", error, "All traffic from this machine goes through a proxy, and that one says no.")
        raise Blocked from error
    except Unreachable as error:
        yield failure("proxy", error, "A variable names a proxy, and nobody answers there.")
        raise Blocked from error
    except OSError as error:
        silent = isinstance(error, TimeoutError)
        yield failed(
            "tcp",
            f"No connection to {address}: {'no answer' if silent else error.strerror or error}.",
            cause="A firewall drops packets to that port, or nothing runs there."
            if silent
            else "Nobody listens there, or a firewall refuses.",
            remedy=f"Let outbound TCP to {address.host}, port {address.port}, pass; ask the operator whether the "
            "address is right. A site that has to use a proxy sets https_proxy.",
        )
        raise Blocked from error
    took = (time.monotonic() - begun) * 1000
    if proxy is None:
        yield ok("proxy", "none is set: connections are direct")
        yield ok("tcp", f"{address} answers in {took:.0f} ms", ms=round(took, 1))
    else:
        yield ok("proxy", f"{proxy.address} ({proxy.variable}) lets through to {address}", variable=proxy.variable)
        yield ok("tcp", f"{address} answers through the proxy in {took:.0f} ms", ms=round(took, 1))


def _tls(address: Address, trust: Trust) -> Generator[Finding, None, Shown]:
    """The finding; what was shown is returned."""
    try:
        shown = look(address, trust.server_name, PATIENCE_S, connect)
    except HanseError as error:
        yield failure("tls", error, "Something answers on that port, and it does not speak TLS to us.")
        raise Blocked from error
    yield ok("tls", f"{address} shows a certificate of {_names(shown)}", issuer=_issuer(shown))
    return shown


def _unopened(address: Address, trust: Trust, shown: Shown) -> Finding:
    cause = (
        "A device on the way opens TLS and shows a certificate of its own, so that it could read and change "
        "everything. Hanse does not go on."
    )
    remedy = f"Have your network's TLS inspection exempt {address.host}, port {address.port}."
    try:
        if trust.authority_pem:
            require_authority(address, shown.certificate, trust.authority_pem)
        elif not _is_coordinator(shown):
            raise foreign(address, shown.certificate)
    except SiteError as error:
        return failed(
            "interception",
            f"{address} shows a certificate of {_issuer(shown)}, not of the federation.",
            cause=cause,
            remedy=remedy,
            issuer=_issuer(shown),
            code=error.code,
        )
    if not trust.authority_pem:
        return ok(
            "interception",
            f"a coordinator of Hanse answers (issuer {_issuer(shown)}); whose it is, the invitation will prove",
            issuer=_issuer(shown),
        )
    try:
        require_name(address, shown.certificate, trust.server_name)
    except HanseError as error:
        return failure("interception", error, "The coordinator's certificate was made for other names.")
    return ok("interception", "the certificate is of the federation's own authority", issuer=_issuer(shown))


def _agreed(address: Address, shown: Shown) -> Finding:
    if shown.protocol == "h2":
        return ok("http2", f"{address} agrees to HTTP/2")
    return failed(
        "http2",
        f"{address} does not agree to HTTP/2.",
        cause="A load balancer or proxy on the way ends TLS and speaks HTTP/1.1 alone.",
        remedy="Let it pass TLS through untouched (layer 4), or speak HTTP/2 to both sides.",
    )


def hold_open(address: Address, trust: Trust, seconds: float) -> Finding:
    """A connection on which nothing is said for a while, and which must then still carry TLS. For want of a
    certificate it says nothing at all; the agent's own says something at least every 20 seconds."""
    begun = time.monotonic()
    try:
        connection = connect(address, PATIENCE_S)
    except (HanseError, OSError) as error:
        return skipped("idle", f"no connection to hold: {error}")
    with connection:
        readable, _, _ = select.select([connection], [], [], seconds)
        held = time.monotonic() - begun
        if readable:
            return cut(address, held)
        try:
            look(address, trust.server_name, PATIENCE_S, lambda _address, _timeout: connection.dup())
        except (HanseError, OSError):
            return cut(address, held)
    return ok("idle", f"a silent connection was still good after {held:.0f} s", seconds=round(held, 1))


def cut(address: Address, held: float) -> Finding:
    """The finding that somebody ended an idle connection."""
    return failed(
        "idle",
        f"An idle connection to {address} was cut after {held:.0f} s.",
        cause="A firewall, proxy or load balancer on the way ends connections on which nothing is said for a while. An "
        "agent says something every 20 s.",
        remedy=f"Raise that time for {address.host}, port {address.port}, above 60 s.",
        seconds=round(held, 1),
    )


def _is_coordinator(shown: Shown) -> bool:
    try:
        identity = certificate_identity(shown.certificate).identity
    except HanseError:
        return False
    return (identity.kind, identity.name) == (IdentityKind.SERVICE, "coordinator")


def _issuer(shown: Shown) -> str:
    try:
        return shown.certificate.issuer.rfc4514_string()[:200] or "nobody"
    except CERTIFICATE_FAULTS:
        return "somebody whose name cannot be read"


def _names(shown: Shown) -> str:
    try:
        return shown.certificate.subject.rfc4514_string()[:200] or "nobody"
    except CERTIFICATE_FAULTS:
        return "somebody whose name cannot be read"
