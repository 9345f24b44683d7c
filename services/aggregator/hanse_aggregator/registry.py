"""The aggregator plug-ins that are installed here: entry points of the group `hanse.aggregators`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel

from hanse.errors import HanseError, MethodError, NotFound
from hanse.logs import logger
from hanse.method import AggregatorPlugin
from hanse.settings import validate
from hanse.v1 import aggregator_pb2

GROUP = "hanse.aggregators"


class Registry:
    """Plug-in classes by method. One that cannot be used is left out with its reason, and the others go on."""

    def __init__(self, found: Iterable[EntryPoint]) -> None:
        self._plugins: dict[str, type[AggregatorPlugin]] = {}
        self._broken: dict[str, str] = {}
        offers: dict[str, list[EntryPoint]] = {}
        for point in found:
            if point not in offers.setdefault(point.name, []):  # a package may be seen twice on the path
                offers[point.name].append(point)
        for points in offers.values():
            if len({point.value for point in points}) == 1:
                self._load(points[0])
            else:
                values = " and ".join(sorted(point.value for point in points))
                self._refuse(points[0], f"several installed packages offer it: {values}")

    @classmethod
    def discover(cls) -> Registry:
        """Load what is installed."""
        return cls(entry_points(group=GROUP))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that can be used, sorted."""
        return tuple(sorted(self._plugins))

    @property
    def broken(self) -> Mapping[str, str]:
        """Why each of the others cannot be used."""
        return self._broken

    def describe(self) -> list[aggregator_pb2.PluginDescription]:
        """What a coordinator is told, in order of the methods' names."""
        return [
            aggregator_pb2.PluginDescription(
                method=method,
                version=plugin.version,
                summary=((plugin.__doc__ or "").strip().splitlines() or [""])[0],
                config_schema=json.dumps(plugin.Config.model_json_schema()).encode(),
            )
            for method, plugin in sorted(self._plugins.items())
        ]

    def check(self, method: str, config: Mapping[str, Any]) -> None:
        """Whether a configuration fits a method.

        Raises:
            NotFound: no such method here.
            OperatorError: a wrong or unknown key; the sentence names it.
        """
        validate(self._find(method).Config, dict(config), source="method_config")

    def make(self, method: str, config: Mapping[str, Any]) -> AggregatorPlugin:
        """A fresh plug-in for one call.

        Raises:
            NotFound: no such method here.
            OperatorError: the configuration does not fit; the sentence names the key.
            MethodError: the plug-in cannot be made.
        """
        self.check(method, config)
        try:
            return self._find(method)()
        except HanseError:
            raise
        except Exception as error:
            raise MethodError(f"plug-in '{method}' cannot be made: {type(error).__name__}: {error}") from error

    def _find(self, method: str) -> type[AggregatorPlugin]:
        if method in self._plugins:
            return self._plugins[method]
        if method in self._broken:
            raise NotFound(
                f"the aggregator plug-in of method '{method}' cannot be used: {self._broken[method]}.",
                remedy="Mend its installation on the aggregator and restart it.",
                code="PLUGIN_BROKEN",
            )
        raise NotFound(
            f"this aggregator has no plug-in for method '{method}'.",
            remedy=f"Install it there; installed are: {', '.join(self.methods) or 'none'}.",
            code="UNKNOWN_METHOD",
        )

    def _load(self, point: EntryPoint) -> None:
        try:
            loaded = point.load()
        except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is the reason
            self._refuse(point, f"{type(error).__name__}: {error}")
            return
        if fault := _fault(loaded):
            self._refuse(point, fault)
        else:
            self._plugins[point.name] = loaded

    def _refuse(self, point: EntryPoint, why: str) -> None:
        self._broken[point.name] = why
        logger().error("plug-in cannot be used", method=point.name, value=point.value, reason=why)


def _fault(loaded: Any) -> str:
    if not isinstance(loaded, type):
        return "its entry point does not name a class"
    if not isinstance(getattr(loaded, "version", None), str):
        return "it has no `version`"
    config = getattr(loaded, "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        return "its `Config` is not a pydantic model"
    for needed in ("first_phase", "open"):
        if not callable(getattr(loaded, needed, None)):
            return f"it has no method `{needed}`"
    return ""
