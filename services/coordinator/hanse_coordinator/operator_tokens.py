"""Operators' tokens: who shows which, what its role allows, and that the last administrator's is not revoked."""

from __future__ import annotations

import time
from datetime import timedelta

from hanse.errors import Conflict, Forbidden, Unauthenticated
from hanse.ledger import Transaction
from hanse.ledger.records import OperatorToken as TokenRecord
from hanse.security import OperatorToken, Role
from hanse_coordinator.ledger_thread import LedgerThread

__all__ = ["add_token", "check_role", "require", "revoke_token"]


async def require(ledger: LedgerThread, shown: OperatorToken, role: Role) -> TokenRecord:
    """The token that a caller shows, which must allow at least `role`.

    Raises:
        Unauthenticated: it is unknown, expired or revoked.
        Forbidden: its role is not enough.
    """
    known = await ledger.read(lambda view: view.find_token(shown.token_id))
    if known is None or not shown.matches(bytes.fromhex(known.secret_hash)):
        raise Unauthenticated(
            "the token is not known here.",
            remedy="Check that it belongs to this federation; an administrator makes tokens.",
            code="TOKEN_UNKNOWN",
        )
    if known.revoked_at is not None:
        raise Unauthenticated(f"token '{known.name}' was revoked.", code="TOKEN_REVOKED")
    if known.expires_at is not None and time.time() >= known.expires_at:
        raise Unauthenticated(f"token '{known.name}' has expired.", remedy="Ask for a new one.", code="TOKEN_EXPIRED")
    check_role(known, role)
    return known


def check_role(token: TokenRecord, role: Role) -> None:
    """Check that a token's role is enough. Raises Forbidden."""
    if not Role(token.role).allows(role):
        raise Forbidden(
            f"token '{token.name}' has the role {token.role}; this needs {role.value}.",
            remedy="An administrator can make a token with that role.",
            code="ROLE",
        )


def add_token(
    tx: Transaction, secret: OperatorToken, *, name: str, role: Role, valid: timedelta, actor: str
) -> TokenRecord:
    """Record a token by its hash."""
    tx.add_token(
        id=secret.token_id,
        name=name,
        role=role.value,
        secret_hash=secret.digest.hex(),
        created_by=actor,
        expires_at=tx.now + valid.total_seconds(),
    )
    tx.event("token_created", actor=actor, body={"token": secret.token_id, "name": name, "role": role.value})
    return tx.token(secret.token_id)


def revoke_token(tx: Transaction, token: str, *, actor: str) -> TokenRecord:
    """Revoke a token by its id.

    Raises:
        NotFound: there is no such token.
        Conflict: nobody could make tokens any more.
    """
    others = [item for item in tx.tokens() if item.id != token and _is_good_admin(item, tx.now)]
    if not others and _is_good_admin(tx.token(token), tx.now):
        raise Conflict(
            "this is the last administrator's token: without it nobody could make another.",
            remedy="Make a new one first (`hanse token create NAME --role admin`).",
            code="LAST_ADMIN",
        )
    record = tx.revoke_token(token)
    tx.event("token_revoked", actor=actor, body={"token": record.id, "name": record.name})
    return record


def _is_good_admin(token: TokenRecord, now: float) -> bool:
    good = token.revoked_at is None and (token.expires_at is None or token.expires_at > now)
    return good and Role(token.role) is Role.ADMIN
