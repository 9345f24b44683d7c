"""What Prometheus scrapes from the dashboard at `/metrics`."""

from __future__ import annotations

import time

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanse.observability import new_registry
from hanse_dashboard.state import Dashboard

__all__ = ["REGISTRY", "Measured", "expose", "refresh"]

REGISTRY = new_registry("hanse-dashboard")

REQUESTS = Counter(
    "hanse_dashboard_requests_total", "Requests answered.", ["route", "method", "status"], registry=REGISTRY
)
SECONDS = Histogram(
    "hanse_dashboard_request_seconds",
    "Time to the first byte of an answer.",
    ["route"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    registry=REGISTRY,
)
STREAMS = Gauge("hanse_dashboard_live_pages", "Pages that listen to the event stream.", registry=REGISTRY)
HEAD = Gauge(
    "hanse_dashboard_ledger_sequence", "The newest ledger entry that this replica has seen.", registry=REGISTRY
)
LEDGER_UP = Gauge("hanse_dashboard_ledger_up", "1 while the ledger's database answers.", registry=REGISTRY)
COORDINATOR_UP = Gauge(
    "hanse_dashboard_coordinator_up", "1 while the coordinator's control port answers.", registry=REGISTRY
)


class Measured:
    """Middleware that counts and times requests by route, never by address: addresses have no end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and note how it went."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                REQUESTS.labels(route, scope["method"], message["status"]).inc()
                SECONDS.labels(route).observe(time.monotonic() - begun)
            await send(message)

        await self._app(scope, receive, noting)


def refresh(dashboard: Dashboard) -> None:
    """Bring up to date what is asked and not counted; may wait a moment for the coordinator."""
    STREAMS.set(dashboard.feed.streams)
    HEAD.set(dashboard.feed.head)
    LEDGER_UP.set(0 if dashboard.feed.fault else 1)
    COORDINATOR_UP.set(1 if dashboard.coordinator.presence().answers else 0)


def expose(dashboard: Dashboard) -> Response:
    """The text that Prometheus reads."""
    refresh(dashboard)
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
