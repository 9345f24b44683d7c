"""What a run of the harness leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hanse.errors import NotFound, OperatorError, Reason
from hanse.method import MetricValue, Outcome, Purpose, Scope
from hanse.payload import Payload


class QuorumNotMet(OperatorError):
    """Too few nodes contributed to a phase; `refusals` says why, node by node."""

    default_code = "QUORUM_NOT_MET"

    def __init__(self, sentence: str, refusals: Mapping[str, Reason]) -> None:
        super().__init__(sentence, remedy=" ".join(f"{node}: {reason}" for node, reason in refusals.items()))
        self.refusals = dict(refusals)


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """A metric and the phase that it comes from."""

    phase: str
    round: int
    metric: MetricValue


@dataclass(frozen=True, kw_only=True)
class PhaseRecord:
    """What happened in one phase. `contributions` are the digests by node, in order of name."""

    name: str
    round: int
    purpose: Purpose
    instruction: bytes
    contributions: Mapping[str, bytes]
    sent: Mapping[str, int]
    refusals: Mapping[str, Reason]
    outcome: Outcome


@dataclass(kw_only=True)
class HarnessResult:
    """A finished run. `bytes_sent` is what left each node."""

    model: Payload | None = None
    metrics: list[MetricRow] = field(default_factory=list)
    phases: list[PhaseRecord] = field(default_factory=list)
    bytes_sent: dict[str, int] = field(default_factory=dict)
    bytes_received: dict[str, int] = field(default_factory=dict)
    state: Payload | None = None

    @property
    def model_digest(self) -> bytes:
        """SHA-256 of the model's payload.

        Raises:
            NotFound: the job has made no model.
        """
        if self.model is None:
            raise NotFound("The job has made no model.")
        return self.model.digest

    @property
    def contributions(self) -> list[tuple[str, int, str, bytes]]:
        """(phase, round, node, digest) of everything that was contributed, in order."""
        return [
            (record.name, record.round, node, digest)
            for record in self.phases
            for node, digest in record.contributions.items()
        ]

    def value(self, name: str, *, scope: Scope = Scope.POOLED, node: str = "") -> float:
        """The last value of a metric.

        Raises:
            NotFound: no such metric.
        """
        for row in reversed(self.metrics):
            if (row.metric.name, row.metric.scope, row.metric.node) == (name, scope, node):
                return row.metric.value
        raise NotFound(f"There is no metric '{name}' of scope '{scope}'" + (f" of node '{node}'." if node else "."))

    def by_node(self, name: str) -> dict[str, float]:
        """The last value of a metric at each node."""
        values = {
            row.metric.node: row.metric.value
            for row in self.metrics
            if row.metric.name == name and row.metric.scope is Scope.NODE
        }
        return dict(sorted(values.items()))
