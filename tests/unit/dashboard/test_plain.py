"""The port for kubelet and Prometheus: ready while the ledger has its tables; metrics there, not beside the pages."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

from starlette.testclient import TestClient

from hanse.ledger import Ledger
from hanse.security import Authority
from hanse_dashboard.app import create_app
from hanse_dashboard.plain import plain_port
from hanse_dashboard.settings import DashboardSettings


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_port_of_its_own_tells_health_readiness_and_metrics(tmp_path: Path) -> None:
    Authority.create(tmp_path)
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with Ledger.open(url) as ledger:
        ledger.migrate()
        settings = DashboardSettings(
            ledger=url,
            coordinator="127.0.0.1:1",
            authority=tmp_path / "authority.crt",
            health_listen="127.0.0.1:0",
        )
        app = create_app(settings)

        async def until(port: int, status: int) -> None:
            async with asyncio.timeout(60):
                while (await asyncio.to_thread(answer, port, "/readyz"))[0] != status:
                    await asyncio.sleep(0.05)

        async def scenario() -> str:
            async with plain_port(app.state.dashboard, settings.health_listen) as port:
                await until(port, 200)
                ledger.migrate("base")
                await until(port, 503)
                assert (await asyncio.to_thread(answer, port, "/livez"))[0] == 200
                assert (await asyncio.to_thread(answer, port, "/login"))[0] == 404
                return (await asyncio.to_thread(answer, port, "/metrics"))[1]

        assert "hanse_dashboard_coordinator_up 0.0" in asyncio.run(scenario())
        ledger.migrate()
        with TestClient(app) as client:
            assert client.get("/metrics").status_code == 404
            assert client.get("/livez").status_code == 200
