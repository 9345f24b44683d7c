"""A real federation for tests that hurt it: programs as processes, TLS on loopback, tables of generated rows."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from hanse.cli.connection import Control, find_connection
from hanse.embedded import Child, EmbeddedFederation, EmbeddedOptions
from hanse.embedded.child import child_environment
from hanse.embedded.folder import free_port
from hanse.errors import PlatformError
from hanse.ledger import Ledger, View, verify
from hanse.v1 import control_pb2

CLASSES = 3


@dataclass
class Site:
    """One node: its folder, and the agent that runs there."""

    name: str
    folder: Path
    agent: Child | None = None

    @property
    def config(self) -> Path:
        return self.folder / "agent.yaml"

    @property
    def journal(self) -> list[dict[str, Any]]:
        path = self.folder / "state" / "egress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def worker(self) -> psutil.Process | None:
        """The warm worker process, if there is one."""
        if self.agent is None or self.agent.pid is None:
            return None
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.agent.pid).children(recursive=True):
                if "hanse_agent.worker" in " ".join(child.cmdline()):
                    return child
        return None


class CuttingProxy:
    """Passes TCP on to a port; cuts each connection after a random number of bytes while `cutting` is on."""

    def __init__(self, port: int, draw: random.Random, *, least: int, most: int) -> None:
        self._target = port
        self._draw = draw
        self._bounds = (least, most)
        self.cutting = False
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            left = [self._draw.randrange(*self._bounds)]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, target, left), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        try:
            while data := source.recv(16 * 1024):
                if self.cutting:
                    data = data[: max(left[0], 0)]
                    left[0] -= len(data)
                    if left[0] <= 0:
                        self.cuts += 1
                        break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@dataclass
class World:
    """The federation, its sites, and what one can do to them."""

    folder: Path
    federation: EmbeddedFederation
    control: Control
    proxy: CuttingProxy | None
    ledger_url: str
    sites: dict[str, Site] = field(default_factory=dict)

    # ---- Sites
    def add_site(self, name: str, *, rows: int = 150, run: bool = True, **policy: Any) -> Site:
        """A site with a table of its own joins, and its agent runs."""
        site = Site(name, self.folder / name)
        site.folder.mkdir()
        write_table(site.folder / "table.csv", seed=sum(name.encode()), rows=rows)
        document = {
            "coordinator": f"127.0.0.1:{self.proxy.port}" if self.proxy else self.federation.nodes_address,
            "state": "state",
            "datasets": {
                "ward": {"kind": "table", "path": "table.csv", "target": "kind", "holdout": 0.2},
            },
            "policy": {"methods": ["fedscs_xgb"], "minimum_rows_per_atom": 1, **policy},
        }
        site.config.write_text(yaml.safe_dump(document))
        self.sites[name] = site
        self.join(site)
        if run:
            self.run(site)
        return site

    def join(self, site: Site, *, again: bool = False) -> subprocess.CompletedProcess[str]:
        request = control_pb2.InviteNodeRequest(name=site.name, valid_s=600, pre_approved=True, again=again)
        invitation = site.folder / "invitation"
        invitation.write_text(self.control.call("InviteNode", request).text)
        command = [sys.executable, "-m", "hanse_agent.main", "join", str(site.config), "--token", f"file:{invitation}"]
        done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done

    def run(self, site: Site) -> None:
        arguments = ["hanse_agent.main", "run", str(site.config)]
        site.agent = Child(site.name, arguments, log=site.folder / "agent.log", say=lambda _: None)
        site.agent.start()
        site.agent.assume_ready()

    # ---- Jobs
    def submit(self, name: str, **changes: Any) -> str:
        document = self.job_document(name, **changes)
        request = control_pb2.SubmitJobRequest(specification=json.dumps(document).encode())
        return str(self.control.call("SubmitJob", request).id)

    def job_document(self, name: str, **changes: Any) -> dict[str, Any]:
        """A small job of FedSCS-XGB over all sites."""
        return {
            "name": name,
            "method": "fedscs_xgb",
            "dataset": "ward",
            "rounds": 4,
            "selection": {"minimum_nodes": len(self.sites), "quorum": 1.0, "deadline": "3m"},
            "evaluation": {"every": 2},
            "method_config": {"num_class": CLASSES, "max_depth": 3, "bins": 32, "statistics": "atoms"},
        } | changes

    def detail(self, job: str) -> control_pb2.JobDetail:
        found: control_pb2.JobDetail = self.control.call("GetJob", control_pb2.GetJobRequest(job=job))
        return found

    def until_ended(self, job: str, timeout_s: float = 150) -> control_pb2.JobDetail:
        """Wait for a job's end by the ledger file, which is there whatever runs."""
        ended = {"succeeded", "failed", "cancelled", "paused"}
        self.until(lambda: self.read(lambda view: view.job(job).state.value in ended), timeout_s)
        detail: control_pb2.JobDetail = self.until(lambda: self.try_detail(job), 60)
        return detail

    def try_detail(self, job: str) -> control_pb2.JobDetail | None:
        try:
            return self.detail(job)
        except Exception:  # the coordinator may just be dead
            return None

    def read(self, work: Callable[[View], Any]) -> Any:
        """Look into the ledger; a database that is away for a moment is asked again."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with Ledger.open(self.ledger_url, read_only=True) as ledger, ledger.read() as view:
                    return work(view)
            except PlatformError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def events(self, kind: str) -> list[Any]:
        return [event for event in self.read(lambda view: list(view.every_event())) if event.kind == kind]

    def whole(self) -> bool:
        return bool(self.read(lambda view: verify(view).whole))

    @staticmethod
    def until(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.02)
        return found

    # ---- Harm
    def kill(self, pid: int | None) -> bool:
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False


def write_table(path: Path, *, seed: int, rows: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(rows, 4))
    kinds = (values @ [1.0, -1.0, 0.5, 0.2] > 0).astype(int) + (values[:, 0] > 1)
    lines = [",".join(f"{v:.6f}" for v in row) + f",{kind}" for row, kind in zip(values, kinds, strict=True)]
    path.write_text("a,b,c,d,kind\n" + "\n".join(lines) + "\n")


@contextmanager
def world(
    folder: Path,
    *,
    through: tuple[random.Random, int, int] | None = None,
    coordinator: Mapping[str, object] = {},
    ledger_url: str = "",
    artifacts: str = "",
    node_port: int | None = None,
) -> Iterator[World]:
    """A federation without sites; `through` puts a cutting proxy (draw, least, most bytes) before the nodes' port.
    The ledger is a file unless `ledger_url` names a database, and the artifacts lie in the state folder unless
    `artifacts` names another store."""
    with ExitStack() as stack:
        settings: dict[str, object] = {"heartbeat": "2s", **coordinator}
        if ledger_url:
            settings["ledger"] = ledger_url
        port, proxy = node_port or free_port("127.0.0.1"), None
        if through:
            proxy = CuttingProxy(port, through[0], least=through[1], most=through[2])
            stack.callback(proxy.close)
            settings["advertise"] = [f"127.0.0.1:{proxy.port}"]
        options = EmbeddedOptions(node_port=port, control_port=0, coordinator=settings, artifacts=artifacts)
        federation = stack.enter_context(EmbeddedFederation(folder / "fed", options).running())
        control = stack.enter_context(Control(find_connection(federation.state)))
        made = World(folder, federation, control, proxy, ledger_url or f"sqlite:///{federation.ledger_file}")

        def stop_agents() -> None:
            for site in made.sites.values():
                if site.agent:
                    site.agent.kill()
                    site.agent.wait(10)

        stack.callback(stop_agents)
        yield made
