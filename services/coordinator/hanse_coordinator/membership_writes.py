"""What membership writes, a transaction each: invitations, requests, approvals, certificates, revocations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from hanse.errors import Conflict, Forbidden, Reason, Unauthenticated
from hanse.ledger import Transaction, Trust, records
from hanse.security import Invitation, PeerIdentity

__all__ = ["add_certificate", "approve", "invite", "revoke", "take_request"]


def invite(
    tx: Transaction, invitation: Invitation, *, labels: Mapping[str, str], pre_approved: bool, again: bool, actor: str
) -> Trust:
    """Record an invitation; how far its node has come.

    Raises:
        Conflict: the node exists and `again` was not said, or the other way round.
    """
    name = invitation.node
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


def take_request(
    tx: Transaction, invitation_id: str, request: bytes, *, fingerprint: str, key_sha256: str
) -> tuple[str, bool]:
    """Take a certificate request under an invitation; the node, and whether its key is approved.

    Raises:
        Unauthenticated: the invitation is unknown, expired, or followed by a newer one.
        Forbidden: the node was revoked after it was invited.
        Conflict: another key has used the invitation.
    """
    invitation = tx.find_invitation(invitation_id)
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
    tx.use_invitation(invitation.id, key_sha256=key_sha256)
    if node.trust is Trust.APPROVED and node.fingerprint == fingerprint:
        return node.name, True
    if invitation.pre_approved:
        _admit(tx, node, fingerprint, actor=invitation.created_by, checked=False)
        return node.name, True
    if node.pending_fingerprint != fingerprint:
        trust = node.trust if node.trust in {Trust.APPROVED, Trust.REVOKED} else Trust.PENDING
        tx.update_node(node.name, trust=trust, pending_fingerprint=fingerprint, pending_request=request.decode())
        tx.event("node_pending", node=node.name, actor=node.name, body={"fingerprint": fingerprint})
    return node.name, False


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


def approve(tx: Transaction, name: str, *, fingerprint: str, actor: str) -> records.Node:
    """Approve the key that waits; an empty fingerprint approves it unchecked.

    Raises:
        NotFound: no such node.
        Conflict: nothing waits, or the fingerprint is another.
    """
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
    _admit(tx, node, node.pending_fingerprint, actor=actor, checked=bool(fingerprint))
    return tx.node(name)


def _admit(tx: Transaction, node: records.Node, fingerprint: str, *, actor: str, checked: bool) -> None:
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


def add_certificate(tx: Transaction, node: str, peer: PeerIdentity, fingerprint: str, *, fresh: bool) -> list[str]:
    """Record a certificate. A `fresh` one, of an enrolment, revokes those before it: their serials."""
    revoked = list(tx.revoke_certificates(node)) if fresh else []
    tx.add_certificate(
        serial=peer.serial,
        identity=peer.identity.uri,
        node=node,
        fingerprint=fingerprint,
        not_before=peer.not_before.timestamp(),
        not_after=peer.not_after.timestamp(),
    )
    kind = "certificate_issued" if fresh else "certificate_renewed"
    until = datetime.fromtimestamp(peer.not_after.timestamp(), UTC).isoformat()
    tx.event(kind, node=node, body={"serial": peer.serial, "until": until, "revoked": revoked})
    return revoked


def revoke(tx: Transaction, name: str, reason: Reason, *, why: str, actor: str) -> tuple[records.Node, list[str]]:
    """Revoke a node and all its certificates; their serials.

    Raises:
        NotFound: no such node.
    """
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
