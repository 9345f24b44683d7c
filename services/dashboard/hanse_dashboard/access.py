"""Who is asking, what they may do, and that it was really they who asked."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fastapi import Request

from hanse.errors import Forbidden, OperatorError, Unauthenticated
from hanse.ledger import Ledger
from hanse.ledger.records import OperatorToken as TokenRecord
from hanse.security import OperatorToken, Role
from hanse_dashboard.sessions import LoginDesk

__all__ = ["COOKIE", "Caller", "Gate"]

COOKIE = "hanse_session"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Somebody who showed a good token, now or when they logged in."""

    name: str
    role: Role
    token: OperatorToken = field(repr=False)
    expires_at: float | None
    """When the token runs out."""
    session: str = ""
    """Id of the log-in; empty when the token itself came with the request."""
    csrf: str = field(default="", repr=False)

    def may(self, role: str) -> bool:
        """Whether the caller's role reaches `role`."""
        return self.role.allows(Role(role))

    def require(self, role: Role) -> None:
        """Refuse, and name the role that is missing.

        Raises:
            Forbidden: the role does not reach.
        """
        if not self.role.allows(role):
            raise Forbidden(
                f"This needs the role {role.value}; {self.name} has the role {self.role.value}.",
                remedy="An administrator can make a token with that role: hanse token create.",
                code="ROLE",
            )


class Gate:
    """Finds the caller of a request."""

    def __init__(self, ledger: Ledger, desk: LoginDesk, *, public_url: str = "") -> None:
        self._ledger = ledger
        self._desk = desk
        self._public = urlsplit(public_url).netloc

    def check_token(self, token: OperatorToken) -> TokenRecord:
        """The ledger's record of a token that is good at this moment.

        Raises:
            Unauthenticated: unknown, revoked or expired.
        """
        with self._ledger.read() as view:
            known = view.find_token(token.token_id)
        if known is None or not token.matches(bytes.fromhex(known.secret_hash)):
            raise Unauthenticated(
                "This token is not known here.",
                remedy="Check that it belongs to this federation; an administrator makes tokens.",
                code="TOKEN_UNKNOWN",
            )
        if known.revoked_at is not None:
            raise Unauthenticated(
                f"The token “{known.name}” was revoked.",
                remedy="Ask an administrator for a new one.",
                code="TOKEN_REVOKED",
            )
        if known.expires_at is not None and time.time() >= known.expires_at:
            raise Unauthenticated(
                f"The token “{known.name}” has expired.",
                remedy="Ask an administrator for a new one.",
                code="TOKEN_EXPIRED",
            )
        return known

    def caller(self, request: Request, *, touch: bool = True) -> Caller:
        """Who asks, by `Authorization: Bearer …` or by the cookie of a log-in.

        Raises:
            Unauthenticated: neither, or one that is no longer good.
            OperatorError: a name with a NUL, which PostgreSQL would refuse.
        """
        if "\x00" in request.scope["path"] or any("\x00" in value for value in request.query_params.values()):
            raise OperatorError("A name or a filter holds a character that no name can hold.", code="INVALID_REQUEST")
        if "authorization" in request.headers:
            token = OperatorToken.from_metadata([("authorization", request.headers["authorization"])])
            known = self.check_token(token)
            return Caller(name=known.name, role=Role(known.role), token=token, expires_at=known.expires_at)
        login = self._desk.find(request.cookies.get(COOKIE, ""), touch=touch)
        if login is None:
            raise Unauthenticated(
                "You are not logged in, or your session has ended.", remedy="Log in.", code="NOT_LOGGED_IN"
            )
        known = self.check_token(login.token)
        return Caller(
            name=known.name,
            role=Role(known.role),
            token=login.token,
            expires_at=known.expires_at,
            session=login.id,
            csrf=login.csrf,
        )

    def require_own_page(self, request: Request) -> None:
        """Refuse a change that another site's page asks for.

        Raises:
            Forbidden: the browser says that the request comes from elsewhere, or says nothing.
        """
        origin = request.headers.get("origin")
        if origin and origin != "null":
            here = {request.headers.get("host", ""), self._public} - {""}
            if urlsplit(origin).netloc in here:
                return
        elif request.headers.get("sec-fetch-site") == "same-origin":
            return
        raise Forbidden(
            "This request does not come from a page of this dashboard.",
            remedy="Open the dashboard's page and try again; behind a proxy, set `public_url`.",
            code="CROSS_ORIGIN",
        )

    def require_intent(self, request: Request, caller: Caller, shown: str) -> None:
        """A change that rides on a cookie needs the page's own secret as well.

        Raises:
            Forbidden: another site's page asks, or the form is of another session.
        """
        if request.method in _SAFE or not caller.session:
            return
        self.require_own_page(request)
        if not hmac.compare_digest(shown.encode(), caller.csrf.encode()):
            raise Forbidden(
                "This form belongs to another session.", remedy="Reload the page and try again.", code="CSRF"
            )
