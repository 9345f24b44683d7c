"""Who a certificate speaks for.

Every certificate of a federation carries exactly one URI: `hanse://node/<name>`, `hanse://service/<name>` or
`hanse://bootstrap/<invitation id>`. Programs read that URI and nothing else; the common name is for people.
TLS has proved by then that the certificate descends from the authority and that the peer holds its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from hanse.errors import OperatorError, Unauthenticated

# A label as in DNS: it fits file names, metric labels, URIs and the 64 characters of a common name.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_URI = re.compile(r"hanse://([a-z]+)/([a-z0-9-]+)")

# Everything that parsing foreign certificates is known to raise.
CERTIFICATE_FAULTS = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class IdentityKind(StrEnum):
    """What a certificate is for."""

    NODE = "node"
    SERVICE = "service"
    BOOTSTRAP = "bootstrap"


def check_name(name: str, *, what: str = "node") -> str:
    """Return `name` if it may name a node (or `what`): 1 to 63 of a-z, 0-9 and inner hyphens.

    Raises:
        OperatorError: it may not; the sentence shows the name.
    """
    if not _NAME.fullmatch(name):
        raise OperatorError(
            f"{name[:80]!r} cannot name a {what}.",
            remedy="Use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends.",
            code="INVALID_NAME",
        )
    return name


@dataclass(frozen=True)
class Identity:
    """Kind and name: what the authority certifies.

    Raises:
        OperatorError: the name is not a valid one.
    """

    kind: IdentityKind
    name: str

    def __post_init__(self) -> None:
        check_name(self.name, what=self.kind.value)

    @classmethod
    def node(cls, name: str) -> Self:
        """A node at a site."""
        return cls(IdentityKind.NODE, name)

    @classmethod
    def service(cls, name: str) -> Self:
        """A program of the federation: coordinator, aggregator, dashboard."""
        return cls(IdentityKind.SERVICE, name)

    @classmethod
    def bootstrap(cls, invitation_id: str) -> Self:
        """Whoever holds an invitation; good for `Enroll` alone."""
        return cls(IdentityKind.BOOTSTRAP, invitation_id)

    @property
    def uri(self) -> str:
        """How the identity stands in the certificate."""
        return f"hanse://{self.kind.value}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, kw_only=True)
class PeerIdentity:
    """What a certificate says about its holder."""

    kind: IdentityKind
    name: str
    serial: str
    """The certificate's serial number, lower-case hexadecimal: the key for revocation."""
    not_before: datetime
    not_after: datetime
    """The instant from which the certificate is worthless, UTC."""

    @property
    def identity(self) -> Identity:
        """Kind and name alone."""
        return Identity(self.kind, self.name)

    def require_current(self, now: datetime | None = None) -> None:
        """Check the validity again: an open channel outlives the certificate that opened it.

        Raises:
            Unauthenticated: `now` is before `not_before` or not before `not_after`.
        """
        now = now or datetime.now(UTC)
        if now >= self.not_after:
            raise Unauthenticated(
                f"The certificate of {self.identity} expired at {self.not_after:%Y-%m-%d %H:%M:%S} UTC.",
                remedy=f"Ask the operator for `hanse node invite {self.name} --again` and join with it."
                if self.kind is IdentityKind.NODE
                else "Get a new certificate from the authority.",
                code="CERTIFICATE_EXPIRED",
            )
        if now < self.not_before:
            raise Unauthenticated(
                f"The certificate of {self.identity} is not valid before {self.not_before:%Y-%m-%d %H:%M:%S} UTC.",
                remedy="Check the clocks of both machines.",
                code="CERTIFICATE_NOT_YET_VALID",
            )

    def __str__(self) -> str:
        return f"{self.identity}, serial {self.serial}"


def certificate_identity(certificate: x509.Certificate) -> PeerIdentity:
    """Read the identity from a certificate.

    Raises:
        Unauthenticated: it carries no identity of Hanse, or more than one, or breaks X.509.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        match = _URI.fullmatch(uris[0]) if len(uris) == 1 else None
        if match is None or certificate.serial_number <= 0:
            raise ValueError("not exactly one hanse:// URI, or no serial number")
        identity = Identity(IdentityKind(match[1]), match[2])
        return PeerIdentity(
            kind=identity.kind,
            name=identity.name,
            serial=f"{certificate.serial_number:x}",
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
        )
    except (*CERTIFICATE_FAULTS, OperatorError) as error:
        raise Unauthenticated(
            "The peer's certificate carries no identity of Hanse.",
            remedy="Use a certificate that the federation's authority issued.",
            code="NO_IDENTITY",
        ) from error


@lru_cache(maxsize=8192)
def parse_identity(data: bytes) -> PeerIdentity:
    """Read the identity from a certificate in PEM or DER. The answer is remembered: servers ask on every call.

    Raises:
        Unauthenticated: the bytes are no certificate, or one without an identity of Hanse.
    """
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            certificate = x509.load_pem_x509_certificate(data)
        else:
            certificate = x509.load_der_x509_certificate(data)
    except CERTIFICATE_FAULTS as error:
        raise Unauthenticated(
            "The peer's certificate cannot be read.",
            remedy="Use a certificate that the federation's authority issued.",
            code="NO_IDENTITY",
        ) from error
    return certificate_identity(certificate)


def peer_identity(auth_context: Mapping[str, Iterable[bytes]]) -> PeerIdentity:
    """The identity of a gRPC call's peer, from `context.auth_context()`.

    This reads; it does not judge. The caller still checks kind, expiry (`require_current`) and revocation.

    Raises:
        Unauthenticated: the peer showed no certificate, or one without an identity of Hanse.
    """
    certificates = list(auth_context.get("x509_pem_cert", ()))
    if len(certificates) != 1:
        raise Unauthenticated(
            "The peer showed no client certificate.",
            remedy="Connect with a certificate of the federation's authority.",
            code="NO_CERTIFICATE",
        )
    return parse_identity(certificates[0])
