"""Who belongs to the federation: invitations, enrolment, approval, certificates, revocation."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hanse.errors import Conflict, Forbidden, Owner, Reason, Unauthenticated
from hanse.ledger import Transaction, Trust, View, new_id, records
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

        def work(tx: Transaction) -> Trust:
            node = tx.find_node(name)
            if node is not None and node.trust is not Trust.INVITED and not again:
                raise Conflict(
                    f"node '{name}' exists ({node.trust.value}).",
                    remedy=f"If it lost its certificate: `hanse node invite {name} --again`.",
                    code="NODE_EXISTS",
                )
            if node is None and again:
                raise Conflict(f"there is no node '{name}' to invite again.", remedy="Leave out --again.")
            if node is None:
                tx.add_node(name=name, labels=dict(labels))
            elif labels:
                tx.update_node(name, labels=dict(labels))
            tx.add_invitation(
                id=invitation.invitation_id,
                node=name,
                created_by=actor,
                expires_at=invitation.expires_at.timestamp(),
                pre_approved=pre_approved,
                again=again,
                certificate_serial=invitation.key_pair.peer.serial,
            )
            body = {"invitation": invitation.invitation_id, "pre_approved": pre_approved, "again": again}
            tx.event("node_invited", node=name, actor=actor, body=body)
            return tx.node(name).trust

        self._trust[name] = await self._ledger.write(work)
        return invitation

    async def approve(self, name: str, *, fingerprint: str, actor: str) -> records.Node:
        """Approve the key that waits; an empty fingerprint approves it unchecked.

        Raises:
            NotFound: no such node.
            Conflict: nothing waits, or the fingerprint is another.
        """

        def work(tx: Transaction) -> records.Node:
            node = tx.node(name)
            if node.pending_fingerprint is None:
                raise Conflict(
                    f"nothing waits for approval at node '{name}' ({node.trust.value}).",
                    remedy="Let the site run `hanse-agent join` first.",
                    code="NOTHING_PENDING",
                )
            if fingerprint and fingerprint.strip().lower() != node.pending_fingerprint:
                raise Conflict(
                    f"the key of node '{name}' has the fingerprint {node.pending_fingerprint}, not {fingerprint}.",
                    remedy="Compare with what `hanse-agent join` shows at the site. If they differ, do not approve.",
                    code="FINGERPRINT_MISMATCH",
                )
            self._admit(tx, node, node.pending_fingerprint, actor=actor, checked=bool(fingerprint))
            return tx.node(name)

        node = await self._ledger.write(work)
        self._note_approved(node.name)
        return node

    def _admit(self, tx: Transaction, node: records.Node, fingerprint: str, *, actor: str, checked: bool) -> None:
        tx.update_node(
            node.name,
            trust=Trust.APPROVED,
            approved_at=tx.now,
            approved_by=actor,
            fingerprint=fingerprint,
            pending_fingerprint=None,
            pending_request=None,
            revoked_at=None,
            revoked_by=None,
            reason=None,
        )
        tx.event("node_approved", node=node.name, actor=actor, body={"fingerprint": fingerprint, "checked": checked})

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

        def work(tx: Transaction) -> tuple[records.Node, list[str]]:
            tx.node(name)
            serials = list(tx.revoke_certificates(name))
            tx.update_node(
                name,
                trust=Trust.REVOKED,
                revoked_at=tx.now,
                revoked_by=actor,
                reason=reason,
                pending_fingerprint=None,
                pending_request=None,
                online=False,
            )
            tx.event("node_revoked", node=name, actor=actor, body={"why": why, "serials": serials})
            return tx.node(name), serials

        node, serials = await self._ledger.write(work)
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

        def work(tx: Transaction) -> tuple[str, bool]:
            invitation = tx.find_invitation(peer.name)
            if invitation is None:
                raise Unauthenticated("the invitation is not known here.", code="INVITATION_UNKNOWN")
            if tx.now >= invitation.expires_at:
                raise Unauthenticated(
                    f"the invitation of node '{invitation.node}' has expired.",
                    remedy="Ask the operator for a new one.",
                    code="INVITATION_EXPIRED",
                )
            node = tx.node(invitation.node)
            _require_standing(tx, invitation, node)
            tx.use_invitation(invitation.id, key_sha256=digest)
            if node.trust is Trust.APPROVED and node.fingerprint == fingerprint:
                return node.name, True
            if invitation.pre_approved:
                self._admit(tx, node, fingerprint, actor=invitation.created_by, checked=False)
                return node.name, True
            if node.pending_fingerprint != fingerprint:
                trust = node.trust if node.trust in {Trust.APPROVED, Trust.REVOKED} else Trust.PENDING
                tx.update_node(
                    node.name, trust=trust, pending_fingerprint=fingerprint, pending_request=request.decode()
                )
                tx.event("node_pending", node=node.name, actor=node.name, body={"fingerprint": fingerprint})
            return node.name, False

        node, admitted = await self._ledger.write(work)
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
        key = request_key(request)
        peer = parse_identity(certificate)

        def work(tx: Transaction) -> list[str]:
            revoked = list(tx.revoke_certificates(node)) if fresh else []
            tx.add_certificate(
                serial=peer.serial,
                identity=peer.identity.uri,
                node=node,
                fingerprint=fingerprint_words(key),
                not_before=peer.not_before.timestamp(),
                not_after=peer.not_after.timestamp(),
            )
            kind = "certificate_issued" if fresh else "certificate_renewed"
            until = datetime.fromtimestamp(peer.not_after.timestamp(), UTC).isoformat()
            tx.event(kind, node=node, body={"serial": peer.serial, "until": until, "revoked": revoked})
            return revoked

        self._revoked_serials.update(await self._ledger.write(work))
        return certificate


def _require_standing(tx: Transaction, invitation: records.Invitation, node: records.Node) -> None:
    """Check that nothing has happened since the invitation was made that takes it back."""
    if node.revoked_at is not None and invitation.created_at <= node.revoked_at:
        raise Forbidden(
            f"node '{node.name}' was revoked after this invitation was made.",
            remedy=f"Ask the operator for a new one (`hanse node invite {node.name} --again`).",
            code="NODE_REVOKED",
        )
    if tx.invitations(node.name)[0].id != invitation.id:
        raise Unauthenticated(
            f"a newer invitation of node '{node.name}' has replaced this one.",
            remedy="Use the newer one, or ask the operator for another.",
            code="INVITATION_REPLACED",
        )


def seconds_left(peer: PeerIdentity) -> float:
    """How long a certificate is still good."""
    return peer.not_after.timestamp() - time.time()
