"""Logging in through an organisation's provider: who gets in, as whom, and what a false answer comes to."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwk
from starlette.testclient import TestClient

from hanse.errors import OperatorError, Unreachable
from hanse.security import OperatorToken, Role
from hanse.settings import validate
from hanse_dashboard.access import COOKIE
from hanse_dashboard.coordinator import Coordinator
from hanse_dashboard.settings import OidcSettings

from .conftest import World, csrf, open_client
from .provider import CLIENT, SECRET, LocalProvider, local_provider

ROLES = {"staff": "viewer", "science": "researcher", "office": "admin"}


class Mint:
    """Plays the coordinator: makes and revokes tokens in the ledger, as it would."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.away = False
        self.made: list[Any] = []
        self.newest = ""

    @contextmanager
    def acting_as(self, token: OperatorToken) -> Iterator[Any]:
        if self.away:
            raise Unreachable("the coordinator cannot be reached.")
        with self.world.ledger.read() as view:
            issuer = view.find_token(token.token_id)
        assert issuer is not None

        def call(method: str, request: Any) -> Any:
            with self.world.ledger.write(self.world.epoch) as tx:
                if method == "RevokeToken":
                    return tx.revoke_token(request.id)
                assert method == "CreateToken"
                self.made.append(request)
                secret = OperatorToken.create()
                self.newest = secret.token_id
                tx.add_token(
                    id=secret.token_id,
                    name=request.name,
                    role=request.role,
                    secret_hash=secret.digest.hex(),
                    created_by=issuer.name,
                    expires_at=time.time() + request.valid_s,
                )
                return SimpleNamespace(secret=secret.text())

        yield SimpleNamespace(call=call)


@pytest.fixture
def mint(world: World, monkeypatch: pytest.MonkeyPatch) -> Mint:
    made = Mint(world)
    monkeypatch.setattr(Coordinator, "acting_as", lambda _, token: made.acting_as(token))
    return made


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with local_provider() as made:
        yield made


def oidc(world: World, provider: LocalProvider, tmp_path: Path, **changes: Any) -> OidcSettings:
    token, secret = tmp_path / "issuer.token", tmp_path / "client.secret"
    token.write_text(world.tokens[Role.ADMIN].text() + "\n")
    secret.write_text(SECRET + "\n")
    document = {
        "issuer": provider.issuer,
        "client_id": CLIENT,
        "client_secret_file": str(secret),
        "roles": ROLES,
        "token_file": str(token),
    }
    return validate(OidcSettings, document | changes, source="test")


@pytest.fixture
def browser(world: World, provider: LocalProvider, mint: Mint, tmp_path: Path) -> Iterator[TestClient]:
    with open_client(world, None, oidc=oidc(world, provider, tmp_path)) as opened:
        yield opened


def visit_provider(browser: TestClient, next_page: str = "") -> str:
    """Begin at the dashboard, log in at the provider; the path with which the browser comes back."""
    begun = browser.get("/login/oidc", params={"next": next_page} if next_page else {})
    assert begun.status_code == 303, begun.text
    with httpx2.Client(trust_env=False) as outside:
        sent = outside.get(begun.headers["location"])
    parts = urlsplit(sent.headers["location"])
    assert parts.path == "/login/oidc/back"
    return f"{parts.path}?{parts.query}"


def log_in(browser: TestClient, next_page: str = "") -> Any:
    return browser.get(visit_provider(browser, next_page))


def words(answer: Any) -> str:
    """The sentence that the page shows to a person."""
    shown = re.search(r'role="alert">.*?<p>(.*?)</p>', answer.text, re.DOTALL)
    assert shown, answer.text
    return html.unescape(shown[1])


def test_somebody_comes_in_and_lands_where_they_wanted_to_be(
    browser: TestClient, provider: LocalProvider, mint: Mint
) -> None:
    answer = log_in(browser, "/jobs?state=running")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=running")
    page = browser.get("/jobs?state=running")
    assert page.status_code == 200
    assert "ada@example.org" in page.text
    ((made),) = mint.made
    assert (made.name, made.role, made.valid_s) == ("ada@example.org", "viewer", 12 * 3600)
    (asked,) = provider.asked
    assert asked["code_challenge_method"] == "S256"
    assert len(asked["nonce"]) == 43
    assert asked["scope"] == "openid profile email"
    assert "code_verifier" not in asked


def test_the_door_shows_both_ways_in(browser: TestClient, world: World) -> None:
    page = browser.get("/login?next=/nodes").text
    assert "Log in with your organisation" in page
    assert "/login/oidc?next=%2Fnodes" in page
    assert 'name="token"' in page
    assert browser.post("/login", data={"token": world.tokens[Role.VIEWER].text()}).status_code == 303
    assert "the viewer" in browser.get("/").text


@pytest.mark.parametrize(
    ("groups", "role"),
    [(["staff"], "viewer"), (["staff", "science"], "researcher"), ("office", "admin"), (["x", "office"], "admin")],
)
def test_groups_make_roles_and_the_highest_counts(
    browser: TestClient, provider: LocalProvider, mint: Mint, groups: Any, role: str
) -> None:
    provider.user["groups"] = groups
    assert log_in(browser).status_code == 303
    assert mint.made[-1].role == role


@pytest.mark.parametrize("groups", [[], ["strangers"], None, {"staff": 1}, [["staff"]], 7])
def test_who_is_in_no_group_does_not_get_in(
    browser: TestClient, provider: LocalProvider, mint: Mint, groups: Any
) -> None:
    provider.user["groups"] = groups
    answer = log_in(browser)
    assert answer.status_code == 403
    assert "none of the groups" in words(answer)
    assert (mint.made, COOKIE in browser.cookies) == ([], False)


def test_groups_may_stand_deeper_and_names_may_be_another_claim(
    world: World, provider: LocalProvider, mint: Mint, tmp_path: Path
) -> None:
    provider.user = {"sub": "1", "preferred_username": "ada", "realm_access": {"roles": ["office"]}}
    settings = oidc(world, provider, tmp_path, name_claim="preferred_username", roles_claim="realm_access.roles")
    with open_client(world, None, oidc=settings) as browser:
        assert log_in(browser).status_code == 303
    assert (mint.made[-1].name, mint.made[-1].role) == ("ada", "admin")


def test_a_public_client_shows_no_secret(world: World, provider: LocalProvider, mint: Mint, tmp_path: Path) -> None:
    provider.public = True
    with open_client(world, None, oidc=oidc(world, provider, tmp_path, client_secret_file=None)) as browser:
        assert log_in(browser).status_code == 303


# ---- What is false
LIES = {
    "another log-in's nonce": {"nonce": "x"},
    "no nonce": {"nonce": None},
    "another audience": {"aud": "another client"},
    "another issuer": {"iss": "https://evil.example"},
    "too old": {"exp": 1_000_000_000, "iat": 999_999_000},
    "no subject": {"sub": None},
    "for somebody else as well": {"aud": [CLIENT, "other"], "azp": "other"},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_a_token_that_is_not_for_this_log_in_is_refused(
    browser: TestClient, provider: LocalProvider, mint: Mint, lie: dict[str, Any]
) -> None:
    provider.lie = lie
    answer = log_in(browser)
    assert answer.status_code == 401
    assert "cannot be trusted" in words(answer)
    assert (mint.made, COOKIE in browser.cookies) == ([], False)


def test_a_token_of_another_key_is_refused_and_a_new_key_is_learnt(
    browser: TestClient, provider: LocalProvider, mint: Mint
) -> None:
    assert log_in(browser).status_code == 303
    provider.signing_key = jwk.RSAKey.generate_key(2048, {"kid": "two"})
    assert "cannot be trusted" in words(log_in(browser))
    provider.key = provider.signing_key  # now it is published: the provider has changed its key
    assert log_in(browser).status_code == 303


def test_a_code_works_once_and_only_in_the_browser_that_began(
    browser: TestClient, provider: LocalProvider, world: World, mint: Mint, tmp_path: Path
) -> None:
    way_back = visit_provider(browser)
    with open_client(world, None, oidc=oidc(world, provider, tmp_path)) as other:
        assert "another browser" in words(other.get(way_back))  # it has no secret
        visit_provider(other)
        assert "another browser" in words(other.get(way_back))  # it has another
        assert COOKIE not in other.cookies
    assert browser.get(way_back).status_code == 303
    assert "another browser" in words(browser.get(way_back))  # the secret was used up


def test_another_replica_may_end_what_one_began(
    browser: TestClient, provider: LocalProvider, world: World, mint: Mint, tmp_path: Path
) -> None:
    way_back = visit_provider(browser)
    with open_client(world, None, oidc=oidc(world, provider, tmp_path)) as other:
        other.cookies.set("hanse_login", browser.cookies["hanse_login"])
        assert other.get(way_back).status_code == 303


def test_a_log_in_that_was_begun_elsewhere_fails_at_the_provider_too(
    browser: TestClient, provider: LocalProvider, mint: Mint
) -> None:
    way_back = visit_provider(browser)
    code = parse_qs(urlsplit(way_back).query)["code"][0]
    provider.codes[code]["code_challenge"] = "of another verifier"
    answer = browser.get(way_back)
    assert answer.status_code == 401
    assert "PKCE failed" in words(answer)


# ---- What goes wrong
def test_a_refusal_of_the_provider_is_told_and_shows_no_markup(browser: TestClient, provider: LocalProvider) -> None:
    provider.refuse = "access_denied"
    answer = log_in(browser)
    assert answer.status_code == 401
    assert "<b>" not in answer.text
    assert "The provider did not log you in: No <b>entry</b>." in words(answer)


def test_a_provider_that_is_away_leaves_the_tokens(world: World, mint: Mint, tmp_path: Path) -> None:
    with local_provider() as provider:
        settings = oidc(world, provider, tmp_path)
    with open_client(world, None, oidc=settings) as browser:
        answer = browser.get("/login/oidc")
        assert answer.status_code == 503
        assert "does not answer" in words(answer)
        assert "operator token" in words(answer)
        assert browser.post("/login", data={"token": world.tokens[Role.VIEWER].text()}).status_code == 303


def test_a_coordinator_that_is_away_is_told(browser: TestClient, mint: Mint) -> None:
    mint.away = True
    answer = log_in(browser)
    assert answer.status_code == 503
    assert "coordinator cannot be reached" in words(answer).lower().replace("the ", "")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"client_id": "somebody else"}, "does not accept this dashboard as its client"),
        ({"name_claim": "nickname"}, "does not say the claim 'nickname'"),
    ],
)
def test_a_wrong_configuration_is_named(
    world: World, provider: LocalProvider, mint: Mint, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with open_client(world, None, oidc=oidc(world, provider, tmp_path, **changes)) as browser:
        assert sentence in words(log_in(browser))


def test_another_issuer_at_the_address_is_named(world: World, provider: LocalProvider, tmp_path: Path) -> None:
    settings = oidc(world, provider, tmp_path)
    provider.issuer = "https://evil.example"
    with open_client(world, None, oidc=settings) as browser:
        assert "calls itself 'https://evil.example'" in words(browser.get("/login/oidc"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"issuer": "http://login.example.org"}, "issuer: must be an https:// address"),
        ({"roles": {}}, "roles"),
        ({"roles": {"staff": "king"}}, "roles.staff"),
    ],
)
def test_what_cannot_be_is_named_at_the_start(
    world: World, provider: LocalProvider, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(OperatorError, match=re.escape(named)):
        oidc(world, provider, tmp_path, **changes)


@pytest.mark.parametrize("file", ["token_file", "client_secret_file"])
def test_a_missing_file_stops_the_start(world: World, provider: LocalProvider, tmp_path: Path, file: str) -> None:
    settings = oidc(world, provider, tmp_path, **{file: str(tmp_path / "none")})
    with pytest.raises(OperatorError, match=f"oidc.{file}"), open_client(world, None, oidc=settings):
        pass


def test_without_a_provider_there_is_no_such_door(world: World) -> None:
    with open_client(world, None) as browser:
        assert browser.get("/login/oidc").status_code == 404
        assert "/login/oidc" not in browser.get("/login").text


# ---- The end
def test_logging_out_revokes_the_sessions_token_and_offers_the_providers_door(
    browser: TestClient, provider: LocalProvider, world: World, mint: Mint
) -> None:
    log_in(browser)
    secret = browser.cookies[COOKIE]
    answer = browser.post("/logout", data={"csrf": csrf(browser)})
    assert answer.headers["location"] == "/login?why=LOGGED_OUT"
    page = browser.get(answer.headers["location"]).text
    assert f"{provider.issuer}/logout?client_id=" in page
    browser.cookies.set(COOKIE, secret)
    assert browser.get("/").status_code == 303
    with world.ledger.read() as view:
        assert view.token(mint.newest).revoked_at is not None


def test_a_session_ends_with_its_lifetime(
    browser: TestClient, world: World, provider: LocalProvider, mint: Mint, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(browser)
    assert browser.get("/").status_code == 200
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 13 * 3600)
    assert browser.get("/").headers["location"].startswith("/login?")


def test_logging_out_with_an_own_token_revokes_nothing(browser: TestClient, world: World, mint: Mint) -> None:
    browser.post("/login", data={"token": world.tokens[Role.VIEWER].text()})
    assert browser.post("/logout", data={"csrf": csrf(browser)}).headers["location"] == "/login"
    with world.ledger.read() as view:
        assert view.token(world.tokens[Role.VIEWER].token_id).revoked_at is None
