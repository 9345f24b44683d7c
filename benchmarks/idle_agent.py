"""What an agent costs a site while there is nothing to do: memory, processor share, bytes an hour.

    python benchmarks/idle_agent.py [--seconds 60] [--json]

A real embedded federation and one real agent (`hanse-agent run`, trees alone) with a small table. After the agent is
connected and its worker process has been let go, the operating system's own counters are read over a window: USS and
RSS of the agent with all its children, processor time, and the bytes of its TCP connection, counted by a proxy.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import yaml

from hanse.cli.connection import Control, find_connection
from hanse.demos.people import Person, onboard
from hanse.embedded import Child, EmbeddedFederation, EmbeddedOptions
from hanse.embedded.folder import free_port
from hanse.v1 import control_pb2

MIB = 2**20


class CountingProxy:
    """Passes TCP on to a port and counts the bytes, both ways together."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.bytes += len(data)
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            each.close()


def family(pid: int) -> list[psutil.Process]:
    """The agent's process and all that it started (the supervisor's own wrapper is no separate process)."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def measure(folder: Path, seconds: float, heartbeat: str) -> dict[str, float | int | str]:
    """Run a federation with one idle agent and read the counters."""
    port = free_port("127.0.0.1")
    proxy = CountingProxy(port)
    settings = {"heartbeat": heartbeat, "advertise": [f"127.0.0.1:{proxy.port}"]}
    options = EmbeddedOptions(node_port=port, control_port=0, coordinator=settings)
    with EmbeddedFederation(folder / "fed", options).running() as federation:
        person = Person(name="idle", folder=folder / "idle")
        person.folder.mkdir()
        np.savez(person.folder / "table.npz", X=np.zeros((500, 8), np.float32), y=np.arange(500) % 2)
        document = {
            "coordinator": f"127.0.0.1:{proxy.port}",
            "state": "state",
            "datasets": {"table": {"kind": "table", "path": "table.npz", "target": "y"}},
            "policy": {"methods": ["fedscs_xgb"]},
            "worker": {"idle_after": "1s"},
        }
        person.config.write_text(yaml.safe_dump(document))
        agent = Child("idle", ["hanse_agent.main", "run", str(person.config)], log=folder / "agent.log", say=print)
        try:
            with Control(find_connection(federation.state)) as control:
                onboard(control, [person], lambda _: None)
                agent.start()
                agent.assume_ready()
                while not any(
                    node.health == "online" for node in control.call("ListNodes", control_pb2.ListNodesRequest()).nodes
                ):
                    time.sleep(0.1)
            assert agent.pid is not None
            while len(family(agent.pid)) > 1:  # the worker that looked at the table
                time.sleep(0.1)
            time.sleep(2)
            processes = family(agent.pid)
            busy, passed, began = _cpu(processes), proxy.bytes, time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            memory = [process.memory_full_info() for process in processes]
            return {
                "processes": len(processes),
                "rss_mib": round(sum(info.rss for info in memory) / MIB, 1),
                "uss_mib": round(sum(info.uss for info in memory) / MIB, 1),
                "cpu_percent_of_a_core": round(100 * (_cpu(processes) - busy) / took, 3),
                "bytes_per_hour": round((proxy.bytes - passed) / took * 3600),
                "heartbeat": heartbeat,
                "window_s": round(took, 1),
            }
        finally:
            agent.kill()


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch")
    parser.add_argument("--heartbeat", default="10s", help="the coordinator's heartbeat setting")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), arguments.seconds, arguments.heartbeat)
    if arguments.json:
        json.dump(row, sys.stdout)
        print()
        return
    print("an idle agent for trees alone (NVFlare 2.9: 60 MB, 0.1 % of a core; Flower 1.42: 195 MB, 1 %)")
    for name, value in row.items():
        print(f"  {name:24}{value}")


if __name__ == "__main__":
    main()
