"""One string that lets one node in, once: `HNS1_<base32>_<checksum>`.

It carries where to connect, whom to trust, and a bootstrap certificate with its key that is good for `Enroll`
alone. The holder of the string can join under the node's name until it expires: treat it as a password, and hand
it over as a file or through standard input rather than on a command line.

Trust on first contact. The invitation names the SHA-256 of the authority's public key, and carries the root
certificate itself, which must have that hash. The agent gives this root to TLS as its only trust anchor: no
connection comes about, and no byte of a call is sent, unless the server descends from that authority. (The other
way, to fetch the root from an unverified server first and compare, needs a second connection and a chain that
Python's `ssl` does not show before 3.13, and proves no more.)

The text is the base32 of nine length-prefixed fields and a CRC-32 over that base32, both without regard to case
or white space, so that it survives mail programs. The checksum finds accidents. What makes a forgery useless is
that the coordinator accepts only a bootstrap certificate that its authority signed, and looks up in its ledger
whether that invitation is known, unused and not expired.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import struct
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NoReturn, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hanse.errors import OperatorError, SiteError
from hanse.security.addresses import Address, check_host
from hanse.security.authority import Authority, internal_name
from hanse.security.certificates import check_authority, require_issued_by
from hanse.security.files import read_secret
from hanse.security.identity import (
    CERTIFICATE_FAULTS,
    Identity,
    IdentityKind,
    certificate_identity,
    check_name,
)
from hanse.security.keys import KeyPair, key_to_pem, spki_sha256

PREFIX = "HNS1"
DEFAULT_LIFETIME = timedelta(hours=24)
LONGEST_LIFETIME = timedelta(days=7)
LONGEST_TEXT = 16 * 1024

# The bootstrap certificate outlives the invitation, so that one who comes late (or with a slow clock) gets through
# TLS and is told so by the coordinator, which knows better than any certificate what is expired or used.
GRACE = timedelta(days=7)

_FAMILY = "HNS"
_MOST_ADDRESSES = 8
_FIELDS = 9
_LENGTH = struct.Struct(">H")
_EXPIRES = struct.Struct(">Q")
_KEY_BYTES = 32
_CHECKSUM_DIGITS = 8


class InvalidInvitation(SiteError):
    """The text is not an invitation that can be used; the code says why."""

    default_code = "INVITATION_EDITED"


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """What an invitation says. Only `text()` and `key_pair` reveal the secret; `repr` and `describe` do not."""

    invitation_id: str
    node: str
    addresses: tuple[Address, ...]
    """Where the coordinator listens for nodes, in order of preference."""
    server_name: str
    """The name that the server's certificate must carry; empty: the host of the address in use."""
    expires_at: datetime
    authority: bytes = field(repr=False)
    """The root certificate, DER."""
    authority_sha256: bytes
    """SHA-256 of the root's SubjectPublicKeyInfo."""
    certificate: bytes = field(repr=False)
    """The bootstrap certificate, DER."""
    secret: bytes = field(repr=False)
    """The private value of the bootstrap key: 32 bytes, EC P-256."""

    @classmethod
    def create(
        cls,
        authority: Authority,
        *,
        node: str,
        addresses: tuple[Address, ...],
        invitation_id: str | None = None,
        server_name: str | None = None,
        lifetime: timedelta = DEFAULT_LIFETIME,
        now: datetime | None = None,
    ) -> Self:
        """Invite `node`.

        `invitation_id` defaults to a random one; `server_name` to the coordinator's internal name
        (`internal_name`), while an empty one means the host of the address in use.

        Raises:
            OperatorError: a name is invalid, there is no address or more than eight, or `lifetime` is not within
                zero and seven days.
        """
        if not 0 < len(addresses) <= _MOST_ADDRESSES:
            raise OperatorError(
                f"An invitation cannot carry {len(addresses)} addresses.",
                remedy=f"Give 1 to {_MOST_ADDRESSES} addresses at which nodes reach the coordinator.",
                code="INVALID_ADDRESS",
            )
        if not timedelta(0) < lifetime <= LONGEST_LIFETIME:
            raise OperatorError(
                f"An invitation cannot be valid for {lifetime}.",
                remedy=f"Choose up to {LONGEST_LIFETIME.days} days; invite again when it has run out.",
                code="INVALID_LIFETIME",
            )
        now = (now or datetime.now(UTC)).astimezone(UTC)
        invitation_id = invitation_id or secrets.token_hex(5)
        pair = authority.issue(Identity.bootstrap(invitation_id), lifetime=lifetime + GRACE, now=now)
        key = serialization.load_pem_private_key(pair.key_pem, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(
            invitation_id=invitation_id,
            node=check_name(node),
            addresses=addresses,
            server_name=internal_name("coordinator") if server_name is None else server_name,
            expires_at=(now + lifetime).replace(microsecond=0),
            authority=authority.certificate.public_bytes(serialization.Encoding.DER),
            authority_sha256=authority.sha256,
            certificate=pair.certificate.public_bytes(serialization.Encoding.DER),
            secret=key.private_numbers().private_value.to_bytes(_KEY_BYTES),
        )

    @property
    def authority_pem(self) -> bytes:
        """The root certificate, PEM: the only trust anchor for every connection of this node."""
        root = x509.load_der_x509_certificate(self.authority)
        return root.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pair(self) -> KeyPair:
        """The bootstrap certificate with its key, for the channel that calls `Enroll`."""
        certificate = x509.load_der_x509_certificate(self.certificate)
        return KeyPair(
            certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
            key_pem=key_to_pem(_private_key(self.secret)),
        )

    def describe(self) -> dict[str, object]:
        """All but the secret, ready for a table or JSON."""
        return {
            "id": self.invitation_id,
            "node": self.node,
            "addresses": [str(address) for address in self.addresses],
            "server_name": self.server_name,
            "expires_at": self.expires_at.isoformat(),
            "authority_sha256": self.authority_sha256.hex(),
        }

    def text(self) -> str:
        """The invitation as one string. It contains the secret."""
        fields = (
            self.invitation_id.encode(),
            self.node.encode(),
            ",".join(map(str, self.addresses)).encode(),
            self.server_name.encode(),
            _EXPIRES.pack(int(self.expires_at.timestamp())),
            self.authority_sha256,
            self.authority,
            self.certificate,
            self.secret,
        )
        payload = b"".join(_LENGTH.pack(len(value)) + value for value in fields)
        body = base64.b32encode(payload).decode().rstrip("=")
        return f"{PREFIX}_{body}_{_checksum(body)}"

    @classmethod
    def parse(cls, text: str, *, now: datetime | None = None) -> Self:
        """Read an invitation; with `now`, one that has expired is refused.

        Raises:
            InvalidInvitation: the text is none (`INVITATION_NOT_ONE`), too long (`…_TOO_LONG`), of another
                version (`…_VERSION`), cut short (`…_TRUNCATED`), changed (`…_EDITED`), contradicts itself
                (`…_FOREIGN`) or expired (`…_EXPIRED`). No sentence quotes the text.
        """
        invitation = cls._from_fields(_split(_payload(text)))
        if now is not None and now >= invitation.expires_at:
            raise InvalidInvitation(
                f"The invitation for {invitation.node} expired at {invitation.expires_at:%Y-%m-%d %H:%M} UTC "
                f"(this machine's clock says {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC).",
                remedy="If that clock is right, ask the operator for a new invitation; else set the clock.",
                code="INVITATION_EXPIRED",
            )
        return invitation

    @classmethod
    def _from_fields(cls, fields: list[bytes]) -> Self:
        try:
            invitation_id, node, addresses, server_name = (value.decode("ascii") for value in fields[:4])
            parsed = tuple(Address.parse(address) for address in addresses.split(",", _MOST_ADDRESSES))
            if server_name:
                check_host(server_name)
            invitation = cls(
                invitation_id=check_name(invitation_id, what="invitation"),
                node=check_name(node),
                addresses=parsed,
                server_name=server_name,
                expires_at=datetime.fromtimestamp(_EXPIRES.unpack(fields[4])[0], UTC),
                authority_sha256=fields[5],
                authority=fields[6],
                certificate=fields[7],
                secret=fields[8],
            )
        except (ValueError, OverflowError, OSError, struct.error, OperatorError):
            _refuse_edited()
        invitation._check_certificates()
        return invitation

    def _check_certificates(self) -> None:
        try:
            root = x509.load_der_x509_certificate(self.authority)
            check_authority(root)
            bootstrap = x509.load_der_x509_certificate(self.certificate)
            require_issued_by(bootstrap, root)
            if spki_sha256(root) != self.authority_sha256:
                raise ValueError("the root is not the one that the hash names")
            if spki_sha256(bootstrap) != spki_sha256(_private_key(self.secret).public_key()):
                raise ValueError("the key is not the bootstrap certificate's")
            peer = certificate_identity(bootstrap)
            if peer.kind is not IdentityKind.BOOTSTRAP or peer.name != self.invitation_id:
                raise ValueError("the bootstrap certificate is of another invitation")
            if not peer.not_before < self.expires_at <= peer.not_after:
                raise ValueError("the expiry is not within the bootstrap certificate's validity")
        except (*CERTIFICATE_FAULTS, OperatorError) as error:
            raise InvalidInvitation(
                "The invitation contradicts itself: its certificate, key and authority do not belong together.",
                remedy="Do not use it. Ask the operator for a new one over a channel that you trust.",
                code="INVITATION_FOREIGN",
            ) from error


def read_invitation(source: str, *, now: datetime | None = None) -> Invitation:
    """Read an invitation from `file:PATH`, from `-` (standard input), or from the text itself.

    Raises:
        SiteError: the source cannot be read.
        InvalidInvitation: as `Invitation.parse`.
    """
    return Invitation.parse(read_secret(source, what="invitation", limit=LONGEST_TEXT), now=now)


def _payload(text: str) -> bytes:
    """Check the frame of the text and undo the base32."""
    if len(text) > LONGEST_TEXT:
        raise InvalidInvitation(
            f"The text is longer than {LONGEST_TEXT} characters and cannot be an invitation.",
            remedy="Paste the invitation and nothing else.",
            code="INVITATION_TOO_LONG",
        )
    prefix, *parts = "".join(text.split()).upper().split("_")
    if not prefix.startswith(_FAMILY):
        raise InvalidInvitation(
            "The text is not an invitation.",
            remedy=f"An invitation begins with {PREFIX}_; copy it whole from `hanse node invite`.",
            code="INVITATION_NOT_ONE",
        )
    if prefix != PREFIX:
        raise InvalidInvitation(
            f"The invitation is of a kind that this program does not know ({prefix[:8]!r}, not {PREFIX!r}).",
            remedy="Install a newer hanse-agent, or ask the operator for a new invitation.",
            code="INVITATION_VERSION",
        )
    if len(parts) < 2 or len(parts[1]) < _CHECKSUM_DIGITS:
        raise InvalidInvitation(
            "The invitation is cut short.",
            remedy="Copy it whole, to the last character; a file avoids the limits of a terminal line.",
            code="INVITATION_TRUNCATED",
        )
    body, checksum = parts[0], parts[1]
    if len(parts) > 2 or checksum != _checksum(body):
        _refuse_edited()
    try:
        return base64.b32decode(body + "=" * (-len(body) % 8))
    except (binascii.Error, ValueError):
        _refuse_edited()


def _split(payload: bytes) -> list[bytes]:
    """The nine length-prefixed fields of a payload."""
    fields: list[bytes] = []
    offset = 0
    while offset + _LENGTH.size <= len(payload) and len(fields) < _FIELDS:
        (length,) = _LENGTH.unpack_from(payload, offset)
        offset += _LENGTH.size
        fields.append(payload[offset : offset + length])
        offset += length
    if len(fields) != _FIELDS or offset != len(payload):
        _refuse_edited()
    return fields


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode(errors='replace')):08X}"


def _private_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    if len(secret) != _KEY_BYTES:
        raise ValueError("not a P-256 key")
    return ec.derive_private_key(int.from_bytes(secret), ec.SECP256R1())


def _refuse_edited() -> NoReturn:
    raise InvalidInvitation(
        "The invitation was changed on its way: its checksum does not fit.",
        remedy="Copy it again from where the operator gave it, or ask for a new one.",
        code="INVITATION_EDITED",
    )
