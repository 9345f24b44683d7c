"""Nodes, their invitations and their certificates, in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, update

from hanse.errors import Conflict
from hanse.ledger import models
from hanse.ledger.records import Certificate, Invitation, Node
from hanse.ledger.rows import Reads, Writes, new_id
from hanse.ledger.states import Trust


class NodeReads(Reads):
    """What can be asked about nodes."""

    def node(self, name: str) -> Node:
        """A node. Raises NotFound."""
        return self._one(Node, models.node, name=name)

    def find_node(self, name: str) -> Node | None:
        """A node, or None."""
        return self._first(Node, self._select(models.node, Node).where(models.node.c.name == name))

    def nodes(
        self, *, after: str = "", limit: int | None = None, trust: Iterable[Trust] = (), online: bool | None = None
    ) -> list[Node]:
        """Nodes in order of name, from the one after `after` on."""
        table = models.node
        statement = self._select(table, Node).where(table.c.name > after).order_by(table.c.name).limit(limit)
        if words := [str(word) for word in trust]:
            statement = statement.where(table.c.trust.in_(words))
        if online is not None:
            statement = statement.where(table.c.online.is_(online))
        return self._all(Node, statement)

    def count_nodes(self) -> tuple[int, int]:
        """How many approved nodes are online, and how many there are."""
        table = models.node
        statement = select(table.c.online, func.count()).where(table.c.trust == Trust.APPROVED.value)
        counts = {bool(online): count for online, count in self._connection.execute(statement.group_by(table.c.online))}
        return counts.get(True, 0), sum(counts.values())

    def invitation(self, invitation_id: str) -> Invitation:
        """An invitation. Raises NotFound."""
        return self._one(Invitation, models.invitation, id=invitation_id)

    def find_invitation(self, invitation_id: str) -> Invitation | None:
        """An invitation, or None."""
        table = models.invitation
        return self._first(Invitation, self._select(table, Invitation).where(table.c.id == invitation_id))

    def invitations(self, node: str) -> list[Invitation]:
        """A node's invitations, newest first."""
        table = models.invitation
        statement = self._select(table, Invitation).where(table.c.node == node)
        return self._all(Invitation, statement.order_by(table.c.created_at.desc(), table.c.id.desc()))

    def certificate(self, serial: str) -> Certificate:
        """A certificate. Raises NotFound."""
        return self._one(Certificate, models.certificate, serial=serial)

    def find_certificate(self, serial: str) -> Certificate | None:
        """A certificate, or None."""
        table = models.certificate
        return self._first(Certificate, self._select(table, Certificate).where(table.c.serial == serial))

    def certificates(self, node: str) -> list[Certificate]:
        """A node's certificates, the one that lasts longest first."""
        table = models.certificate
        statement = self._select(table, Certificate).where(table.c.node == node)
        return self._all(Certificate, statement.order_by(table.c.not_after.desc(), table.c.serial))

    def certificates_expire(self) -> dict[str, float]:
        """When the last good certificate of each node runs out."""
        table = models.certificate
        statement = select(table.c.node, func.max(table.c.not_after)).where(table.c.revoked_at.is_(None))
        rows = self._connection.execute(statement.where(table.c.node.is_not(None)).group_by(table.c.node))
        return {node: float(not_after) for node, not_after in rows}


class NodeWrites(NodeReads, Writes):
    """What can be written about nodes."""

    def add_node(
        self, *, name: str, trust: Trust = Trust.INVITED, labels: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """Add a node; `more` names further columns. Raises Conflict when the name is taken."""
        values: dict[str, Any] = {
            "name": name,
            "trust": trust,
            "labels": labels or {},
            "created_at": self.now,
            "methods": (),
            "datasets": (),
            "online": False,
        }
        taken = f"There is a node {name} already. Invite it again to give it a new certificate."
        self._insert(models.node, values | more, taken=taken)

    def update_node(self, name: str, **changes: Any) -> None:
        """Change columns of a node. Raises NotFound."""
        self._update(models.node, {"name": name}, changes)

    def add_invitation(
        self,
        *,
        node: str,
        created_by: str,
        expires_at: float,
        pre_approved: bool = False,
        again: bool = False,
        certificate_serial: str | None = None,
        id: str | None = None,  # noqa: A002 - the column's name
    ) -> str:
        """Add an invitation and return its id. Raises Conflict when the id is taken."""
        invitation_id = id or new_id()
        values = {
            "id": invitation_id,
            "node": node,
            "created_at": self.now,
            "created_by": created_by,
            "expires_at": expires_at,
            "pre_approved": pre_approved,
            "again": again,
            "certificate_serial": certificate_serial,
        }
        self._insert(models.invitation, values, taken=f"There is an invitation {invitation_id} already.")
        return invitation_id

    def update_invitation(self, invitation_id: str, **changes: Any) -> None:
        """Change columns of an invitation. Raises NotFound."""
        self._update(models.invitation, {"id": invitation_id}, changes)

    def use_invitation(self, invitation_id: str, *, key_sha256: str) -> None:
        """Mark an invitation as used by a key; the same key may come again.

        Raises:
            NotFound: there is no such invitation.
            Conflict: another key used it.
        """
        table = models.invitation
        statement = (
            update(table)
            .where(table.c.id == invitation_id, table.c.used_at.is_(None))
            .values(used_at=self.now, used_key_sha256=key_sha256)
        )
        if self._connection.execute(statement).rowcount == 1:
            return
        if self.invitation(invitation_id).used_key_sha256 != key_sha256:
            raise Conflict(
                f"Invitation {invitation_id} was used already, with another key.",
                remedy="Ask the operator for a new one.",
                code="INVITATION_USED",
            )

    def add_certificate(
        self,
        *,
        serial: str,
        identity: str,
        fingerprint: str,
        not_before: float,
        not_after: float,
        node: str | None = None,
        issued_at: float | None = None,
    ) -> None:
        """Record a certificate that was issued. Raises Conflict when the serial is taken."""
        values = {
            "serial": serial,
            "identity": identity,
            "node": node,
            "fingerprint": fingerprint,
            "not_before": not_before,
            "not_after": not_after,
            "issued_at": self.now if issued_at is None else issued_at,
        }
        self._insert(models.certificate, values, taken=f"There is a certificate with serial {serial} already.")

    def update_certificate(self, serial: str, **changes: Any) -> None:
        """Change columns of a certificate. Raises NotFound."""
        self._update(models.certificate, {"serial": serial}, changes)

    def revoke_certificates(self, node: str) -> Sequence[str]:
        """Revoke all certificates of a node and return the serials of those that were good until now."""
        table = models.certificate
        good = (table.c.node == node, table.c.revoked_at.is_(None))
        serials = self._connection.execute(select(table.c.serial).where(*good).order_by(table.c.serial)).scalars().all()
        if serials:
            self._connection.execute(update(table).where(*good).values(revoked_at=self.now))
        return serials
