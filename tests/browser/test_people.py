"""The four people, each from the door to the answer, in a real browser against a real federation."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hanse.demos.people import run_agents, stop_agents
from hanse.embedded.child import child_environment
from hanse.payload import Payload

from .conftest import NODES, Site, Visitor, expect, make_person, until


def test_the_operator_on_call_sees_what_waits_and_acts(site: Site, visit: Callable[..., Visitor]) -> None:
    page = visit().log_in("operator")
    expect(page.locator("#verdict")).to_contain_text("needs somebody")
    expect(page.locator("#tiles")).to_contain_text("3 of 3")
    waiting = page.locator("#attention li", has_text="Job second is paused")
    expect(waiting).to_contain_text("Operator:")
    waiting.get_by_role("link").click()
    page.locator("#act-resume summary").click()
    page.locator("#act-resume").get_by_label("Why").fill("enough rest")
    page.get_by_role("button", name="Resume this job").click()
    expect(page.locator("#state .chip")).to_have_text("running")
    until(lambda: site.state(site.live) == "running")
    page.locator("#act-pause summary").click()
    page.get_by_role("button", name="Pause this job").click()
    expect(page.locator("#state .chip")).to_have_text("paused")
    page.goto(f"/ledger?job={site.live}&actor=the operator")
    expect(page.locator("#list tbody tr")).to_have_count(2)
    page.locator("#list tbody tr").last.get_by_role("link").first.click()
    expect(page.locator("main")).to_contain_text("enough rest")


def test_the_researcher_compares_jobs_and_takes_the_model_home(
    site: Site, visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    page = visit(accept_downloads=True).log_in("researcher")
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="first").click()
    expect(page.locator("#state .chip")).to_have_text("succeeded")
    expect(page.locator(".chart canvas")).to_be_visible()
    expect(page.locator("svg.grid .solid-good")).not_to_have_count(0)
    expect(page.locator("svg.timeline .waiting")).not_to_have_count(0)
    page.get_by_role("link", name="The whole round").click()
    expect(page.locator("h1")).to_have_text("Round 3")
    page.goto(f"/jobs/{site.done}")
    page.locator("#pictures a").first.click()
    expect(page.locator(".drawing svg").first).to_be_visible()
    expect(page.locator("table tbody tr")).not_to_have_count(0)
    page.goto(f"/compare?job={site.done}&job={site.live}")
    expect(page.locator("tr.differs", has_text="rounds")).to_contain_text("3000")
    page.goto("/models")
    with page.expect_download() as download:
        page.locator("section", has_text="first").get_by_role("link", name="Download").click()
    image = Path(download.value.path()).read_bytes()
    digest = page.locator("section", has_text="first").locator("code.digest").first.inner_text()
    assert hashlib.sha256(image).hexdigest() == digest
    assert Payload.from_image(image).digest.hex() == digest


def test_the_data_protection_officer_sees_what_left_and_that_the_trail_is_whole(
    site: Site, visit: Callable[..., Visitor]
) -> None:
    page = visit().log_in("viewer")
    page.get_by_role("navigation").get_by_role("link", name="Nodes").click()
    page.get_by_role("link", name=NODES[0]).click()
    page.locator("#left tbody").first.get_by_role("link", name="first").click()
    rows = page.locator("#left table").nth(1).locator("tbody tr")
    shown = {code.get_attribute("title") for code in rows.locator("code.digest").all()}
    journal = (site.people[0].state / "egress.jsonl").read_text().splitlines()
    left = {entry["digest"] for entry in map(json.loads, journal) if entry["job"] == site.done}
    assert shown == left
    assert page.get_by_text("Revoke").count() == 0
    page.get_by_role("navigation").get_by_role("link", name="Ledger").click()
    page.get_by_role("button", name="Verify now").click()
    expect(page.locator(".verdict.good")).to_contain_text("is whole")


def test_a_node_is_brought_in_step_by_step(site: Site, visit: Callable[..., Visitor], tmp_path: Path) -> None:
    page = visit().log_in("operator")
    page.get_by_role("navigation").get_by_role("link", name="Onboarding").click()
    page.get_by_label("Name").fill("clinic-new")
    page.get_by_label("Labels").fill("kind=wearable")
    page.get_by_role("button", name="Make the invitation").click()
    invitation = page.locator("section", has_text="Invitation 0").locator(".command").inner_text()
    assert invitation.startswith("HNS1_")
    expect(page.locator("main")).to_contain_text("hanse-agent join agent.yaml --token file:invitation")
    page.get_by_role("link", name="Watch it come").click()
    expect(page.locator("#decide h2")).to_have_text("Waiting for the site")
    page.evaluate("window.untouched = true")

    person = make_person(tmp_path, "clinic-new", 9, site.federation.nodes_address)
    (person.folder / "invitation").write_text(invitation)
    command = ["hanse_agent.main", "join", str(person.config), "--token", f"file:{person.folder / 'invitation'}"]
    joining = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        expect(page.locator("#decide h2")).to_have_text("Compare the fingerprint", timeout=60_000)
        words = page.locator(".fingerprint").inner_text()
        page.get_by_label("I compared it").check()
        page.get_by_role("button", name="Approve clinic-new").click()
        expect(page.locator("#decide h2")).to_have_text("Approved")
        said, _ = joining.communicate(timeout=60)
    finally:
        joining.kill()
    assert joining.returncode == 0, said
    assert words in said
    page.evaluate("window.untouched = true")
    agents = run_agents([person], tmp_path / "logs", lambda _: None)
    try:
        expect(page.locator("#decide h2")).to_have_text("It is in", timeout=60_000)
        assert page.evaluate("window.untouched")
    finally:
        stop_agents(agents)
