"""Logging in through an organisation's own provider (OpenID Connect, authorization code with PKCE).

No replica remembers a log-in that is under way. The browser holds one random secret for ten minutes; state, nonce and
PKCE's verifier are derived from it, so that only the browser that began a log-in can end it, at whichever replica.
The provider says who somebody is and in which groups; the configuration says which role that makes. The dashboard then
has the coordinator make an operator token with that name and role, which lives as long as the session: from there on
everything is as if the person had logged in with a token, and the ledger says who did what.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwk, jwt
from joserfc.errors import JoseError

from hanse.errors import Forbidden, OperatorError, Unauthenticated, Unreachable
from hanse.security import Role
from hanse_dashboard.flow import Flow, Person
from hanse_dashboard.settings import OidcSettings

__all__ = ["Provider"]

_FRESH_S = 3600.0
_TIMEOUT_S = 10.0
_LEEWAY_S = 60
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
_LONGEST_NAME = 100


class Provider:
    """The provider of the configuration. What it says of itself is asked for when it is needed, and kept an hour."""

    def __init__(self, settings: OidcSettings) -> None:
        """Nothing is called yet.

        Raises:
            OperatorError: the client's secret cannot be read, or is empty.
        """
        self.settings = settings
        self._secret = _read_secret(settings)
        self._lock = threading.Lock()
        self._about: Mapping[str, Any] = {}
        self._keys: jwk.KeySet | None = None
        self._asked_at = float("-inf")

    def address(self, flow: Flow, redirect_uri: str) -> str:
        """Where the browser goes to log in.

        Raises:
            Unreachable: the provider does not answer.
            OperatorError: what answers is not the provider that is configured.
        """
        about, _ = self._describe()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": flow.challenge,
            "code_challenge_method": "S256",
        }
        endpoint = str(about["authorization_endpoint"])
        return endpoint + ("&" if "?" in endpoint else "?") + urlencode(asked)

    def logout_address(self, back: str) -> str:
        """Where one logs out at the provider as well; empty where it has no such page, or does not answer."""
        try:
            about, _ = self._describe()
        except (Unreachable, OperatorError):
            return ""
        endpoint = str(about.get("end_session_endpoint") or "")
        asked = {"client_id": self.settings.client_id, "post_logout_redirect_uri": back}
        return endpoint + ("&" if "?" in endpoint else "?") + urlencode(asked) if endpoint else ""

    def redeem(self, flow: Flow, *, code: str, state: str, redirect_uri: str) -> Person:
        """Turn the provider's answer into a person.

        Raises:
            Unauthenticated: the answer belongs to another log-in, was used, or is not the provider's.
            Forbidden: none of the person's groups has a role here.
            Unreachable: the provider does not answer.
        """
        if not hmac.compare_digest(state.encode(), flow.state.encode()):
            raise Unauthenticated(
                "This log-in was begun in another browser, or too long ago.", remedy="Log in again.", code="OIDC_STATE"
            )
        about, keys = self._describe()
        answer = self._fetch(str(about["token_endpoint"]), flow, code, redirect_uri)
        claims = self._claims(answer, keys, flow)
        return Person(name=self._name(claims), role=self._role(claims))

    # ---- The provider's side
    def _describe(self, *, again: bool = False) -> tuple[Mapping[str, Any], jwk.KeySet]:
        with self._lock:
            if again or self._keys is None or time.monotonic() - self._asked_at > _FRESH_S:
                issuer = self.settings.issuer.rstrip("/")
                about = self._get(f"{issuer}/.well-known/openid-configuration")
                if str(about.get("issuer", "")).rstrip("/") != issuer:
                    raise OperatorError(
                        f"The provider calls itself '{str(about.get('issuer'))[:200]}', not '{self.settings.issuer}'.",
                        remedy="Correct the key `oidc.issuer` of the dashboard's configuration.",
                        code="OIDC_ISSUER",
                    )
                missing = [
                    key for key in ("authorization_endpoint", "token_endpoint", "jwks_uri") if not about.get(key)
                ]
                if missing:
                    raise OperatorError(
                        f"The provider at '{issuer}' does not say its {missing[0]}.",
                        remedy="Check that `oidc.issuer` names an OpenID provider, not another of its addresses.",
                        code="OIDC_ISSUER",
                    )
                self._keys = jwk.KeySet.import_key_set(self._get(str(about["jwks_uri"])))  # type: ignore[arg-type]
                self._about, self._asked_at = about, time.monotonic()
            return self._about, self._keys

    def _client(self) -> OAuth2Client:
        return OAuth2Client(
            client_id=self.settings.client_id,
            client_secret=self._secret or None,
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
            verify=str(self.settings.authority) if self.settings.authority else True,
            timeout=_TIMEOUT_S,
        )

    def _get(self, address: str) -> dict[str, Any]:
        try:
            with self._client() as client:
                answer = client.request("GET", address, withhold_token=True)
            answer.raise_for_status()
            found = answer.json()
            if not isinstance(found, dict):
                raise ValueError("it answers no JSON object")
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise _away(error) from error
        return found

    def _fetch(self, endpoint: str, flow: Flow, code: str, redirect_uri: str) -> Mapping[str, Any]:
        try:
            with self._client() as client:
                answer: Mapping[str, Any] = client.fetch_token(
                    endpoint,
                    grant_type="authorization_code",
                    code=code,
                    redirect_uri=redirect_uri,
                    code_verifier=flow.verifier,
                )
        except OAuthError as error:
            told = f" ({str(error.description or error.error)[:200]})"
            if error.error in ("invalid_client", "unauthorized_client"):
                raise OperatorError(
                    f"The provider does not accept this dashboard as its client{told}.",
                    remedy="Check `oidc.client_id` and `oidc.client_secret_file`.",
                    code="OIDC_CLIENT",
                ) from error
            raise Unauthenticated(
                f"The provider does not accept this log-in any more{told}.", remedy="Log in again.", code="OIDC_CODE"
            ) from error
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise _away(error) from error
        return answer

    # ---- What it said
    def _claims(self, answer: Mapping[str, Any], keys: jwk.KeySet, flow: Flow) -> CodeIDToken:
        text = answer.get("id_token")
        if not isinstance(text, str):
            raise OperatorError(
                "The provider sent no ID token.", remedy="`oidc.scopes` must hold openid.", code="OIDC_TOKEN"
            )
        try:
            try:
                token = jwt.decode(text, keys, algorithms=_ALGORITHMS)
            except (JoseError, ValueError):  # perhaps signed with a key that is newer than what we know
                token = jwt.decode(text, self._describe(again=True)[1], algorithms=_ALGORITHMS)
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self._about["issuer"]},
                    "aud": {"essential": True, "value": self.settings.client_id},
                    "nonce": {"essential": True},
                },
                params={
                    "nonce": flow.nonce,
                    "client_id": self.settings.client_id,
                    "access_token": answer.get("access_token"),
                },
            )
            claims.validate(leeway=_LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            raise Unauthenticated(
                f"The provider's answer cannot be trusted ({type(error).__name__}: {str(error)[:200]}).",
                remedy="Log in again; if it happens again, compare the clocks of this machine and of the provider.",
                code="OIDC_TOKEN",
            ) from error
        return claims

    def _name(self, claims: Mapping[str, Any]) -> str:
        key = self.settings.name_claim
        name = "".join(c for c in str(claims.get(key) or "") if c.isprintable()).strip()
        if not name:
            raise OperatorError(
                f"The provider does not say the claim '{key}', by which people are named here.",
                remedy="Choose another with `oidc.name_claim`, or have the provider send it.",
                code="OIDC_NAME",
            )
        if key == "email" and claims.get("email_verified") is False:
            raise Forbidden(
                "The provider has not verified your address.", remedy="Verify it there first.", code="OIDC_NAME"
            )
        return name[:_LONGEST_NAME]

    def _role(self, claims: Mapping[str, Any]) -> Role:
        found: Any = claims
        for part in self.settings.roles_claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        groups = {found} if isinstance(found, str) else set(filter(_is_text, found if isinstance(found, list) else ()))
        roles = [role for group, role in self.settings.roles.items() if group in groups]
        if not roles:
            raise Forbidden(
                "Your account is in none of the groups that may use this dashboard.",
                remedy="Ask whoever runs the federation to give one of your groups a role (`oidc.roles`).",
                code="OIDC_NO_ROLE",
            )
        return max(roles, key=list(Role).index)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _away(error: Exception) -> Unreachable:
    return Unreachable(
        f"The provider that logs people in does not answer as it should ({type(error).__name__}: {str(error)[:200]}).",
        remedy="Try again later, or log in with an operator token.",
        code="OIDC_UNREACHABLE",
    )


def _read_secret(settings: OidcSettings) -> str:
    path = settings.client_secret_file
    if path is None:
        return ""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(
            f"oidc.client_secret_file: {path} cannot be read: {error}.", remedy="Check the path and its permissions."
        ) from error
    if not secret:
        raise OperatorError(f"oidc.client_secret_file: {path} is empty.", remedy="Put the client's secret in it.")
    return secret
