"""Pages that stay true while one looks at them: new rounds, a coordinator that goes, a session that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hanse.v1 import control_pb2

from .conftest import Site, Visitor, expect, until


@pytest.fixture
def running(site: Site) -> Iterator[None]:
    """The long job runs while the test does."""
    site.control.call("ResumeJob", control_pb2.ChangeJobRequest(job=site.live, why="a test"))
    yield
    site.control.call("PauseJob", control_pb2.ChangeJobRequest(job=site.live, why="a test is over"))


@pytest.mark.usefixtures("running")
def test_a_job_page_follows_the_job_without_a_reload(site: Site, visit: Callable[..., Visitor]) -> None:
    page = visit().log_in("viewer")
    page.goto(f"/jobs/{site.live}")
    page.evaluate("window.untouched = true")
    expect(page.locator("#live")).to_contain_text("live")

    def shown() -> int:
        return int(page.locator("#facts .value").first.inner_text().split()[0])

    begun = shown()
    until(lambda: shown() >= begun + 2)
    assert page.evaluate("window.untouched")
    assert page.locator("svg.grid .solid-good").count() > 0


@pytest.mark.usefixtures("running")
def test_a_list_offers_what_is_new_and_does_not_move(site: Site, visit: Callable[..., Visitor]) -> None:
    page = visit().log_in("viewer")
    page.goto("/ledger")
    first = page.locator("#list tbody tr").first.inner_text()
    expect(page.locator("#news")).to_be_visible()
    assert page.locator("#list tbody tr").first.inner_text() == first
    page.locator("#news").click()
    page.wait_for_load_state()
    assert page.locator("#list tbody tr").first.inner_text() != first


def test_a_coordinator_that_goes_is_told_and_its_return_as_well(site: Site, visit: Callable[..., Visitor]) -> None:
    page = visit(expected="503").log_in("researcher")
    page.goto(f"/jobs/{site.live}")
    page.evaluate("window.untouched = true")
    expect(page.locator("#live")).to_have_text("live")
    site.relay.cut()
    try:
        expect(page.locator("#notices")).to_contain_text("The coordinator does not answer")
        expect(page.locator("#live")).to_contain_text("coordinator away")
        assert page.evaluate("window.untouched")
        page.locator("#act-cancel summary").click()
        page.locator("#act-cancel").get_by_label("to confirm").fill("second")
        page.get_by_role("button", name="Cancel this job").click()
        expect(page.locator("main")).to_contain_text("Whose move: platform")
        page.goto("/")
        expect(page.locator("#verdict")).to_contain_text("does not answer")
        page.goto("/nodes")
        expect(page.locator("tbody tr", has_text="clinic-a")).to_contain_text("unknown")
        page.goto("/ledger")
        expect(page.locator("#list tbody tr")).not_to_have_count(0)
        page.goto("/")
    finally:
        site.relay.mend()
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#notices .banner")).to_have_count(0)


def test_a_session_that_ends_in_the_middle_of_a_stream_says_so_and_leads_back(
    site: Site, visit: Callable[..., Visitor]
) -> None:
    visitor = visit()
    page = visitor.log_in("viewer")
    page.goto("/nodes?trust=approved")
    expect(page.locator("#live")).to_have_text("live")
    other = visitor.open()
    other.goto("/")
    other.get_by_role("button", name="Log out").click()
    expect(page.locator("#live")).to_have_text("session ended")
    page.get_by_role("link", name="Log in again").click()
    page.get_by_label("Operator token").fill(site.tokens["viewer"])
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/nodes?trust=approved")


def test_a_page_whose_stream_is_barred_asks_now_and_then(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    page = visitor.log_in("viewer")
    page.route("**/live?*", lambda route: route.fulfill(status=204))
    page.goto("/")
    expect(page.locator("#live")).to_have_text("polling")
