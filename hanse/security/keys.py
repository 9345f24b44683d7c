"""Private keys: made here, kept in files of mode 0600, never sent anywhere.

Keys are EC P-256: small, fast, and understood by every TLS stack and by hardware at sites.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.x509.oid import NameOID

from hanse.errors import Conflict, HanseError, OperatorError, SiteError
from hanse.security.files import write_atomically
from hanse.security.identity import CERTIFICATE_FAULTS, PeerIdentity, certificate_identity

_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aiou"
_FINGERPRINT_WORDS = 6
_LARGEST_FILE = 256 * 1024
_KEY_FAULTS = (ValueError, TypeError, UnsupportedAlgorithm)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh EC P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: PrivateKeyTypes) -> bytes:
    """PKCS#8 PEM without a password; for a file of mode 0600 or a TLS library, nothing else."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_or_create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The node's key at `path`, made on the first call.

    Whoever comes again, after a crash or while an approval is pending, finds the same key, so the fingerprint
    that a person compares stays the same. Two processes at once agree on one key.

    Raises:
        SiteError: the file is no EC private key.
        PlatformError: the folder cannot be written.
    """
    if not path.exists():
        with suppress(Conflict):  # another process made it in the meantime: theirs is the key
            write_atomically(path, key_to_pem(new_key()), overwrite=False)
    data = read_file(path, blame=SiteError)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except _KEY_FAULTS:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SiteError(
            f"{path} does not hold an EC private key.",
            remedy="Restore it from a backup, or move it away and join again with a new invitation.",
            code="KEY_UNUSABLE",
        )
    return key


def signing_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """A certificate request (PKCS#10, PEM) for the public half of `key`; `name` is a hint for people."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def spki_sha256(holder: x509.Certificate | x509.CertificateSigningRequest | PublicKeyTypes) -> bytes:
    """SHA-256 (32 bytes) of a public key's SubjectPublicKeyInfo in DER."""
    if isinstance(holder, x509.Certificate | x509.CertificateSigningRequest):
        holder = holder.public_key()
    spki = holder.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(spki)
    return digest.finalize()


def fingerprint_words(holder: x509.Certificate | x509.CertificateSigningRequest | PublicKeyTypes) -> str:
    """Six pronounceable words that two people can compare over the telephone.

    Each word is a proquint (Wilkerson, arXiv:0901.4016): 16 bits as consonant-vowel-consonant-vowel-consonant.
    Six carry the first 96 bits of the key's `spki_sha256`; finding another key with the same words takes
    about 2^96 attempts.
    """
    digest = spki_sha256(holder)
    words = (int.from_bytes(digest[2 * i : 2 * i + 2]) for i in range(_FINGERPRINT_WORDS))
    return "-".join(_proquint(word) for word in words)


def _proquint(word: int) -> str:
    return (
        _CONSONANTS[word >> 12 & 15]
        + _VOWELS[word >> 10 & 3]
        + _CONSONANTS[word >> 6 & 15]
        + _VOWELS[word >> 4 & 3]
        + _CONSONANTS[word & 15]
    )


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A certificate (chain) with its private key, both PEM: what one end of TLS shows."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @property
    def certificate(self) -> x509.Certificate:
        """The holder's own certificate, the first of the chain."""
        return x509.load_pem_x509_certificate(self.certificate_pem)

    @property
    def peer(self) -> PeerIdentity:
        """Who it speaks for, its serial and its validity.

        Raises:
            Unauthenticated: the certificate carries no identity of Hanse.
        """
        return certificate_identity(self.certificate)

    def is_consistent(self) -> bool:
        """Whether the key is the certificate's.

        Raises:
            ValueError: one of them cannot be read (or another of `CERTIFICATE_FAULTS`).
        """
        private = serialization.load_pem_private_key(self.key_pem, password=None)
        return spki_sha256(private.public_key()) == spki_sha256(self.certificate)

    def save(self, path: Path) -> None:
        """Write key and certificate into one file of mode 0600: a renewal replaces both or neither.

        Raises:
            PlatformError: the file cannot be written; the old one is untouched.
        """
        write_atomically(path, self.key_pem.rstrip() + b"\n" + self.certificate_pem)

    @classmethod
    def load(cls, certificate: Path, key: Path | None = None, *, blame: type[HanseError] = OperatorError) -> Self:
        """Read a pair from one file (as `save` writes it) or from two (as Kubernetes mounts them).

        `blame` is the class of the error: `SiteError` for a node's files.

        Raises:
            HanseError: of class `blame`: a file is missing, unreadable, or the key is not the certificate's.
        """
        certificate_pem = read_file(certificate, blame=blame)
        key_pem = read_file(key, blame=blame) if key else certificate_pem
        try:
            private = serialization.load_pem_private_key(key_pem, password=None)
            chain = x509.load_pem_x509_certificates(certificate_pem)
            pair = cls(
                certificate_pem=b"".join(c.public_bytes(serialization.Encoding.PEM) for c in chain),
                key_pem=key_to_pem(private),
            )
            consistent = pair.is_consistent()
        except CERTIFICATE_FAULTS as error:
            raise blame(
                f"{certificate}{f' and {key}' if key else ''} do not hold a certificate and its private key.",
                remedy="Both must be PEM, without a password.",
                code="KEY_UNUSABLE",
            ) from error
        if not consistent:
            raise blame(
                f"The private key in {key or certificate} does not belong to the certificate in {certificate}.",
                remedy="Put the pair that was issued together in place.",
                code="KEY_MISMATCH",
            )
        return pair


def read_file(path: Path, *, blame: type[HanseError]) -> bytes:
    """The bytes of a small file.

    Raises:
        HanseError: of class `blame`: the file is missing, unreadable or far too large for keys.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise blame(
            f"{path} cannot be read: {error.strerror or error}.",
            remedy="Check the path and its permissions.",
            code="FILE_NOT_READ",
        ) from error
    if len(data) > _LARGEST_FILE:
        raise blame(
            f"{path} is larger than {_LARGEST_FILE} bytes and cannot be a key or certificate.",
            remedy="Check the path.",
            code="FILE_NOT_READ",
        )
    return data
