"""Containers of the rendered manifests, run as local processes: the same command, variables, files and probes.

What a machine lacks is put in place: paths are folders of the test, names of Services are this machine, and ports are
free ones. Nothing else is changed.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hanse.embedded.folder import free_port
from tests.deploy.manifests import DEPLOY, Document, Workload, of_kind

# Longest first, so that no path is taken for a part of another.
FOLDERS = ("/etc/hanse-database", "/run/secrets/hanse", "/var/cache/hanse", "/var/lib/hanse", "/etc/hanse", "/data")
SERVICES = "coordinator|aggregator|dashboard|postgres|store"
PATIENCE_S = 300.0


@dataclass
class Cluster:
    """Where everything of one federation lies on this machine."""

    folder: Path
    documents: list[Document]
    secrets: Mapping[str, Mapping[str, bytes]]
    ports: dict[tuple[str, int], int] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)
    """Names that are no Services: what stands for them."""

    def port(self, program: str, port: int) -> int:
        """The port that stands for a pod's."""
        return self.ports.setdefault((program, port), free_port("127.0.0.1"))

    def here(self, program: str, text: str) -> str:
        """A text of a manifest with this machine's paths, names and ports."""
        for name, replacement in self.outside.items():
            text = text.replace(name, replacement)
        for path in FOLDERS:
            text = re.sub(rf"(?<![\w.-]){path}(?=/|\s|$)", str(self.folder / program) + path, text)
        text = re.sub(r"(?<![\w.-])/tmp(?=$|\n)", str(self.folder / program / "tmp"), text)
        text = text.replace("/opt/hanse/dev_store.py", str(DEPLOY / "images" / "dev_store.py"))
        own = r"\b(?:0\.0\.0\.0|127\.0\.0\.1):(7443|7444|7445|7446|7480|9000)\b"
        text = re.sub(own, lambda found: f"127.0.0.1:{self.port(program, int(found[1]))}", text)
        other = rf"\b({SERVICES}):(\d+)\b"
        return re.sub(other, lambda found: f"127.0.0.1:{self.port(found[1], int(found[2]))}", text)

    def mount(self, workload: Workload) -> None:
        """Lay out what the pod's volumes hold."""
        maps = {item["metadata"]["name"]: item["data"] for item in of_kind(self.documents, "ConfigMap")}
        volumes = {volume["name"]: volume for volume in workload.pod["volumes"]}
        for mount in (mount for container in workload.containers for mount in container["volumeMounts"]):
            volume = volumes.get(mount["name"], {})
            folder = self.folder / workload.program / mount["mountPath"].lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                for name, text in maps[volume["configMap"]["name"]].items():
                    (folder / name).write_text(self.here(workload.program, text))
            elif "secret" in volume:
                for name, content in self.secrets[volume["secret"]["secretName"]].items():
                    (folder / name).write_bytes(content)

    def environment(self, workload: Workload, container: Document) -> dict[str, str]:
        """The variables of the image and of the manifest, and none of ours that means something to Hanse."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("HANSE_", "PG", "AWS_"))}
        here = {v["name"]: self.here(workload.program, v["value"]) for v in container.get("env", ())}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        image = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}
        return clean | image | {"PATH": path, "TMPDIR": str(self.folder / workload.program / "tmp")} | here

    def command(self, workload: Workload, container: Document) -> list[str]:
        """A container's command here."""
        return [self.here(workload.program, part) for part in container["command"]]


class Pod:
    """One container as a process; started again when it ends before it was ready, as a kubelet does."""

    def __init__(self, cluster: Cluster, workload: Workload) -> None:
        (self.container,) = workload.pod["containers"]
        self.cluster, self.workload = cluster, workload
        self.log = cluster.folder / f"{workload.program}.log"
        cluster.mount(workload)
        (cluster.folder / workload.program / "tmp").mkdir(exist_ok=True)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.cluster.command(self.workload, self.container),
                env=self.cluster.environment(self.workload, self.container),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def probe(self, name: str) -> bool:
        """Ask one of the manifest's probes."""
        command = [self.cluster.here(self.workload.program, part) for part in self.container[name]["exec"]["command"]]
        environment = self.cluster.environment(self.workload, self.container)
        return subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode == 0

    def until_ready(self) -> None:
        """Until the start-up, liveness and readiness probes have all been answered."""
        deadline = time.monotonic() + PATIENCE_S
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            while not self.probe(name):
                assert time.monotonic() < deadline, self.log.read_text()[-3000:]
                if self.process.poll() is not None:
                    self.process = self._start()
                time.sleep(0.2)

    def until_done(self) -> None:
        """Until it has done its work, tried again as often as it fails."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.wait(timeout=PATIENCE_S):
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.5)
            self.process = self._start()

    def stop(self) -> int:
        """Ask it to end, as a kubelet does; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=self.workload.pod["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def decoded(documents: list[Document]) -> dict[str, dict[str, bytes]]:
    """The contents of Secrets."""
    return {
        item["metadata"]["name"]: {name: base64.b64decode(text) for name, text in item["data"].items()}
        for item in documents
    }
