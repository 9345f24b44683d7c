"""Who gets in, what their role allows, and what another site's page cannot do."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from starlette.testclient import TestClient

from hanse.security import OperatorToken, Role
from hanse_dashboard.access import COOKIE
from hanse_dashboard.coordinator import Coordinator
from hanse_dashboard.sessions import LoginDesk
from hanse_dashboard.state import Dashboard

from .conftest import Clock, World, csrf, open_client


class Recorder:
    """Plays the coordinator: remembers who asked for what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []

    @contextmanager
    def acting_as(self, token: OperatorToken) -> Any:
        recorder = self

        class Control:
            def call(self, method: str, request: Any) -> Any:
                recorder.calls.append((token.token_id, method, request))
                return type("Answer", (), {"name": "activity", "state": "paused", "trust": "approved"})()

        yield Control()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(Coordinator, "acting_as", lambda _, token: made.acting_as(token))
    return made


def test_who_is_not_logged_in_is_sent_to_the_door_and_comes_back(stranger: TestClient) -> None:
    answer = stranger.get("/jobs?state=running")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fjobs%3Fstate%3Drunning&why=NOT_LOGGED_IN"


def test_after_logging_in_one_is_where_one_wanted_to_be(world: World, stranger: TestClient) -> None:
    form = {"token": world.tokens[Role.VIEWER].text(), "next": "/jobs?state=running"}
    answer = stranger.post("/login", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=running")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()


@pytest.mark.parametrize("next_page", ["https://evil.example/", "//evil.example", "/\\evil.example", "evil", "/a\nb"])
def test_the_door_leads_only_inside(world: World, stranger: TestClient, next_page: str) -> None:
    answer = stranger.post("/login", data={"token": world.tokens[Role.VIEWER].text(), "next": next_page})
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize("shown", ["", "hanse_x", "x" * 400, OperatorToken.create().text()])
def test_a_bad_token_is_refused_and_not_repeated(stranger: TestClient, shown: str) -> None:
    answer = stranger.post("/login", data={"token": shown})
    assert answer.status_code == 401
    assert COOKIE not in stranger.cookies
    assert not shown or shown not in answer.text


def test_too_many_attempts_must_wait_and_a_good_one_forgives(world: World) -> None:
    good = {"token": world.tokens[Role.VIEWER].text()}
    with open_client(world, None) as patient:
        patient.post("/login", data=good)  # forgives whatever other tests have tried
        with open_client(world, None, login_attempts=3) as hasty:
            codes = [hasty.post("/login", data={"token": "hanse_x"}).status_code for _ in range(4)]
            assert codes == [401, 401, 401, 429]
            refused = hasty.post("/login", data=good)
            assert refused.status_code == 429
            assert "Wait" in refused.text
            assert patient.post("/login", data=good).status_code == 303
            assert hasty.post("/login", data={"token": "hanse_x"}).status_code == 401


def test_a_session_ends_by_logging_out(world: World, stranger: TestClient) -> None:
    stranger.post("/login", data={"token": world.tokens[Role.VIEWER].text()})
    assert stranger.get("/").status_code == 200
    secret = stranger.cookies[COOKIE]
    assert stranger.post("/logout", data={"csrf": csrf(stranger)}).status_code == 303
    stranger.cookies.set(COOKIE, secret)
    assert stranger.get("/").status_code == 303


def test_a_revoked_token_ends_its_sessions_at_once(world: World) -> None:
    token = OperatorToken.create()
    with world.ledger.write(world.epoch) as tx:
        tx.add_token(
            id=token.token_id,
            name="short",
            role="viewer",
            secret_hash=token.digest.hex(),
            created_by="t",
            expires_at=4e9,
        )
    with open_client(world, None) as browser:
        assert browser.post("/login", data={"token": token.text()}).status_code == 303
        assert browser.get("/").status_code == 200
        with world.ledger.write(world.epoch) as tx:
            tx.revoke_token(token.token_id)
        assert "why=TOKEN_REVOKED" in browser.get("/").headers["location"]
        assert browser.get("/", headers={"HX-Request": "true"}).headers["HX-Redirect"].startswith("/login")


def test_sessions_run_out_and_idle_ones_sooner(world: World) -> None:
    clock = Clock()
    limits = {"lifetime": timedelta(hours=2), "idle": timedelta(hours=1), "window": timedelta(minutes=5)}
    desk = LoginDesk(world.url, attempts=3, wall_clock=clock, **limits)
    secret, expires = desk.open(world.tokens[Role.VIEWER])
    assert expires == clock.now + 7200
    clock.now += 3500
    assert desk.find(secret) is not None
    clock.now += 3500
    assert desk.find(secret) is not None
    clock.now += 150
    assert desk.find(secret) is not None
    clock.now += 100
    assert desk.find(secret) is None
    idle, _ = desk.open(world.tokens[Role.VIEWER])
    clock.now += 3601
    assert desk.find(idle) is None
    desk.close()


def test_the_database_alone_gives_no_token_and_no_session(world: World, client: TestClient) -> None:
    secret = client.cookies[COOKIE]
    engine = create_engine(world.url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, token, sealed FROM login_session")).all()
    engine.dispose()
    whole = repr(rows)
    assert secret not in whole
    for token in world.tokens.values():
        assert token.secret not in whole
        assert not any(token.secret.encode() in bytes(row.sealed) for row in rows)
    desk: Dashboard = client.app.state.dashboard  # type: ignore[attr-defined]
    assert [desk.desk.find(row.id) for row in rows] == [None] * len(rows)


def test_two_replicas_serve_the_same_session(world: World, client: TestClient) -> None:
    with open_client(world, None) as other:
        other.cookies.set(COOKIE, client.cookies[COOKIE])
        assert other.get("/").status_code == 200


def test_a_link_logs_in_once(world: World) -> None:
    file = world.folder / "admin.token"
    file.write_text(world.tokens[Role.ADMIN].text() + "\n")
    code = OperatorToken.create().secret
    link = {"login_link_sha256": hashlib.sha256(code.encode()).hexdigest(), "login_link_token": file}
    with open_client(world, None, **link) as browser:
        assert 'name="code"' in browser.get(f"/login?code={code}").text
        assert browser.post("/login", data={"code": "another"}).status_code == 401
        assert browser.post("/login", data={"code": code}).status_code == 303
        assert browser.get("/").status_code == 200
    with open_client(world, None, **link) as browser:
        assert "used already" in browser.post("/login", data={"code": code}).text
        assert browser.get("/").status_code == 303


# ---- Roles
REFUSED = [
    (Role.VIEWER, "/jobs/{good}/pause", "researcher"),
    (Role.VIEWER, "/jobs/{good}/cancel", "researcher"),
    (Role.RESEARCHER, "/nodes/node-1/revoke", "operator"),
    (Role.RESEARCHER, "/onboarding/new-node/approve", "operator"),
    (Role.RESEARCHER, "/onboarding", "operator"),
    (Role.OPERATOR, "/access/tokens", "admin"),
    (Role.OPERATOR, "/access/tokens/x/revoke", "admin"),
    (Role.VIEWER, "/api/v1/jobs/{good}/pause", "researcher"),
    (Role.RESEARCHER, "/api/v1/nodes/node-1/approve", "operator"),
]


@pytest.mark.parametrize(("role", "path", "needed"), REFUSED)
def test_a_refusal_names_the_role_that_is_missing(
    world: World, stranger: TestClient, recorder: Recorder, role: Role, path: str, needed: str
) -> None:
    fields = {"name": "x", "role": "viewer", "confirm": "node-1", "compared": "yes", "fingerprint": "x"}
    stranger.post("/login", data={"token": world.tokens[role].text()})
    form = fields | {"csrf": csrf(stranger)}
    where = path.format(good=world.good)
    if where.startswith("/api/"):
        answer = stranger.post(where, json=fields, headers={"X-CSRF-Token": form["csrf"]})
    else:
        answer = stranger.post(where, data=form)
    assert answer.status_code == 403
    assert f"role {needed}" in answer.text
    assert recorder.calls == []


def test_tokens_are_seen_by_administrators_alone(world: World) -> None:
    with open_client(world, Role.OPERATOR) as browser:
        assert "the viewer" not in browser.get("/access").text
        assert browser.get("/api/v1/tokens").status_code == 403
    with open_client(world, Role.ADMIN) as browser:
        assert "the viewer" in browser.get("/access").text
        assert not any(token.secret in browser.get("/api/v1/tokens").text for token in world.tokens.values())


def test_a_download_needs_a_researcher(world: World) -> None:
    with open_client(world, Role.VIEWER) as browser:
        assert browser.get(f"/models/{world.good}/download").status_code == 403


# ---- Intent
def test_an_action_goes_to_the_coordinator_in_the_callers_own_name(world: World, recorder: Recorder) -> None:
    with open_client(world, Role.RESEARCHER) as browser:
        form = {"csrf": csrf(browser), "why": "a rest"}
        answer = browser.post(f"/jobs/{world.running}/pause", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{world.running}")
    ((who, method, request),) = recorder.calls
    assert (who, method) == (world.tokens[Role.RESEARCHER].token_id, "PauseJob")
    assert (request.job, request.why) == (world.running, "a rest")


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": ""}])
def test_another_sites_form_changes_nothing(
    world: World, client: TestClient, recorder: Recorder, headers: dict[str, str]
) -> None:
    form = {"csrf": csrf(client)}
    assert client.post(f"/jobs/{world.running}/pause", data=form, headers=headers).status_code == 403
    assert client.post("/login", data={"token": world.tokens[Role.VIEWER].text()}, headers=headers).status_code == 403
    assert recorder.calls == []


def test_a_form_without_the_sessions_own_secret_changes_nothing(
    world: World, client: TestClient, recorder: Recorder
) -> None:
    for form in ({}, {"csrf": "x"}):
        answer = client.post(f"/jobs/{world.running}/pause", data=form)
        assert answer.status_code == 403
        assert "another session" in answer.text
    assert client.post(f"/api/v1/jobs/{world.running}/pause", json={}).status_code == 403
    assert recorder.calls == []


def test_a_token_in_the_request_needs_no_form(world: World, stranger: TestClient, recorder: Recorder) -> None:
    headers = {"Authorization": f"Bearer {world.tokens[Role.RESEARCHER].text()}", "Origin": "https://elsewhere.example"}
    answer = stranger.post(f"/api/v1/jobs/{world.running}/pause", json={"why": "x"}, headers=headers)
    assert answer.json() == {"name": "activity", "state": "paused"}
    assert recorder.calls[0][1] == "PauseJob"


def test_what_cannot_be_undone_asks_for_the_name(world: World, client: TestClient, recorder: Recorder) -> None:
    form = {"csrf": csrf(client)}
    wrong = client.post(f"/jobs/{world.running}/cancel", data=form | {"confirm": "other"})
    assert (wrong.status_code, "Type second" in wrong.text) == (400, True)
    assert client.post("/nodes/node-1/revoke", data=form | {"confirm": "node-2"}).status_code == 400
    assert client.post("/onboarding/new-node/approve", data=form | {"fingerprint": "babab"}).status_code == 400
    assert recorder.calls == []
    assert client.post(f"/jobs/{world.running}/cancel", data=form | {"confirm": "second"}).status_code == 303
    assert client.post("/nodes/node-1/revoke", data=form | {"confirm": "node-1"}).status_code == 303
    assert [method for _, method, _ in recorder.calls] == ["CancelJob", "RevokeNode"]


def test_a_coordinator_that_is_gone_is_told_in_a_sentence(world: World, client: TestClient) -> None:
    answer = client.post(f"/jobs/{world.running}/pause", data={"csrf": csrf(client)})
    assert answer.status_code == 503
    assert "cannot be reached" in answer.text


def test_the_dashboard_writes_only_its_own_tables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_client(world, Role.VIEWER) as browser:
        desk: Dashboard = browser.app.state.dashboard  # type: ignore[attr-defined]
        before = {name: _count(world, name) for name in ("event", "job", "node", "operator_token", "contribution")}
        for path in ("/", "/jobs", "/nodes", "/ledger", "/models"):
            assert browser.get(path).status_code == 200
        browser.post("/ledger/verify", data={"csrf": csrf(browser)})
        assert desk.ledger is not None
    assert {name: _count(world, name) for name in before} == before


def _count(world: World, table: str) -> int:
    engine = create_engine(world.url)
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    engine.dispose()
    return int(found)
