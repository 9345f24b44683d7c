"""X.509 by the piece: what goes into the federation's certificates, and what is checked of foreign ones."""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from hanse.errors import OperatorError, SiteError, Unauthenticated
from hanse.security.addresses import check_host, ip_address
from hanse.security.identity import CERTIFICATE_FAULTS, Identity, certificate_identity
from hanse.security.keys import KeyPair, key_to_pem, spki_sha256

CURVES = (ec.SECP256R1, ec.SECP384R1)

_LARGEST_REQUEST = 16 * 1024


def certificate_builder(
    *,
    subject: str,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    """What every certificate has; the subject is a common name for people."""
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())  # 159 random bits
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )


def key_usage(*, authority: bool) -> x509.KeyUsage:
    """Sign certificates, or sign handshakes: never both."""
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def general_name(host: str) -> x509.GeneralName:
    """A host as a subject alternative name.

    Raises:
        OperatorError: it is neither a DNS name nor an IP address.
    """
    host = check_host(host)
    address = ip_address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def request_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a PKCS#10 request in PEM, once its own signature is verified.

    Raises:
        SiteError: it is too long, no request, of another key type than EC P-256 or P-384, or its signature is wrong.
    """
    fault = "is no certificate request in PEM"
    if len(request) > _LARGEST_REQUEST:
        fault = f"is longer than {_LARGEST_REQUEST} bytes"
    else:
        try:
            parsed = x509.load_pem_x509_csr(request)
            key = parsed.public_key()
            if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
                fault = "is for a key that is neither EC P-256 nor EC P-384"
            elif parsed.is_signature_valid:
                return key
            else:
                fault = "is not signed by its own key"
        except CERTIFICATE_FAULTS:
            pass
    raise SiteError(
        f"The certificate request {fault}.",
        remedy="Let `hanse-agent join` make the key and the request.",
        code="INVALID_REQUEST",
    )


def check_authority(certificate: x509.Certificate) -> None:
    """Check that a certificate is a root: self-signed and allowed to certify others.

    Raises:
        ValueError: it is not (or another of `CERTIFICATE_FAULTS`, for one that breaks X.509).
    """
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    if not constraints.ca:
        raise ValueError("not a certificate authority")
    require_issued_by(certificate, certificate)


def require_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Check that `authority` signed `certificate`.

    Raises:
        ValueError: it did not (or another of `CERTIFICATE_FAULTS`).
    """
    try:
        certificate.verify_directly_issued_by(authority)
    except InvalidSignature as error:
        raise ValueError("signed by another authority") from error


def accept_certificate(
    certificate_pem: bytes, key: ec.EllipticCurvePrivateKey, *, authority_pem: bytes, identity: Identity
) -> KeyPair:
    """Join a certificate that the coordinator sent to the key that was made here.

    Raises:
        OperatorError: the certificate is unreadable, for another key or identity, or of another authority.
    """
    fault = ""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        require_issued_by(certificate, x509.load_pem_x509_certificate(authority_pem))
        if spki_sha256(certificate) != spki_sha256(key.public_key()):
            fault = "is for another key"
        elif (given := certificate_identity(certificate).identity) != identity:
            fault = f"is for {given}"
    except (*CERTIFICATE_FAULTS, Unauthenticated) as error:
        fault = f"cannot be used ({error})"
    if fault:
        raise OperatorError(
            f"The certificate that came for {identity} {fault}.",
            remedy="Invite the node again, and see that no other machine joins under its name.",
            code="CERTIFICATE_UNUSABLE",
        )
    return KeyPair(certificate_pem=certificate_pem, key_pem=key_to_pem(key))
