"""Why a connection does not come about, in words.

gRPC reports every fault before the first call as one opaque "failed to connect". When it does, or when somebody
asks `doctor`, this module opens a plain TLS connection, looks at the server's certificate without trusting it,
and names the fault: DNS, port, clock, a foreign certificate (TLS inspection), a missing name.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509

from hanse.errors import OperatorError, SiteError, Unreachable
from hanse.security.addresses import Address
from hanse.security.certificates import require_issued_by
from hanse.security.identity import CERTIFICATE_FAULTS, PeerIdentity, certificate_identity

Connect = Callable[[Address, float], socket.socket]
"""Makes a connection to an address within so many seconds."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a server shows before anything is trusted."""

    certificate: x509.Certificate
    protocol: str
    """What was agreed on by ALPN: `h2`, or empty."""


def connect_directly(address: Address, timeout_s: float) -> socket.socket:
    """A plain TCP connection, past every proxy.

    Raises:
        OSError: it does not come about.
    """
    return socket.create_connection((address.host, address.port), timeout=timeout_s)


def check_server(
    address: Address,
    *,
    authority_pem: bytes,
    server_name: str = "",
    timeout_s: float = 10.0,
    now: datetime | None = None,
    connect: Connect = connect_directly,
) -> PeerIdentity:
    """Check that the server at `address` would be trusted; returns who it is and how long its certificate lasts.

    Nothing is sent but the handshake. The way is direct unless `connect` knows another.

    Raises:
        Unreachable: no such host, nobody listens, no answer in time, or the port speaks no TLS.
        SiteError: the certificate is of another authority, or not yet valid by this machine's clock.
        OperatorError: the certificate has expired or does not carry the expected name.
    """
    expected = server_name or address.host
    certificate = look(address, expected, timeout_s, connect).certificate
    require_authority(address, certificate, authority_pem)
    require_validity(address, certificate, now or datetime.now(UTC))
    require_name(address, certificate, expected)
    return certificate_identity(certificate)


def look(address: Address, server_name: str, timeout_s: float = 10.0, connect: Connect = connect_directly) -> Shown:
    """What the server at `address` shows, unjudged.

    Raises:
        Unreachable: no such host (code `DNS`), nobody listens (`CONNECTION`), no answer in time (`TIMEOUT`), or the
            port speaks no TLS (`NO_TLS`).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only looked at here; judged against the authority by the caller
    context.set_alpn_protocols(["h2"])
    try:
        with (
            connect(address, timeout_s) as connection,
            context.wrap_socket(connection, server_hostname=server_name) as channel,
        ):
            shown, protocol = channel.getpeercert(binary_form=True), channel.selected_alpn_protocol()
        return Shown(certificate=x509.load_der_x509_certificate(shown or b""), protocol=protocol or "")
    except socket.gaierror as error:
        raise _unreachable(
            f"The name {address.host} is unknown to DNS here.", "Check the address and the resolver.", "DNS"
        ) from error
    except TimeoutError as error:
        raise _unreachable(
            f"{address} does not answer within {timeout_s:g} s.",
            f"Let the firewall allow outbound TCP to port {address.port}.",
            "TIMEOUT",
        ) from error
    except (ssl.SSLError, ValueError) as error:
        raise _unreachable(
            f"{address} answers, but not with TLS.",
            "Check the port; a load balancer in front must pass TLS through.",
            "NO_TLS",
        ) from error
    except OSError as error:
        raise _unreachable(
            f"{address} cannot be reached: {error.strerror or error}.",
            "Check that the coordinator runs there and that no firewall is between.",
            "CONNECTION",
        ) from error


def require_authority(address: Address, certificate: x509.Certificate, authority_pem: bytes) -> None:
    """Check that the authority issued the certificate.

    Raises:
        SiteError: another did; the sentence names it.
    """
    try:
        require_issued_by(certificate, x509.load_pem_x509_certificate(authority_pem))
    except CERTIFICATE_FAULTS as error:
        raise foreign(address, certificate) from error


def foreign(address: Address, certificate: x509.Certificate) -> SiteError:
    """The error that somebody else than the federation issued what a server shows."""
    return SiteError(
        f"{address} shows a certificate that this federation's authority did not issue "
        f"(issuer: {certificate.issuer.rfc4514_string()[:200]!r}).",
        remedy="If that issuer is your own network's TLS inspection, exempt this address from it; "
        "else check the address and ask the operator for a new invitation.",
        code="SERVER_FOREIGN",
    )


def require_name(address: Address, certificate: x509.Certificate, expected: str) -> None:
    """Check that the certificate carries a name.

    Raises:
        OperatorError: it does not; the sentence says which it carries.
    """
    names = _host_names(certificate)
    if expected not in names:
        raise OperatorError(
            f"The certificate of {address} does not carry the name {expected}, only {', '.join(names) or 'none'}.",
            remedy="Add the name to the coordinator's hosts, or invite with a server name that it carries.",
            code="SERVER_NAME_MISSING",
        )


def require_validity(address: Address, certificate: x509.Certificate, now: datetime) -> None:
    """Check that the certificate is good at an instant.

    Raises:
        SiteError: it begins later: this machine's clock is behind.
        OperatorError: it has expired.
    """
    clock = f"this machine's clock says {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        raise SiteError(
            f"The certificate of {address} begins at {begin:%Y-%m-%d %H:%M} UTC, and {clock}.",
            remedy="Set this machine's clock (NTP).",
            code="CLOCK",
        )
    if now >= end:
        raise OperatorError(
            f"The certificate of {address} expired at {end:%Y-%m-%d %H:%M} UTC, and {clock}.",
            remedy="If that clock is right, renew the server's certificate; else set the clock.",
            code="SERVER_CERTIFICATE_EXPIRED",
        )


def _host_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except CERTIFICATE_FAULTS:
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    ]


def _unreachable(sentence: str, remedy: str, code: str) -> Unreachable:
    return Unreachable(sentence, remedy=remedy, code=code)
