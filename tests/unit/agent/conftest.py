"""The probe installed as a plug-in, and one authority for all tests of this folder."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from hanse.security import Authority, Identity, KeyPair
from hanse_agent import registry
from tests.unit.agent.probe import ENTRY_POINTS, PROBE


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests in a loop of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command that was run in this process has pointed the logs at a stream that ends with its test."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the probe for this process and the workers that it starts."""
    site = tmp_path / "site"
    info = site / "probe_learner-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "probe_learner.py").write_text(PROBE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe-learner\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    registry._points.cache_clear()
    yield
    registry._points.cache_clear()
    sys.modules.pop("probe_learner", None)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def identity_pair(authority: Authority) -> KeyPair:
    return authority.issue(Identity.node("site-a"))
