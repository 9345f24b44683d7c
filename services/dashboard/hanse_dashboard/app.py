"""The application: routes, headers, errors, and what starts and stops with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from hanse import __version__
from hanse.errors import HanseError
from hanse_dashboard import faults, live, metrics, pages
from hanse_dashboard.api import router as api_router
from hanse_dashboard.headers import SecurityHeaders
from hanse_dashboard.render import STATIC
from hanse_dashboard.settings import DashboardSettings
from hanse_dashboard.state import Dashboard, dashboard_of

__all__ = ["create_app"]

_DESCRIPTION = """Everything that the dashboard's pages show, for programs.

Show an operator token: `Authorization: Bearer hanse_…`. The token's role decides what may be read and done; a refusal
names the role that is missing. Lists come a page at a time: give `next` of one answer as `after` of the following
request. `format=csv` gives the whole list as a file. Times are ISO 8601, UTC."""


class _Static(StaticFiles):
    """Files that a browser may keep: their addresses change with their content."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code == 200 and b"v=" in scope.get("query_string", b""):
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        else:
            response.headers["Cache-Control"] = "public, max-age=300"
        return response


def create_app(settings: DashboardSettings) -> FastAPI:
    """The dashboard over a ledger.

    Raises:
        HanseError: the ledger or another file of the settings cannot be opened.
    """
    dashboard = Dashboard(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await dashboard.feed.start()
        yield
        await dashboard.feed.stop()
        dashboard.close()

    app = FastAPI(
        title="Hanse dashboard",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        root_path=settings.root_path,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.dashboard = dashboard
    faults.add_to(app)
    app.add_middleware(metrics.Measured)
    app.add_middleware(SecurityHeaders)
    app.include_router(api_router)
    app.include_router(live.router)
    app.include_router(pages.router)
    app.mount("/static", _Static(directory=STATIC), name="static")
    _add_probes(app, with_metrics=not settings.health_listen)
    return app


def _add_probes(app: FastAPI, *, with_metrics: bool) -> None:
    @app.get("/livez", include_in_schema=False)
    def livez() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    def readyz(request: Request) -> Response:
        try:
            dashboard_of(request).ledger.require_schema()
        except HanseError as error:
            return PlainTextResponse(f"{error.code}\n", status_code=503)
        return PlainTextResponse("ok\n")

    if with_metrics:

        @app.get("/metrics", include_in_schema=False)
        def exposed(request: Request) -> Response:
            return metrics.expose(dashboard_of(request))

    @app.get("/favicon.ico", include_in_schema=False)
    def favicon() -> Response:
        return Response(Path(STATIC / "icon.svg").read_bytes(), media_type="image/svg+xml")
