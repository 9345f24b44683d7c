"""The federation's certificate authority: one key that says who belongs.

There is one authority for the life of a federation, and adding a node touches no other. The authority never
sees a node's private key: nodes hand in a request, and of that request only the public key is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hanse.errors import Conflict, OperatorError
from hanse.security.addresses import check_host
from hanse.security.certificates import (
    CURVES,
    certificate_builder,
    check_authority,
    general_name,
    key_usage,
    request_key,
)
from hanse.security.files import PUBLIC_FILE, write_atomically
from hanse.security.identity import CERTIFICATE_FAULTS, Identity, IdentityKind
from hanse.security.keys import KeyPair, key_to_pem, new_key, read_file, spki_sha256

CERTIFICATE_FILE = "authority.crt"
KEY_FILE = "authority.key"

AUTHORITY_LIFETIME = timedelta(days=3653)
SERVICE_LIFETIME = timedelta(days=90)
NODE_LIFETIME = timedelta(days=7)

# Certificates begin before they are made, so that a peer whose clock is behind accepts them. Those of nodes are
# judged by the coordinator, whose own clock dated them. Those of servers, and the authority itself, are judged
# by machines at sites, where a clock that is an hour off must not look like a broken federation.
BACKDATING = timedelta(minutes=5)
SERVICE_BACKDATING = timedelta(days=1)

_SMALLEST_RSA = 2048

AuthorityKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def internal_name(service: str) -> str:
    """The DNS name that a service's certificate always carries, whatever its address: `<service>.hanse.internal`.

    A client that expects this name (`channel_options(server_name=…)`) is not troubled by a new load balancer
    whose name is missing in the certificate.
    """
    return f"{service}.hanse.internal"


class Authority:
    """A root certificate with its private key; issues certificates for nodes, services and invitations."""

    def __init__(self, certificate: x509.Certificate, key: AuthorityKey) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        name: str = "Hanse authority",
        lifetime: timedelta = AUTHORITY_LIFETIME,
        now: datetime | None = None,
    ) -> Self:
        """Make an authority in `folder`: `authority.key` (mode 0600) and `authority.crt`.

        A creation that was interrupted after the key is finished with that key.

        Raises:
            Conflict: the folder holds an authority; it is never overwritten, as every node trusts it.
            OperatorError: a key without a certificate lies there and cannot be read.
            PlatformError: the folder cannot be written.
        """
        certificate_path, key_path = folder / CERTIFICATE_FILE, folder / KEY_FILE
        if certificate_path.exists():
            raise Conflict(
                f"{folder} holds an authority already.",
                remedy="Use it, or choose an empty folder: a new authority means that every node joins again.",
                code="AUTHORITY_EXISTS",
            )
        if not key_path.exists():
            write_atomically(key_path, key_to_pem(new_key()), overwrite=False)
        key = _load_key(read_file(key_path, blame=OperatorError), key_path)
        certificate = _self_signed(key, name, lifetime, now or datetime.now(UTC))
        write_atomically(
            certificate_path,
            certificate.public_bytes(serialization.Encoding.PEM),
            mode=PUBLIC_FILE,
            overwrite=False,
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The authority that `create` left in `folder`.

        Raises:
            OperatorError: as `from_files`.
        """
        return cls.from_files(folder / CERTIFICATE_FILE, folder / KEY_FILE)

    @classmethod
    def from_files(cls, certificate: Path, key: Path) -> Self:
        """An authority that somebody else keeps, for example the `tls.crt` and `tls.key` of cert-manager.

        Raises:
            OperatorError: a file is missing or unreadable, the key is not the certificate's, it is neither EC nor
                RSA of 2048 bits, or the certificate is not a self-signed authority.
        """
        private = _load_key(read_file(key, blame=OperatorError), key)
        data = read_file(certificate, blame=OperatorError)
        try:
            root = x509.load_pem_x509_certificate(data)
            check_authority(root)
            matches = spki_sha256(root) == spki_sha256(private.public_key())
        except CERTIFICATE_FAULTS as error:
            raise OperatorError(
                f"{certificate} does not hold a self-signed certificate authority.",
                remedy="Make one with `hanse authority init`, or give a root, not an intermediate.",
                code="AUTHORITY_UNUSABLE",
            ) from error
        if not matches:
            raise OperatorError(
                f"The private key in {key} does not belong to the authority in {certificate}.",
                remedy="Put the pair that was made together in place.",
                code="KEY_MISMATCH",
            )
        return cls(root, private)

    @property
    def certificate_pem(self) -> bytes:
        """The root certificate: public, and the only thing that clients trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def sha256(self) -> bytes:
        """SHA-256 (32 bytes) of the authority's SubjectPublicKeyInfo, as it stands in invitations."""
        return spki_sha256(self.certificate)

    def issue(
        self,
        identity: Identity,
        *,
        hosts: Iterable[str] = (),
        lifetime: timedelta | None = None,
        now: datetime | None = None,
    ) -> KeyPair:
        """Make a key and a certificate for it: for services and for the bootstrap half of an invitation.

        A service may serve and call with the same pair. It always answers to `internal_name(name)`, and to the
        DNS names and IP addresses in `hosts`. Nodes and bootstraps can only call.

        Raises:
            OperatorError: a host is invalid, hosts are given for what is no service, or `lifetime` is not positive.
        """
        key = new_key()
        certificate = self._certify(key.public_key(), identity, tuple(hosts), lifetime, now)
        return KeyPair(certificate_pem=certificate.public_bytes(serialization.Encoding.PEM), key_pem=key_to_pem(key))

    def sign_request(
        self,
        request: bytes,
        identity: Identity,
        *,
        lifetime: timedelta | None = None,
        now: datetime | None = None,
    ) -> bytes:
        """Certify the public key of a PKCS#10 request for `identity`; returns the certificate, PEM.

        The request proves that its sender holds the key. Its subject and wishes are ignored: who the sender is,
        the caller has established.

        Raises:
            SiteError: as `request_key`.
            OperatorError: `lifetime` is not positive.
        """
        certificate = self._certify(request_key(request), identity, (), lifetime, now)
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _certify(
        self,
        public_key: ec.EllipticCurvePublicKey,
        identity: Identity,
        hosts: tuple[str, ...],
        lifetime: timedelta | None,
        now: datetime | None,
    ) -> x509.Certificate:
        serves = identity.kind is IdentityKind.SERVICE
        now = now or datetime.now(UTC)
        if lifetime is None:
            lifetime = SERVICE_LIFETIME if serves else NODE_LIFETIME
        if lifetime <= timedelta(0):
            raise OperatorError(
                f"A certificate for {identity} cannot live for {lifetime}.",
                remedy="Give a duration above zero.",
                code="INVALID_LIFETIME",
            )
        if hosts and not serves:
            raise OperatorError(
                f"The {identity} calls and never serves, so that its certificate names no hosts.",
                remedy="Leave the hosts out.",
                code="INVALID_HOST",
            )
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if serves:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            served = dict.fromkeys(map(check_host, (internal_name(identity.name), *hosts)))
            names += map(general_name, served)
        builder = certificate_builder(
            subject=identity.name,
            issuer=self.certificate.subject,
            public_key=public_key,
            not_before=now - (SERVICE_BACKDATING if serves else BACKDATING),
            not_after=min(now + lifetime, self.certificate.not_valid_after_utc),
        )
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(authority_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _load_key(data: bytes, path: Path) -> AuthorityKey:
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except CERTIFICATE_FAULTS:
        key = None
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, CURVES):
        return key
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= _SMALLEST_RSA:
        return key
    raise OperatorError(
        f"{path} does not hold a private key for an authority.",
        remedy=f"It must be PEM without a password, EC P-256 or P-384, or RSA of at least {_SMALLEST_RSA} bits.",
        code="KEY_UNUSABLE",
    )


def _self_signed(key: AuthorityKey, name: str, lifetime: timedelta, now: datetime) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = certificate_builder(
        subject=name,
        issuer=subject,
        public_key=key.public_key(),
        not_before=now - SERVICE_BACKDATING,
        not_after=now + lifetime,
    )
    subject_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(authority=True), critical=True)
        .add_extension(subject_id, critical=False)
        .sign(key, hashes.SHA256())
    )
