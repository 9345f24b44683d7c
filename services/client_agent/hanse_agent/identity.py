"""Who this node is: its key and certificate, whom it trusts, and where the coordinator listens.

identity/node.pem        private key and certificate in one file (0600): a renewal replaces both or neither
identity/authority.crt   the federation's root, the only one that is trusted
identity/node.json       name, addresses, and the invitation that was used
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, cast

import grpc.aio

from hanse.errors import SiteError
from hanse.payload.raw_chunks import TransferStub
from hanse.security import Address, KeyPair, PeerIdentity, channel_credentials, channel_options, write_atomically
from hanse.v1 import node_pb2_grpc
from hanse_agent.files import read_json

PAIR = "node.pem"
AUTHORITY = "authority.crt"
FACTS = "node.json"
CERTIFICATE = "node.crt"


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """A node's identity as it lies in the state folder."""

    node: str
    pair: KeyPair = field(repr=False)
    authority_pem: bytes = field(repr=False)
    addresses: tuple[Address, ...]
    """Where the coordinator listens, as the invitation said."""
    server_name: str
    """The name that the coordinator's certificate must carry; empty: the host of the address."""
    invitation: str
    """The id of the invitation that was used last."""

    @property
    def peer(self) -> PeerIdentity:
        """What the certificate says: serial and validity."""
        return self.pair.peer

    def require_current(self, now: datetime | None = None) -> None:
        """Check that the certificate has not run out. Whether it is valid already, the coordinator's clock decides:
        one of ours that is behind would keep a good node away.

        Raises:
            Unauthenticated: it ran out; the remedy names the command that brings the node back.
        """
        self.peer.require_current(max(now or datetime.now(UTC), self.peer.not_before))

    def with_pair(self, pair: KeyPair) -> NodeIdentity:
        """The same node with a renewed key and certificate."""
        return replace(self, pair=pair)

    def save(self, folder: Path) -> None:
        """Write the identity; the certificate comes last, so that it is all there once it is there.

        Raises:
            PlatformError: the folder cannot be written.
        """
        facts = {
            "node": self.node,
            "addresses": [str(address) for address in self.addresses],
            "server_name": self.server_name,
            "invitation": self.invitation,
        }
        write_atomically(folder / AUTHORITY, self.authority_pem)
        write_atomically(folder / FACTS, json.dumps(facts, indent=2).encode())
        self.pair.save(folder / PAIR)
        write_atomically(folder / CERTIFICATE, self.pair.certificate_pem, mode=0o644)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The identity in `folder`; None before the node has joined.

        Raises:
            SiteError: files are missing or do not belong together.
        """
        if not (folder / PAIR).exists():
            return None
        pair = KeyPair.load(folder / PAIR, blame=SiteError)
        facts = read_json(folder / FACTS)
        try:
            if facts is None:
                raise KeyError(FACTS)
            return cls(
                node=str(facts["node"]),
                pair=pair,
                authority_pem=(folder / AUTHORITY).read_bytes(),
                addresses=tuple(Address.parse(address) for address in facts["addresses"]),
                server_name=str(facts["server_name"]),
                invitation=str(facts["invitation"]),
            )
        except (OSError, KeyError, TypeError) as error:
            raise SiteError(
                f"the identity in {folder} is not whole ({error}).",
                remedy="Restore the folder from a backup, or join again with a new invitation.",
                code="IDENTITY_NOT_WHOLE",
            ) from error

    @classmethod
    def require(cls, folder: Path) -> Self:
        """The identity in `folder`.

        Raises:
            SiteError: the node has not joined, or as `load`.
        """
        identity = cls.load(folder)
        if identity is None:
            raise SiteError(
                f"this node has not joined a federation ({folder} holds no certificate).",
                remedy="Ask the operator for an invitation and run: hanse-agent join CONFIG --token file:PATH",
                code="NOT_JOINED",
            )
        return identity


def open_channel(
    address: Address, *, authority_pem: bytes, pair: KeyPair, server_name: str
) -> tuple[grpc.aio.Channel, node_pb2_grpc.NodeServiceAsyncStub]:
    """A channel of its own to the coordinator, and the stub on it; nothing is sent yet."""
    channel = grpc.aio.secure_channel(
        str(address), channel_credentials(authority_pem, pair), options=channel_options(server_name=server_name)
    )
    return channel, cast("node_pb2_grpc.NodeServiceAsyncStub", TransferStub(channel))


def all_addresses(first: Iterable[Address], others: Iterable[Address]) -> tuple[Address, ...]:
    """Addresses in the order in which they are tried, each once."""
    return tuple(dict.fromkeys((*first, *others)))
