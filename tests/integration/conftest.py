"""An authority for all tests of this folder, and aggregators as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hanse.security import Authority, Identity, KeyPair

OUTSIDE = Path(__file__).with_name("outside") / "hanse_tally.py"

ENTRY_POINTS = """\
[hanse.aggregators]
tally = hanse_tally:Tally
absent = hanse_tally_of_nobody:Tally
no_plugin = hanse_tally:document
"""


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def coordinator_pair(authority: Authority) -> KeyPair:
    return authority.issue(Identity.service("coordinator"))


@pytest.fixture(scope="session")
def outside_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed somebody else's package from its wheel."""
    folder = tmp_path_factory.mktemp("outside")
    wheel = folder / "hanse_tally-7.1-py3-none-any.whl"
    info = "hanse_tally-7.1.dist-info"
    files = {
        "hanse_tally.py": OUTSIDE.read_text(),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: hanse-tally\nVersion: 7.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": ENTRY_POINTS,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)
    return target


class AggregatorProcess:
    """A running `hanse-aggregator`."""

    def __init__(self, folder: Path, settings: dict, path: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(settings))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hanse_aggregator.main", "--config", str(config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline()
        assert "listens on" in self.greeting, self.log.read_text()
        self.address = self.greeting.split()[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


StartAggregator = Callable[..., AggregatorProcess]


@pytest.fixture(scope="session")
def start_aggregator(
    authority: Authority, outside_package: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartAggregator]:
    """Start an aggregator with the outside package on its path; settings may be given."""
    started: list[AggregatorProcess] = []

    def start(**settings: object) -> AggregatorProcess:
        folder = tmp_path_factory.mktemp("aggregator")
        authority.issue(Identity.service("aggregator")).save(folder / "service.pem")
        (folder / "authority.crt").write_bytes(authority.certificate_pem)
        document = {
            "listen": "127.0.0.1:0",
            "certificate": str(folder / "service.pem"),
            "authority": str(folder / "authority.crt"),
        } | {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}
        started.append(AggregatorProcess(folder, document, outside_package))
        return started[-1]

    yield start
    for aggregator in started:
        aggregator.kill()
