"""What Prometheus is told of an agent: one process, however many node identities it carries.

Nothing listens unless `hanse-agent run --metrics` says so. No label holds the name of a node, job or dataset: whoever
may read this learns how the agent does, and nothing of what it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hanse.observability import KnownWords, new_registry

if TYPE_CHECKING:
    from hanse_agent.link import Link, Links

__all__ = ["REGISTRY", "assignment_ended", "connected", "disconnected", "left", "refused", "watch", "worker_restarted"]

REGISTRY = new_registry("hanse-agent")

_ASSIGNMENTS = Counter(
    "hanse_agent_assignments_total",
    "Assignments that ended: delivered, failed, refused by the site's policy, or withdrawn by the coordinator.",
    ["outcome"],
    registry=REGISTRY,
)
for _outcome in ("delivered", "failed", "refused", "withdrawn"):
    _ASSIGNMENTS.labels(_outcome)
_LEFT = Counter(
    "hanse_agent_left_bytes_total",
    "Bytes of contributions that left, as in the egress journal; `resent` once more after a broken connection.",
    ["event"],
    registry=REGISTRY,
)
for _event in ("left", "resent"):
    _LEFT.labels(_event)
_REFUSALS = Counter(
    "hanse_agent_policy_refusals_total",
    "Jobs and assignments that the site's policy refused, by the key of the policy.",
    ["rule"],
    registry=REGISTRY,
)
_RESTARTS = Counter(
    "hanse_agent_worker_restarts_total", "Workers that died at work and were started again.", registry=REGISTRY
)
_rule = KnownWords()
_live: dict[Links, Link] = {}


def connected(links: Links, link: Link) -> None:
    """An identity has a session."""
    _live[links] = link


def disconnected(links: Links) -> None:
    """An identity has none any more."""
    _live.pop(links, None)


def assignment_ended(outcome: str) -> None:
    """An assignment was `delivered`, `failed`, `refused` or `withdrawn`."""
    _ASSIGNMENTS.labels(outcome).inc()


def left(event: str, size: int) -> None:
    """Bytes left, as the egress journal calls it: `left` or `resent`."""
    _LEFT.labels(event).inc(size)


def refused(code: str) -> None:
    """The policy refused; `code` is `POLICY_` and the rule."""
    _REFUSALS.labels(_rule(code.removeprefix("POLICY_").lower())).inc()


def worker_restarted() -> None:
    """A worker died at work."""
    _RESTARTS.inc()


class _Identities(Collector):
    """The identities of this process, as they are at the scrape."""

    def __init__(self, expiries: Callable[[], Iterable[datetime]]) -> None:
        self._expiries = expiries

    def describe(self) -> Iterator[Any]:
        """Nothing ahead of the first scrape."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges."""
        expiries = [moment.timestamp() for moment in self._expiries()]
        yield GaugeMetricFamily("hanse_agent_nodes", "Node identities of this process.", value=len(expiries))
        yield GaugeMetricFamily("hanse_agent_nodes_connected", "Those that have a session.", value=len(_live))
        heard = [link.heard_at for link in _live.values()]
        if heard:
            yield GaugeMetricFamily(
                "hanse_agent_last_heartbeat_timestamp_seconds",
                "When the coordinator answered the session that it has not answered for longest.",
                value=min(heard),
            )
        if expiries:
            yield GaugeMetricFamily(
                "hanse_agent_certificate_expiry_timestamp_seconds",
                "When the first of the nodes' certificates runs out.",
                value=min(expiries),
            )


def watch(expiries: Callable[[], Iterable[datetime]]) -> Callable[[], None]:
    """Ask for the identities' certificates at each scrape; returns how to stop."""
    collector = _Identities(expiries)
    REGISTRY.register(collector)
    return lambda: REGISTRY.unregister(collector)
