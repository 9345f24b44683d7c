"""A real federation, a dashboard over it, and a real browser.

Coordinator, aggregator and three agents are processes; the dashboard reaches the coordinator through a small relay,
so that a test can cut the connection. Needs Chromium: `apt-get install chromium`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import yaml
from pyarrow import parquet

from hanse.cli.connection import Control, find_connection
from hanse.demos.people import Person, onboard, run_agents, stop_agents, write_config
from hanse.embedded import Child, EmbeddedFederation, EmbeddedOptions
from hanse.embedded.child import child_environment
from hanse.v1 import control_pb2

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
Browser, Page, expect = playwright_api.Browser, playwright_api.Page, playwright_api.expect

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NODES = ("clinic-a", "clinic-b", "clinic-c")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        here = Path(__file__).parent
        mark = pytest.mark.skip(reason="Chromium is not installed: apt-get install chromium")
        for item in items:
            if here in item.path.parents:
                item.add_marker(mark)


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Wait for a condition; a test that waits in vain fails."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
    return found


class Relay:
    """A port that leads to others in turn, passing over those that are gone, until it is cut."""

    def __init__(self, *targets: int) -> None:
        self._targets = itertools.cycle(targets)
        self._count = len(targets)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.whole = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Nobody gets through, and whoever is through is thrown out."""
        self.whole = False
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let everybody through again."""
        self.whole = True

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self.whole:
                near.close()
                continue
            far = self._reach()
            if far is None:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _reach(self) -> socket.socket | None:
        for target in itertools.islice(self._targets, self._count):
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", target))
        return None

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class Site:
    """Everything that runs."""

    url: str
    federation: EmbeddedFederation
    control: Control
    relay: Relay
    people: list[Person]
    tokens: dict[str, str] = field(default_factory=dict)
    done: str = ""
    """A job of three rounds that succeeded."""
    live: str = ""
    """A long one, paused unless a test resumes it."""

    def state(self, job: str) -> str:
        """A job's state, by the coordinator."""
        return str(self.control.call("GetJob", control_pb2.GetJobRequest(job=job)).job.state)


def specification(name: str, rounds: int) -> bytes:
    document = {
        "name": name,
        "method": "fedscs_xgb",
        "dataset": "activity",
        "rounds": rounds,
        "selection": {"minimum_nodes": 2, "quorum": 0.6},
        "evaluation": {"every": 1, "unseen": ["clinic-c"]},
        "method_config": {"objective": "multi:softprob", "num_class": 2, "max_depth": 2, "bins": 16, "eta": 0.3},
    }
    return json.dumps(document).encode()


def write_rows(path: Path, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    features = drawn.normal(size=(240, 4)).astype(np.float32)
    target = (features[:, 0] + 0.5 * features[:, 1] + drawn.normal(scale=0.4, size=240) > 0).astype(np.float64)
    columns = {f"sensor_{i}": features[:, i] for i in range(4)}
    held_out = np.arange(240) % 4 == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns | {"exercise": target, "held_out": held_out}), path)


def make_person(folder: Path, name: str, seed: int, nodes_address: str) -> Person:
    person = Person(name=name, folder=folder / "people" / name)
    table = {"kind": "table", "target": "exercise", "holdout_column": "held_out"}
    write_rows(person.folder / "rows.parquet", seed)
    write_config(
        person,
        coordinator=nodes_address,
        dataset="activity",
        table=table | {"path": str(person.folder / "rows.parquet")},
        method="fedscs_xgb",
    )
    return person


@pytest.fixture(scope="session")
def assets() -> Path:
    """The scripts that are shipped, and axe beside them."""
    build = ROOT / "services" / "dashboard" / "assets" / "build.py"
    done = subprocess.run([sys.executable, str(build), "--dev"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ROOT / "build" / "dashboard"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, assets: Path) -> Iterator[Site]:
    """The federation with one job done and one that waits to go on."""
    folder = tmp_path_factory.mktemp("site")
    with contextlib.ExitStack() as stack:
        federation = EmbeddedFederation(folder / "state", EmbeddedOptions(node_port=0, control_port=0))
        stack.enter_context(federation.running())
        control = stack.enter_context(Control(find_connection(folder / "state")))
        people = [make_person(folder, name, seed, federation.nodes_address) for seed, name in enumerate(NODES)]
        onboard(control, people, lambda _: None)
        agents = run_agents(people, folder / "logs", lambda _: None)
        stack.callback(stop_agents, agents)
        relay = Relay(federation.ports.control)
        stack.callback(relay.close)
        dashboard, url = start_dashboard(folder, federation, relay.port)
        stack.callback(dashboard.stop)
        made = Site(url=url, federation=federation, control=control, relay=relay, people=people)
        made.tokens["admin"] = federation.token_file.read_text().strip()
        for role in ("viewer", "researcher", "operator"):
            request = control_pb2.CreateTokenRequest(name=f"the {role}", role=role, valid_s=86_400)
            made.tokens[role] = control.call("CreateToken", request).secret
        made.done = submit(control, "first", 3)
        until(lambda: made.state(made.done) in ("succeeded", "failed", "paused"), 120)
        detail = control.call("GetJob", control_pb2.GetJobRequest(job=made.done))
        assert detail.job.state == "succeeded", detail.job.reason
        made.live = submit(control, "second", 3000)
        until(lambda: made.state(made.live) == "running", 60)
        control.call("PauseJob", control_pb2.ChangeJobRequest(job=made.live, why="a rest"))
        yield made


def submit(control: Control, name: str, rounds: int) -> str:
    request = control_pb2.SubmitJobRequest(specification=specification(name, rounds))
    return str(control.call("SubmitJob", request).id)


def start_dashboard(folder: Path, federation: EmbeddedFederation, control_port: int, **more: Any) -> tuple[Child, str]:
    """The program itself, with a quick heartbeat; `more` are keys of its configuration."""
    document = {
        "name": "test federation",
        "ledger": f"sqlite:///{federation.ledger_file}",
        "coordinator": f"127.0.0.1:{control_port}",
        "authority": str(federation.state / "authority" / "authority.crt"),
        "nodes_address": federation.nodes_address,
        "listen": "127.0.0.1:0",
        "heartbeat": "1s",
        "login_attempts": 1000,
        "ports_file": str(folder / "ports.json"),
    } | more
    (folder / "dashboard.yaml").write_text(yaml.safe_dump(document))
    arguments = ["hanse_dashboard.main", "--config", str(folder / "dashboard.yaml")]
    child = Child(
        "dashboard", arguments, log=folder / "dashboard.log", say=lambda _: None, environment=child_environment()
    )
    child.start()
    until((folder / "ports.json").exists, 60)
    port = json.loads((folder / "ports.json").read_text())["dashboard"]
    return child, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")  # while it is open, this thread has a running event loop: no other test could have one
def chromium() -> Iterator[Browser]:
    with playwright_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visitor:
    """A browser of one person: logs in, and remembers whatever the browser complained about."""

    def __init__(self, browser: Browser, site: Site, *, expected: str = "", **options: Any) -> None:
        self.expected = expected
        self.context = browser.new_context(base_url=site.url, viewport={"width": 1280, "height": 900}, **options)
        self.context.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.site = site
        self.page = self.open()

    def open(self) -> Page:
        """One more tab."""
        page = self.context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._inside)
        return page

    def _inside(self, request: Any) -> None:
        if not re.match(rf"{re.escape(self.site.url)}|data:|blob:", request.url):
            self.complaints.append(f"a request to {request.url}")

    def log_in(self, role: str) -> Page:
        """Through the door."""
        self.page.goto("/login")
        self.page.get_by_label("Operator token").fill(self.site.tokens[role])
        self.page.get_by_role("button", name="Log in").click()
        self.page.wait_for_url("**/")
        return self.page


@pytest.fixture
def visit(chromium: Browser, site: Site) -> Iterator[Callable[..., Visitor]]:
    """Open a browser for somebody; afterwards none may have complained."""
    opened: list[Visitor] = []

    def make(**options: Any) -> Visitor:
        opened.append(Visitor(chromium, site, **options))
        return opened[-1]

    yield make
    complaints = [
        complaint
        for visitor in opened
        for complaint in visitor.complaints
        if not (visitor.expected and visitor.expected in complaint)
    ]
    for visitor in opened:
        visitor.context.close()
    assert complaints == []
