"""Pages from templates: what every page knows, and the words that templates use."""

from __future__ import annotations

import hashlib
import json
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from hanse import __version__
from hanse_dashboard import words
from hanse_dashboard.state import dashboard_of

__all__ = ["STATIC", "page", "query", "url"]

HERE = Path(__file__).parent
STATIC = HERE / "static"

NAVIGATION = (
    ("Overview", "/", "home"),
    ("Jobs", "/jobs", "play"),
    ("Nodes", "/nodes", "signal"),
    ("Onboarding", "/onboarding", "mail"),
    ("Compare", "/compare", "columns"),
    ("Models", "/models", "cube"),
    ("Ledger", "/ledger", "chain"),
    ("Access", "/access", "key"),
    ("System", "/system", "gear"),
)


@cache
def _asset_version(name: str) -> str:
    path = STATIC / name
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else ""


def _has_asset(name: str) -> bool:
    return (STATIC / name).exists()


def url(request: Request, path: str, **parameters: Any) -> str:
    """An address on this dashboard, under the ingress's path; empty parameters are left out."""
    root: str = request.scope.get("root_path", "")
    return root + quote(path, safe="/~") + query(**parameters)


def query(**parameters: Any) -> str:
    """`?a=1&b=2` of the parameters that say something."""
    given = {key: value for key, value in parameters.items() if value not in (None, "", (), [])}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _data(value: Any) -> Markup:
    """JSON for a data block: nothing in it can end the block."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for mark, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(mark, escaped)
    return Markup(text)  # noqa: S704 - escaped above


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        state=words.state,
        iso=words.iso,
        clock=words.clock,
        span=words.span,
        ago=words.ago,
        amount=words.amount,
        number=words.number,
        cap=words.cap,
        data=_data,
    )
    environment.globals.update(navigation=NAVIGATION, version=__version__, has_asset=_has_asset)
    return environment


_TEMPLATES = _environment()


def page(
    request: Request,
    template: str,
    *,
    title: str,
    status: int = 200,
    live: dict[str, Any] | None = None,
    **context: Any,
) -> Response:
    """A page.

    Args:
        request: who asks.
        template: its file in `templates/`.
        title: of the browser's tab and the page's heading.
        status: HTTP status.
        live: what the page's event stream is about: `after` (a sequence) and perhaps `job` or `node`; None: no stream.
        context: what the template shows.
    """
    desk = dashboard_of(request)
    caller = getattr(request.state, "caller", None)
    root: str = request.scope.get("root_path", "")

    def link(path: str, **parameters: Any) -> str:
        return url(request, path, **parameters)

    about = {key: value for key, value in (live or {}).items() if key != "after"}
    theme = request.cookies.get("hanse_theme", "")
    own_path = request.url.path
    if root and own_path.startswith(root):
        own_path = own_path[len(root) :] or "/"
    html = _TEMPLATES.get_template(template).render(
        title=title,
        user=caller,
        federation=desk.settings.name,
        presence=desk.coordinator.presence() if caller else None,
        fault=desk.feed.fault,
        theme=theme if theme in ("light", "dark") else "",
        link=link,
        asset=lambda name: link(f"/static/{name}", v=_asset_version(name)),
        here=own_path,
        self_url=link(own_path) + (f"?{request.url.query}" if request.url.query else ""),
        live=live,
        live_url=link("/live", **about),
        poll_url=link("/live/poll", **about),
        now=time.time(),
        may=lambda role: bool(caller and caller.may(role)),
        **context,
    )
    return HTMLResponse(html, status_code=status)
