"""Who belongs to a federation, and how two programs know that of each other.

`Authority` certifies identities; `Invitation` brings a node in; `tls` makes gRPC credentials; `peer_identity` says
who calls; `OperatorToken` and `Role` say what a person may do; `check_server` says why a connection fails.
"""

from hanse.security.addresses import Address
from hanse.security.authority import NODE_LIFETIME, SERVICE_LIFETIME, Authority, internal_name
from hanse.security.certificates import accept_certificate, request_key
from hanse.security.files import read_secret, write_atomically
from hanse.security.following import follow_certificate
from hanse.security.identity import (
    Identity,
    IdentityKind,
    PeerIdentity,
    check_name,
    parse_identity,
    peer_identity,
)
from hanse.security.invitation import InvalidInvitation, Invitation, read_invitation
from hanse.security.keys import (
    KeyPair,
    fingerprint_words,
    load_or_create_key,
    new_key,
    signing_request,
    spki_sha256,
)
from hanse.security.probe import check_server
from hanse.security.tls import ServerCertificate, channel_credentials, channel_options, server_options
from hanse.security.tokens import OperatorToken, Role

__all__ = [
    "NODE_LIFETIME",
    "SERVICE_LIFETIME",
    "Address",
    "Authority",
    "Identity",
    "IdentityKind",
    "InvalidInvitation",
    "Invitation",
    "KeyPair",
    "OperatorToken",
    "PeerIdentity",
    "Role",
    "ServerCertificate",
    "accept_certificate",
    "channel_credentials",
    "channel_options",
    "check_name",
    "check_server",
    "fingerprint_words",
    "follow_certificate",
    "internal_name",
    "load_or_create_key",
    "new_key",
    "parse_identity",
    "peer_identity",
    "read_invitation",
    "read_secret",
    "request_key",
    "server_options",
    "signing_request",
    "spki_sha256",
    "write_atomically",
]
