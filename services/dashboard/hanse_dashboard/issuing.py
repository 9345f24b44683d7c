"""People who log in by way of a provider act with operator tokens, too: made for one session, revoked at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hanse.errors import HanseError, OperatorError
from hanse.ledger import Ledger
from hanse.logs import logger
from hanse.security import OperatorToken
from hanse.v1 import control_pb2
from hanse_dashboard.coordinator import Coordinator
from hanse_dashboard.flow import Person
from hanse_dashboard.settings import DashboardSettings, OidcSettings

if TYPE_CHECKING:
    from hanse_dashboard.oidc import Provider

__all__ = ["SingleSignOn"]


class SingleSignOn:
    """The provider, and the administrator's token with which the dashboard has people's tokens made."""

    def __init__(
        self, settings: DashboardSettings, oidc: OidcSettings, coordinator: Coordinator, ledger: Ledger
    ) -> None:
        """Nothing is called yet.

        Raises:
            OperatorError: a library or a file of the configuration is missing.
        """
        try:
            from hanse_dashboard.oidc import Provider
        except ImportError as error:
            raise OperatorError(
                f"The key `oidc` needs the Python package {error.name}, which is not installed.",
                remedy="Install hanse[dashboard].",
            ) from error
        self.provider: Provider = Provider(oidc)
        self.label = oidc.label
        self._lifetime_s = settings.session_lifetime.total_seconds()
        self._file = oidc.token_file
        self._coordinator = coordinator
        self._ledger = ledger
        self._issuer()

    def _issuer(self) -> OperatorToken:
        """Read at each use: a mounted secret may be replaced."""
        try:
            return OperatorToken.parse(self._file.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError, HanseError) as error:
            raise OperatorError(
                f"oidc.token_file: {self._file} holds no operator token that can be read.",
                remedy="Make one for the dashboard alone: hanse token create dashboard --role admin.",
            ) from error

    def token_for(self, person: Person) -> OperatorToken:
        """A token in the person's name, as long as a session lasts.

        Raises:
            HanseError: the coordinator does not answer, or does not accept the dashboard's own token.
        """
        request = control_pb2.CreateTokenRequest(name=person.name, role=person.role.value, valid_s=self._lifetime_s)
        with self._coordinator.acting_as(self._issuer()) as control:
            return OperatorToken.parse(control.call("CreateToken", request).secret)

    def made(self, token_id: str) -> bool:
        """Whether a token was made here, for a session."""
        with self._ledger.read() as view:
            token, issuer = view.find_token(token_id), view.find_token(self._issuer().token_id)
        return token is not None and issuer is not None and token.created_by == issuer.name

    def forget(self, token_id: str) -> None:
        """Revoke a token of a session that ends. While the coordinator is away, it ends with its lifetime alone."""
        try:
            with self._coordinator.acting_as(self._issuer()) as control:
                control.call("RevokeToken", control_pb2.RevokeTokenRequest(id=token_id))
        except HanseError as error:
            logger().warning("the session's token was not revoked", token=token_id, reason=str(error))
