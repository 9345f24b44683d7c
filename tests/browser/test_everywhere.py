"""What holds on every page: no serious finding of axe, no breach of the policy, a phone, no script, the keyboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import NODES, Site, Visitor, expect

LISTEN = """
window.breaches = [];
document.addEventListener("securitypolicyviolation",
  (e) => window.breaches.push(e.violatedDirective + " " + e.blockedURI));
"""


def pages(site: Site) -> list[str]:
    return [
        "/", "/jobs", f"/jobs/{site.done}", f"/jobs/{site.live}", f"/jobs/{site.done}/rounds/2", "/nodes",
        f"/nodes/{NODES[0]}", "/onboarding", f"/onboarding/{NODES[0]}", "/compare",
        f"/compare?job={site.done}&job={site.live}", "/models", "/ledger", "/ledger?q=first", "/ledger/3", "/access",
        "/system", "/help", "/pictures/1", "/pictures/2", "/pictures/3", "/nodes?q=nobody",
    ]  # fmt: skip


def test_axe_finds_nothing_serious_and_the_policy_is_never_broken(
    site: Site, visit: Callable[..., Visitor], assets: Path
) -> None:
    axe = (assets / "axe.min.js").read_text()
    visitor = visit(reduced_motion="reduce")
    page = visitor.page
    page.add_init_script(LISTEN)
    found: dict[str, list[str]] = {}
    for path in ["/login", *pages(site)]:
        if path == "/":
            visitor.log_in("admin")
        page.goto(path)
        page.evaluate(axe)
        found[path] = run_axe(page, {})
        page.emulate_media(color_scheme="dark")
        found[f"{path}, dark"] = run_axe(page, {"runOnly": ["color-contrast"]})  # nothing else differs
        page.emulate_media(color_scheme="light")
        assert page.evaluate("window.breaches") == [], path
    assert {path: serious for path, serious in found.items() if serious} == {}


def run_axe(page: Any, options: dict[str, Any]) -> list[str]:
    result = page.evaluate("options => axe.run(document, {resultTypes: ['violations'], ...options})", options)
    return [
        json.dumps([item["id"], [node["target"] + [node["html"][:120]] for node in item["nodes"][:3]]])
        for item in result["violations"]
        if item["impact"] in ("serious", "critical")
    ]


def test_on_a_phone_no_page_is_wider_than_the_screen(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(device_scale_factor=2, is_mobile=True, has_touch=True)
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    page = visitor.log_in("admin")
    wide = {}
    for path in pages(site):
        page.goto(path)
        excess = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if excess > 0:
            wide[path] = excess
    assert wide == {}
    page.goto("/")
    page.locator(".menu summary").click()
    page.locator(".menu").get_by_role("link", name="Nodes").click()
    expect(page.locator("h1")).to_have_text("Nodes")


def test_without_script_the_pages_are_links_and_forms(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(java_script_enabled=False)
    page = visitor.log_in("admin")
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    page.get_by_label("Name").fill("firs")
    page.get_by_label("Name").press("Enter")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="first").click()
    expect(page.locator(".chart svg")).to_be_visible()
    expect(page.locator("svg.grid")).to_be_visible()
    page.get_by_role("button", name="Dark page").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.goto("/ledger")
    page.get_by_role("button", name="Verify now").click()
    expect(page.locator(".verdict.good")).to_be_visible()


def test_the_keyboard_is_enough(site: Site, visit: Callable[..., Visitor]) -> None:
    page = visit().log_in("viewer")
    page.goto("/nodes")
    page.keyboard.press("/")
    page.keyboard.type("clinic-b")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    assert "q=clinic-b" in page.url
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("clinic-b")
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page.locator("h1")).to_have_text("Ledger")
    page.keyboard.press("?")
    expect(page.locator("h1")).to_have_text("Keys and words")
