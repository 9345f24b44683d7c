"""Through an organisation's provider, in a real browser and with a real coordinator: in, at work, and out again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hanse.ledger import Ledger
from tests.unit.dashboard.provider import CLIENT, SECRET, local_provider

from .conftest import Browser, Site, Visitor, expect, start_dashboard


def test_a_person_comes_in_acts_in_their_own_name_and_leaves(site: Site, chromium: Browser, tmp_path: Path) -> None:
    secret = tmp_path / "client.secret"
    secret.write_text(SECRET)
    with local_provider() as provider:
        provider.issuer = provider.issuer.replace("127.0.0.1", "localhost")  # another site than the dashboard's
        provider.user["groups"] = ["science"]
        oidc = {
            "issuer": provider.issuer,
            "client_id": CLIENT,
            "client_secret_file": str(secret),
            "roles": {"science": "researcher"},
            "token_file": str(site.federation.token_file),
        }
        dashboard, url = start_dashboard(tmp_path, site.federation, site.relay.port, oidc=oidc)
        visitor = Visitor(chromium, replace(site, url=url))
        try:
            page = visitor.page
            page.goto(f"/jobs/{site.live}")
            page.get_by_role("link", name="Log in with your organisation").click()
            page.wait_for_url(f"**/jobs/{site.live}")
            expect(page.locator("#live")).to_have_text("live")
            expect(page.get_by_text("ada@example.org").first).to_be_visible()
            page.locator("#act-resume summary").click()
            page.locator("#why-resume").fill("single sign-on")
            page.get_by_role("button", name="Resume this job").click()
            expect(page.locator("#state")).to_contain_text("running")
            page.locator("#act-pause summary").click()
            page.get_by_role("button", name="Pause this job").click()
            expect(page.locator("#state")).to_contain_text("@example.org paused the job")
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_role("link", name="Log out at your organisation as well")).to_be_visible()
            page.goto("/")
            page.wait_for_url("**/login**")
        finally:
            visitor.context.close()
            dashboard.stop()
    with Ledger.open(f"sqlite:///{site.federation.ledger_file}", read_only=True) as ledger, ledger.read() as view:
        (token,) = [item for item in view.tokens() if item.name == "ada@example.org"]
        assert (token.role, token.revoked_at is not None) == ("researcher", True)
        acts = {event.kind for event in view.events(job=site.live) if event.actor == "ada@example.org"}
    assert {"job_waiting", "job_paused"} <= acts
    policy = [words for words in visitor.complaints if "Content Security Policy" in words]
    assert policy == []
