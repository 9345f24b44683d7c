"""Operator tokens in the ledger."""

from __future__ import annotations

from typing import Any

from hanse.ledger import models
from hanse.ledger.records import OperatorToken
from hanse.ledger.rows import Reads, Writes, new_id


class TokenReads(Reads):
    """What can be asked about operator tokens."""

    def token(self, token_id: str) -> OperatorToken:
        """A token. Raises NotFound."""
        return self._one(OperatorToken, models.operator_token, id=token_id)

    def find_token(self, token_id: str) -> OperatorToken | None:
        """A token, or None."""
        table = models.operator_token
        return self._first(OperatorToken, self._select(table, OperatorToken).where(table.c.id == token_id))

    def token_by_secret_hash(self, secret_hash: str) -> OperatorToken | None:
        """The token whose secret has this hash, or None."""
        table = models.operator_token
        return self._first(OperatorToken, self._select(table, OperatorToken).where(table.c.secret_hash == secret_hash))

    def tokens(self) -> list[OperatorToken]:
        """All tokens, oldest first."""
        table = models.operator_token
        return self._all(OperatorToken, self._select(table, OperatorToken).order_by(table.c.created_at, table.c.id))


class TokenWrites(TokenReads, Writes):
    """What can be written about operator tokens."""

    def add_token(
        self,
        *,
        name: str,
        role: str,
        secret_hash: str,
        created_by: str,
        expires_at: float | None = None,
        id: str | None = None,  # noqa: A002 - the column's name
    ) -> str:
        """Add a token and return its id. Raises Conflict when id or secret is taken."""
        token_id = id or new_id()
        values = {
            "id": token_id,
            "name": name,
            "role": str(role),
            "secret_hash": secret_hash,
            "created_at": self.now,
            "created_by": created_by,
            "expires_at": expires_at,
        }
        self._insert(models.operator_token, values, taken=f"There is a token {token_id} already.")
        return token_id

    def update_token(self, token_id: str, **changes: Any) -> None:
        """Change columns of a token. Raises NotFound."""
        self._update(models.operator_token, {"id": token_id}, changes)

    def revoke_token(self, token_id: str) -> OperatorToken:
        """Revoke a token, if it is not revoked yet, and return it. Raises NotFound."""
        token = self.token(token_id)
        if token.revoked_at is None:
            self._update(models.operator_token, {"id": token_id}, {"revoked_at": self.now})
            token = self.token(token_id)
        return token
