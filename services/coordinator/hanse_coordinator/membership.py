"""Who belongs to the federation: invitations, enrolment, approval, certificates, revocation."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from hanse.errors import Forbidden, Owner, Reason
from hanse.ledger import Trust, View, new_id, records
from hanse.security import (
    Address,
    Authority,
    Identity,
    IdentityKind,
    Invitation,
    PeerIdentity,
    check_name,
    fingerprint_words,
    parse_identity,
    request_key,
    spki_sha256,
)
from hanse_coordinator import membership_writes as writes
from hanse_coordinator.ledger_thread import LedgerThread

__all__ = ["Enrolment", "Membership"]


@dataclass(frozen=True)
class Enrolment:
    """Where a node's enrolment stands: `certificate` (PEM) once it is approved."""

    node: str
    fingerprint: str
    certificate: bytes | None = None


class Membership:
    """Decides on every call who may speak, and remembers it in the ledger.

    Trust and revoked serials are mirrored in memory, since they are asked for on every call; this process is
    the only one that changes them.
    """

    def __init__(
        self,
        authority: Authority,
        ledger: LedgerThread,
        *,
        addresses: tuple[Address, ...],
        certificate_lifetime: timedelta,
    ) -> None:
        self.authority = authority
        self._ledger = ledger
        self._addresses = addresses
        self._lifetime = certificate_lifetime
        self._trust: dict[str, Trust] = {}
        self._revoked_serials: set[str] = set()
        self._reasons: dict[str, Reason] = {}
        self._approved: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def load(self) -> None:
        """Read who is a member."""

        def read(view: View) -> tuple[list[records.Node], list[str]]:
            nodes = view.nodes()
            serials = [c.serial for n in nodes for c in view.certificates(n.name) if c.revoked_at is not None]
            return nodes, serials

        nodes, serials = await self._ledger.read(read)
        self._trust = {node.name: node.trust for node in nodes}
        self._reasons = {node.name: node.reason for node in nodes if node.reason}
        self._revoked_serials = set(serials)

    def trust(self) -> Mapping[str, Trust]:
        """Every node with how far it has come."""
        return self._trust

    # ---- Every call
    def require_node(self, peer: PeerIdentity) -> str:
        """The name of the approved node that calls.

        Raises:
            Unauthenticated: the certificate has expired, or is not a node's.
            Forbidden: node or certificate was revoked; the sentence says why.
        """
        if peer.kind is not IdentityKind.NODE:
            raise Forbidden(
                f"a {peer.kind.value} certificate cannot do this.",
                remedy="Join first; then connect with the node's own certificate.",
                code="NOT_A_NODE",
            )
        peer.require_current()
        if self._trust.get(peer.name) is Trust.REVOKED:
            why = self._reasons.get(peer.name)
            raise Forbidden(
                f"node '{peer.name}' was revoked{': ' + why.sentence if why else '.'}",
                remedy="Ask the operator of the federation.",
                code="NODE_REVOKED",
            )
        if peer.serial in self._revoked_serials:
            raise Forbidden(
                f"this certificate of node '{peer.name}' was revoked; the node has a newer one.",
                remedy=f"Use the newer one, or ask for `hanse node invite {peer.name} --again`.",
                code="CERTIFICATE_REVOKED",
            )
        if self._trust.get(peer.name) is not Trust.APPROVED:
            raise Forbidden(f"node '{peer.name}' is not approved.", code="NODE_NOT_APPROVED")
        return peer.name

    # ---- Operators
    async def invite(
        self, name: str, *, labels: Mapping[str, str], valid: timedelta, pre_approved: bool, again: bool, actor: str
    ) -> Invitation:
        """Invite a node, or one that exists and lost its certificate (`again`).

        Raises:
            Conflict: the node exists and `again` was not said, or the other way round, or it was revoked.
            OperatorError: an invalid name or validity.
        """
        check_name(name)
        invitation = Invitation.create(
            self.authority, invitation_id=new_id(), node=name, addresses=self._addresses, lifetime=valid
        )

        self._trust[name] = await self._ledger.write(
            lambda tx: writes.invite(tx, invitation, labels=labels, pre_approved=pre_approved, again=again, actor=actor)
        )
        return invitation

    async def approve(self, name: str, *, fingerprint: str, actor: str) -> records.Node:
        """Approve the key that waits; an empty fingerprint approves it unchecked.

        Raises:
            NotFound: no such node.
            Conflict: nothing waits, or the fingerprint is another.
        """
        node = await self._ledger.write(lambda tx: writes.approve(tx, name, fingerprint=fingerprint, actor=actor))
        self._note_approved(node.name)
        return node

    def _note_approved(self, name: str) -> None:
        self._trust[name] = Trust.APPROVED
        self._reasons.pop(name, None)
        self._approved[name].set()

    async def revoke(self, name: str, *, why: str, actor: str) -> records.Node:
        """Revoke a node and all its certificates; it takes effect on its next call, and on open streams at once.

        Raises:
            NotFound: no such node.
        """
        reason = Reason(
            code="NODE_REVOKED",
            sentence=why.strip() or "no reason was given.",
            owner=Owner.OPERATOR,
            remedy=f"`hanse node invite {name} --again` lets it return.",
        )

        node, serials = await self._ledger.write(lambda tx: writes.revoke(tx, name, reason, why=why, actor=actor))
        self._trust[name] = Trust.REVOKED
        self._reasons[name] = reason
        self._revoked_serials.update(serials)
        return node

    # ---- Nodes
    async def enrol(self, peer: PeerIdentity, request: bytes) -> Enrolment:
        """Take a certificate request under an invitation. The same key again goes on where it was.

        Raises:
            Unauthenticated: not an invitation of ours, expired, or followed by a newer one.
            Forbidden: the node was revoked after it was invited.
            Conflict: another key has used the invitation.
            SiteError: the request is malformed.
        """
        if peer.kind is not IdentityKind.BOOTSTRAP:
            raise Forbidden(
                f"a {peer.kind.value} certificate cannot enrol.", remedy="Renew it instead.", code="NOT_AN_INVITATION"
            )
        key = request_key(request)
        fingerprint, digest = fingerprint_words(key), spki_sha256(key).hex()
        node, admitted = await self._ledger.write(
            lambda tx: writes.take_request(tx, peer.name, request, fingerprint=fingerprint, key_sha256=digest)
        )
        if not admitted:
            self._approved[node].clear()
            return Enrolment(node, fingerprint)
        self._note_approved(node)
        return Enrolment(node, fingerprint, await self._certify(node, request, fresh=True))

    async def approved(self, node: str) -> None:
        """Wait until an operator approves a node."""
        await self._approved[node].wait()

    async def renew(self, node: str, request: bytes) -> bytes:
        """A new certificate (PEM) for a node that proves a key; the old one stays good until it ends.

        Raises:
            SiteError: the request is malformed.
        """
        return await self._certify(node, request, fresh=False)

    async def _certify(self, node: str, request: bytes, *, fresh: bool) -> bytes:
        certificate = self.authority.sign_request(request, Identity.node(node), lifetime=self._lifetime)
        fingerprint, peer = fingerprint_words(request_key(request)), parse_identity(certificate)
        revoked = await self._ledger.write(lambda tx: writes.add_certificate(tx, node, peer, fingerprint, fresh=fresh))
        self._revoked_serials.update(revoked)
        return certificate


def seconds_left(peer: PeerIdentity) -> float:
    """How long a certificate is still good."""
    return peer.not_after.timestamp() - time.time()
