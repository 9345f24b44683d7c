"""A small OpenID Connect provider for tests: it logs in whoever `user` says, and lies when it is told to."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwk, jwt

CLIENT, SECRET = "the dashboard", "the client's secret"


@dataclass
class LocalProvider:
    """What the provider knows, and how it misbehaves."""

    issuer: str = ""
    user: dict[str, Any] = field(default_factory=lambda: {"sub": "1", "email": "ada@example.org", "groups": ["staff"]})
    refuse: str = ""
    """Error with which the browser is sent back."""
    lie: dict[str, Any] = field(default_factory=dict)
    """Claims that are put into the ID token instead of the true ones."""
    key: jwk.RSAKey = field(default_factory=lambda: jwk.RSAKey.generate_key(2048, {"kid": "one"}))
    signing_key: jwk.RSAKey | None = None
    """What tokens are signed with, when it is not the key that is published."""
    public: bool = False
    """Whether the client has no secret."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    """The parameters of each log-in."""

    def describe(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "end_session_endpoint": f"{self.issuer}/logout",
        }

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser goes next."""
        self.asked.append(asked)
        if self.refuse:
            answer = {"error": self.refuse, "error_description": "No <b>entry</b>.", "state": asked["state"]}
        else:
            code = secrets.token_urlsafe(16)
            self.codes[code] = asked
            answer = {"code": code, "state": asked["state"]}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def redeem(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        shown = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if not self.public and authorization.removeprefix("Basic ") != shown:
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None or asked["redirect_uri"] != form["redirect_uri"]:
            return 400, {"error": "invalid_grant", "error_description": "The code is unknown or was used."}
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if asked["code_challenge"] != base64.urlsafe_b64encode(digest).rstrip(b"=").decode():
            return 400, {"error": "invalid_grant", "error_description": "PKCE failed."}
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.user,
            **self.lie,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        key = self.signing_key or self.key
        token = jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)
        return 200, {"access_token": "a", "token_type": "Bearer", "expires_in": 300, "id_token": token}


@contextmanager
def local_provider() -> Iterator[LocalProvider]:
    """A provider on a free port of this machine."""
    provider = LocalProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("Location", provider.authorize(asked))
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif parts.path == "/keys":
                self._json(200, {"keys": [provider.key.as_dict(private=False)]})
            else:
                self._json(200, provider.describe())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {key: values[0] for key, values in parse_qs(body).items()}
            self._json(*provider.redeem(form, self.headers.get("Authorization", "")))

        def _json(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
