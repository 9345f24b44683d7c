"""Operator tokens, and what each role may do."""

from __future__ import annotations

from dataclasses import dataclass

from hanse.ledger import View
from hanse.security import Role
from hanse_dashboard.queries.paging import Instant, Moment

__all__ = ["PERMISSIONS", "TokenRow", "token_rows"]

PERMISSIONS: tuple[tuple[str, Role], ...] = (
    ("See jobs, nodes, metrics, pictures and the ledger; verify it", Role.VIEWER),
    ("Submit, pause, resume and cancel jobs", Role.RESEARCHER),
    ("Download models", Role.RESEARCHER),
    ("Invite, approve and revoke nodes", Role.OPERATOR),
    ("Make, see and revoke operator tokens", Role.ADMIN),
)


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """A token without its secret."""

    id: str
    name: str
    role: str
    state: str
    """valid, ran_out or revoked."""
    created_at: Instant
    created_by: str
    expires_at: Moment
    revoked_at: Moment


def token_rows(view: View, now: float) -> list[TokenRow]:
    """All tokens, those that are good first, then the newest first."""
    rows = [
        TokenRow(
            id=token.id,
            name=token.name,
            role=token.role,
            state="revoked"
            if token.revoked_at
            else "ran_out"
            if token.expires_at is not None and token.expires_at <= now
            else "valid",
            created_at=token.created_at,
            created_by=token.created_by,
            expires_at=token.expires_at,
            revoked_at=token.revoked_at,
        )
        for token in view.tokens()
    ]
    return sorted(rows, key=lambda row: (row.state != "valid", -row.created_at))
