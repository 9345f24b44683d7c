"""Who may take part in a job, who said yes, and what a job that has not begun is waiting for."""

from __future__ import annotations

from collections.abc import Iterable

from hanse.errors import Owner, Reason
from hanse.jobs import JobSpecification
from hanse.ledger import records
from hanse.ledger.states import Decision
from hanse.selection import matches
from hanse_coordinator.sessions import NodeSession, Sessions

__all__ = ["Offers"]

# A connected node that has not answered an offer for so long is not waited for.
PATIENCE = 20.0


class Offers:
    """The participations of one job, mirrored from the ledger, with the time of each open offer."""

    def __init__(self, spec: JobSpecification, sessions: Sessions) -> None:
        self._spec = spec
        self._sessions = sessions
        self.participants: dict[str, records.Participation] = {}
        self._offered_at: dict[str, float] = {}

    def unfit(self, session: NodeSession) -> str:
        """Why a connected node cannot take part, in words; empty when it can."""
        spec = self._spec
        if not matches(session.labels, spec.selection.labels):
            return "does not carry the labels"
        if spec.method not in session.hello.methods:
            return f"has no learner for '{spec.method}'"
        dataset = session.dataset(spec.dataset)
        if dataset is None:
            return f"offers no dataset '{spec.dataset}'"
        if dataset.HasField("unavailable"):
            return f"cannot read dataset '{spec.dataset}': {dataset.unavailable.sentence}"
        return ""

    def should_offer(self, session: NodeSession, *, fresh: bool) -> bool:
        """Whether to offer the job: to whom never answered, and again to whom refused before a restart."""
        known = self.participants.get(session.node)
        if self.unfit(session) or (known is not None and known.decision is Decision.ACCEPTED):
            return False
        return known is None or known.decision is Decision.OFFERED or fresh

    def offered(self, node: str, now: float) -> None:
        """An offer is on its way."""
        self._offered_at[node] = now

    def unseen(self, node: str) -> bool:
        """Whether the job keeps this node out of training."""
        return node in self._spec.evaluation.unseen

    def accepted(self, *, unseen: bool) -> list[str]:
        """The nodes that accepted, sorted: those that train, or those that never do."""
        return sorted(
            item.node
            for item in self.participants.values()
            if item.decision is Decision.ACCEPTED and item.unseen == unseen
        )

    def undecided(self, now: float) -> list[str]:
        """Connected nodes whose answer may still come."""
        return [
            item.node
            for item in self.participants.values()
            if item.decision is Decision.OFFERED
            and self._sessions.get(item.node)
            and now - self._offered_at.get(item.node, -PATIENCE) < PATIENCE
        ]

    def next_wake(self, now: float) -> float | None:
        """When the oldest open offer stops being waited for."""
        times = [self._offered_at[node] + PATIENCE for node in self.undecided(now)]
        return min(times, default=None)

    def ready(self, now: float) -> bool:
        """Whether the job can begin."""
        trainers = [node for node in self.accepted(unseen=False) if self._sessions.present(node)]
        return len(trainers) >= self._spec.selection.minimum_nodes and not self.undecided(now)

    def waiting_for(self) -> Reason:
        """What a job that cannot begin is waiting for, and who can do something about it."""
        trainers = [node for node in self.accepted(unseen=False) if self._sessions.present(node)]
        by_hand = self._with(Decision.AWAITING_APPROVAL)
        refused = self._with(Decision.REFUSED)
        parts = [f"{len(trainers)} of {self._spec.selection.minimum_nodes} nodes are ready"]
        if by_hand:
            parts.append(f"{_names(by_hand)} wait for a person at the site")
        parts += [
            f"{item.node} refused: {item.reason.sentence.rstrip('.') if item.reason else 'no reason'}"
            for item in refused[:3]
        ]
        for session in list(self._sessions)[:200]:
            if session.node not in self.participants and (why := self.unfit(session)):
                parts.append(f"{session.node} {why.rstrip('.')}")
        shown = parts[:6] + ([f"and {len(parts) - 6} more"] if len(parts) > 6 else [])
        remedy = "Approve it at the site (`hanse-agent approvals`)." if by_hand else "Connect more nodes that offer it."
        owner = Owner.SITE if by_hand or refused else Owner.OPERATOR
        return Reason(code="WAITING_FOR_NODES", sentence="; ".join(shown) + ".", owner=owner, remedy=remedy)

    def _with(self, decision: Decision) -> list[records.Participation]:
        found: Iterable[records.Participation] = self.participants.values()
        return sorted((item for item in found if item.decision is decision), key=lambda item: item.node)


def _names(items: list[records.Participation]) -> str:
    shown = ", ".join(item.node for item in items[:5])
    return shown + (f" and {len(items) - 5} more" if len(items) > 5 else "")
