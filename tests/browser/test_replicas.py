"""Two dashboards behind a load balancer that knows nothing of sessions; one of them is killed while somebody looks."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hanse.embedded import Child
from hanse.v1 import control_pb2

from .conftest import Browser, Relay, Site, Visitor, expect, start_dashboard, until


@dataclass
class Replica:
    """One of the two."""

    child: Child
    url: str

    def live_pages(self) -> int:
        """How many pages listen to this one."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return int(float(next(line for line in lines if line.startswith("hanse_dashboard_live_pages ")).split()[1]))


@pytest.fixture
def replicas(site: Site, tmp_path: Path) -> Iterator[list[Replica]]:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(Replica(*start_dashboard(tmp_path / name, site.federation, site.relay.port)))
    yield made
    for replica in made:
        replica.child.kill()
        replica.child.wait(10)


def test_a_page_goes_live_again_at_the_other_replica_without_a_log_in(
    site: Site, replicas: list[Replica], chromium: Browser
) -> None:
    balancer = Relay(*(int(replica.url.rpartition(":")[2]) for replica in replicas))
    visitor = Visitor(chromium, replace(site, url=f"http://127.0.0.1:{balancer.port}"))
    site.control.call("ResumeJob", control_pb2.ChangeJobRequest(job=site.live, why="a test"))
    try:
        page = visitor.log_in("viewer")
        page.goto(f"/jobs/{site.live}")
        expect(page.locator("#live")).to_have_text("live")
        page.evaluate("window.untouched = true")
        serving = until(lambda: next((one for one in replicas if one.live_pages()), None))
        (other,) = [one for one in replicas if one is not serving]
        assert serving.child.pid is not None
        os.kill(serving.child.pid, signal.SIGKILL)
        serving.child.wait(10)

        until(other.live_pages)
        expect(page.locator("#live")).to_have_text("live")

        def round_shown() -> int:
            return int(page.locator("#facts .value").first.inner_text().split()[0])

        begun = round_shown()
        until(lambda: round_shown() > begun)
        assert page.evaluate("window.untouched")
        page.goto("/nodes")
        expect(page.locator("tbody tr", has_text="clinic-a")).to_be_visible()
        assert "/login" not in page.url
    finally:
        site.control.call("PauseJob", control_pb2.ChangeJobRequest(job=site.live, why="a test is over"))
        visitor.context.close()
        balancer.close()
