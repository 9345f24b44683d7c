"""What Prometheus is told of an aggregator. No label holds the name of a node or of a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram

from hanse.errors import HanseError, Owner
from hanse.observability import KnownWords, new_registry

__all__ = ["AggregatorMetrics", "Timed"]

_SECONDS = (0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Timed:
    """A call that is counted when it ends; `method` is known once the call has said it."""

    method = ""


class AggregatorMetrics:
    """The metrics of one aggregator. For the event loop and the plug-ins' threads."""

    def __init__(self, methods: Iterable[str] = ()) -> None:
        """`methods` are those that are installed: the only ones that a label may name."""
        self.registry = registry = new_registry("hanse-aggregator")
        self._calls = Counter(
            "hanse_aggregator_calls_total",
            "Aggregations that ended: `ok`, `cancelled` by the caller, or whose fault it was that they failed "
            "(`method`, `operator`, `platform`, `site`).",
            ["method", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "hanse_aggregator_call_seconds",
            "Aggregations that ended well, from the first request to the outcome.",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._finish = Histogram(
            "hanse_aggregator_finish_seconds",
            "What plug-ins make of contributions once all have come.",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._in_flight = Gauge("hanse_aggregator_calls_in_flight", "Aggregations under way.", registry=registry)
        self._contributions = Counter(
            "hanse_aggregator_contributions_total",
            "Contributions handed to a plug-in, accepted or rejected.",
            ["method", "outcome"],
            registry=registry,
        )
        self._contribution_bytes = Counter(
            "hanse_aggregator_contribution_bytes_total", "Bytes of contributions handed to plug-ins.", registry=registry
        )
        self._streamed = Counter(
            "hanse_aggregator_artifact_bytes_total",
            "Bytes of artifacts that came and went by stream; none where both reach one store.",
            ["direction"],
            registry=registry,
        )
        for direction in ("received", "sent"):
            self._streamed.labels(direction)
        self._cache = Counter(
            "hanse_aggregator_cache_lookups_total",
            "Streamed artifacts that were looked for in the cache.",
            ["result"],
            registry=registry,
        )
        for result in ("hit", "miss"):
            self._cache.labels(result)
        self._expiry = Gauge(
            "hanse_aggregator_certificate_expiry_timestamp_seconds",
            "When the service's certificate runs out.",
            registry=registry,
        )
        methods = tuple(methods)
        self._method = KnownWords(methods, closed=True)
        for method in methods:  # a series that begins with its first failure would hide that failure from `increase`
            for outcome in ("ok", "cancelled", *Owner):
                self._calls.labels(method, str(outcome))

    @contextmanager
    def call(self) -> Iterator[Timed]:
        """Count and time what is done inside."""
        timed, began, outcome = Timed(), time.monotonic(), "ok"
        self._in_flight.inc()
        try:
            yield timed
        except HanseError as error:
            outcome = error.owner.value
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        except BaseException:
            outcome = "platform"
            raise
        finally:
            self._in_flight.dec()
            method = self._method(timed.method)
            self._calls.labels(method, outcome).inc()
            if outcome == "ok":
                self._seconds.labels(method).observe(time.monotonic() - began)

    @contextmanager
    def finishing(self, method: str) -> Iterator[None]:
        """Time the end of an aggregation."""
        began = time.monotonic()
        yield
        self._finish.labels(self._method(method)).observe(time.monotonic() - began)

    def contribution(self, method: str, size: int, *, accepted: bool) -> None:
        """A plug-in took or rejected a contribution of `size` bytes."""
        self._contributions.labels(self._method(method), "accepted" if accepted else "rejected").inc()
        self._contribution_bytes.inc(size)

    def streamed(self, direction: str, size: int) -> None:
        """Bytes of an artifact were `received` or `sent`."""
        self._streamed.labels(direction).inc(size)

    def looked_up(self, *, hit: bool) -> None:
        """An artifact was looked for in the cache."""
        self._cache.labels("hit" if hit else "miss").inc()

    def certificate(self, not_after: float) -> None:
        """The certificate in use runs out at this time (Unix)."""
        self._expiry.set(not_after)
