"""What Prometheus is told of a coordinator.

What happens is counted from the events of each transaction once it is committed, so that metrics and ledger say the
same; what is, is asked of the live parts at each scrape, which touches no database. No label holds the name of a node
or of a job.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hanse.ledger import JobState, Trust, records
from hanse.ledger.events import Appended
from hanse.ledger.states import AssignmentState
from hanse.observability import KnownWords, new_registry
from hanse_coordinator.sessions import Sessions

__all__ = ["CoordinatorMetrics"]

_PHASE_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400)
_WRITE_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


@dataclass
class _Open:
    """A phase that collects: when it began, when a node was heard of last, and what for."""

    began: float
    settled: float
    purpose: str


class CoordinatorMetrics:
    """The metrics of one coordinator. For the ledger's thread, which calls `wrote`, and the event loop."""

    def __init__(self) -> None:
        self.registry = new_registry("hanse-coordinator")
        registry = self.registry
        self._entered = Counter(
            "hanse_coordinator_jobs_entered_total",
            "Jobs that came into a state, with the code of the reason.",
            ["state", "reason"],
            registry=registry,
        )
        self._rounds = Counter("hanse_coordinator_rounds_total", "Rounds that were completed.", registry=registry)
        self._last_round = Gauge(
            "hanse_coordinator_last_phase_timestamp_seconds",
            "When a phase was closed with an outcome last; before the first, when the coordinator started.",
            registry=registry,
        )
        self._last_round.set(time.time())
        self._phases = Counter(
            "hanse_coordinator_phases_total",
            "Phases that ended, closed or abandoned.",
            ["outcome", "purpose"],
            registry=registry,
        )
        self._seconds = Histogram(
            "hanse_coordinator_phase_seconds",
            "Stages of closed phases: `collect` until the last node was heard, `aggregate` until the outcome.",
            ["stage", "purpose"],
            buckets=_PHASE_SECONDS,
            registry=registry,
        )
        self._assignments = Counter(
            "hanse_coordinator_assignments_total",
            "Assignments that ended. Those `rejected` had been `delivered` before, and count as both.",
            ["outcome"],
            registry=registry,
        )
        for state in AssignmentState:
            if state.ended:
                self._assignments.labels(state.value)
        self._bytes = Counter(
            "hanse_coordinator_contribution_bytes_total", "Bytes of contributions recorded.", registry=registry
        )
        self._sessions = Counter(
            "hanse_coordinator_session_changes_total",
            "Nodes that connected, or were lost.",
            ["change"],
            registry=registry,
        )
        for change in ("connected", "disconnected"):
            self._sessions.labels(change)
        self._write = Histogram(
            "hanse_coordinator_ledger_write_seconds",
            "Transactions of the ledger, committed.",
            buckets=_WRITE_SECONDS,
            registry=registry,
        )
        self._up = Gauge(
            "hanse_coordinator_ledger_up", "0 after the ledger's database failed, until it answers.", registry=registry
        )
        self._up.set(1)
        self._failures = Counter(
            "hanse_coordinator_ledger_failures_total",
            "Times that the ledger's database did not answer.",
            registry=registry,
        )
        self._sequence = Gauge(
            "hanse_coordinator_ledger_sequence", "The newest entry of the ledger.", registry=registry
        )
        self._leader = Gauge("hanse_coordinator_leader", "1 while this coordinator leads.", registry=registry)
        self._epoch = Gauge(
            "hanse_coordinator_leader_epoch", "The newest epoch that this coordinator led.", registry=registry
        )
        self._expiry = Gauge(
            "hanse_coordinator_certificate_expiry_timestamp_seconds",
            "When a certificate runs out.",
            ["certificate"],
            registry=registry,
        )
        self._open: dict[str, _Open] = {}
        self._rounds_of: dict[str, int] = {}
        self._code = KnownWords()
        self._purpose = KnownWords(("train", "adapt", "evaluate"), closed=True)

    # ---- What is
    def watch(
        self,
        *,
        jobs: Callable[[], Iterable[records.Job]],
        trust: Callable[[], Mapping[str, Trust]],
        sessions: Sessions,
    ) -> Callable[[], None]:
        """Ask these at each scrape; returns what ends it."""
        present = _Present(jobs, trust, sessions, self._code)
        self.registry.register(present)
        return lambda: self.registry.unregister(present)

    def leads(self, epoch: int | None) -> None:
        """This coordinator leads under an epoch, or (None) no longer."""
        self._leader.set(0 if epoch is None else 1)
        if epoch is not None:
            self._epoch.set(epoch)
        # What was open under another leader is not known to have gone on.
        self._open.clear()
        self._rounds_of.clear()

    def certificate(self, which: str, not_after: float) -> None:
        """A certificate in use (`server`, `client`, `authority`) and when it runs out."""
        self._expiry.labels(which).set(not_after)

    # ---- What happens
    def away(self) -> None:
        """The ledger's database did not answer."""
        self._up.set(0)
        self._failures.inc()

    def answered(self) -> None:
        """The ledger's database answered."""
        self._up.set(1)

    def wrote(self, seconds: float, sequence: int, events: Sequence[Appended]) -> None:
        """A transaction is committed, with these events."""
        self._up.set(1)
        self._write.observe(seconds)
        self._sequence.set(sequence)
        for event in events:
            self._count(event)

    def _count(self, event: Appended) -> None:
        head, _, word = event.kind.partition("_")
        if event.kind == "contribution":
            self._contribution(event)
        elif head == "assignment":
            self._assignments.labels(word).inc()
            self._settled(event)
        elif head == "phase":
            self._phase(event, word)
        elif event.kind in ("node_connected", "node_disconnected"):
            self._sessions.labels(word).inc()
        elif head == "job" and word in set(JobState):
            self._job(event, word)

    def _contribution(self, event: Appended) -> None:
        outcome = AssignmentState.LATE if event.body["late"] else AssignmentState.DELIVERED
        self._assignments.labels(outcome.value).inc()
        self._bytes.inc(event.body["bytes"])
        self._settled(event)

    def _settled(self, event: Appended) -> None:
        phase = self._open.get(event.body["phase"])
        if phase is not None:
            phase.settled = event.at

    def _phase(self, event: Appended, word: str) -> None:
        body, job = event.body, event.job or ""
        if word == "opened":
            if body["round"] > self._rounds_of.get(job, body["round"]) >= 1:
                self._rounds.inc()
            self._rounds_of[job] = body["round"]
            self._open[body["phase"]] = _Open(event.at, event.at, self._purpose(body["purpose"]))
            return
        phase = self._open.pop(body["phase"], None)
        self._phases.labels(word, phase.purpose if phase else "other").inc()
        if word == "abandoned":
            self._assignments.labels(AssignmentState.WITHDRAWN.value).inc(len(body["withdrawn"]))
            return
        self._rounds_of[job] = body["round"]
        self._last_round.set(event.at)
        missing = [item["state"] for item in body["missing"].values()]
        self._assignments.labels(AssignmentState.REJECTED.value).inc(missing.count(AssignmentState.DELIVERED.value))
        if phase is not None:
            self._seconds.labels("collect", phase.purpose).observe(max(0.0, phase.settled - phase.began))
            self._seconds.labels("aggregate", phase.purpose).observe(max(0.0, event.at - phase.settled))

    def _job(self, event: Appended, state: str) -> None:
        self._entered.labels(state, self._code(event.body.get("code", "")) if event.body.get("code") else "").inc()
        if JobState(state).ended:
            if state == JobState.SUCCEEDED and self._rounds_of.get(event.job or "", 0) >= 1:
                self._rounds.inc()
            self._rounds_of.pop(event.job or "", None)


class _Present(Collector):
    """Jobs, nodes and sessions as they are at the scrape."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[records.Job]],
        trust: Callable[[], Mapping[str, Trust]],
        sessions: Sessions,
        code: KnownWords,
    ) -> None:
        self._jobs = jobs
        self._trust = trust
        self._sessions = sessions
        self._code = code

    def describe(self) -> Iterator[Any]:
        """Nothing ahead of the first scrape."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges."""
        jobs = list(self._jobs())
        yield _gauge(
            "hanse_coordinator_jobs",
            "Jobs that have not ended, by state and the code of the reason.",
            ["state", "reason"],
            Tally((job.state.value, self._code(job.reason.code) if job.reason else "") for job in jobs),
        )
        oldest: dict[tuple[str, ...], float] = {}
        for job in jobs:
            oldest[(job.state.value,)] = min(job.since, oldest.get((job.state.value,), job.since))
        yield _gauge(
            "hanse_coordinator_job_since_timestamp_seconds",
            "Since when the job that is in a state for longest is in it.",
            ["state"],
            oldest,
        )
        yield _gauge(
            "hanse_coordinator_nodes",
            "Nodes by trust and health: connected, absent (gone for less than a lease) or away.",
            ["trust", "health"],
            Tally((trust.value, self._health(node)) for node, trust in self._trust().items()),
        )
        yield GaugeMetricFamily("hanse_coordinator_sessions", "Open sessions.", value=len(self._sessions))

    def _health(self, node: str) -> str:
        if self._sessions.get(node) is not None:
            return "connected"
        return "absent" if self._sessions.present(node) else "away"


def _gauge(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
