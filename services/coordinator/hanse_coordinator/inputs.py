"""What can reach a running job from outside, as plain values."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hanse.errors import Reason
from hanse.ledger.states import Decision
from hanse_coordinator.sessions import NodeSession
from hanse_coordinator.states import AssignmentEvent, JobEvent

__all__ = ["Command", "Connected", "Delivered", "Input", "Replied", "Settled", "Wake"]


@dataclass(frozen=True)
class Wake:
    """Look again: a timer fired, or a node came or went."""


@dataclass(frozen=True)
class Connected:
    """A node opened a session; `fresh`: by another agent process than the one before."""

    session: NodeSession
    fresh: bool


@dataclass(frozen=True)
class Replied:
    """A node answered an offer."""

    node: str
    decision: Decision
    reason: Reason | None


@dataclass(frozen=True)
class Delivered:
    """A node's contribution is in the artifact store. `recorded` resolves once it is in the ledger."""

    node: str
    assignment: str
    fence: int
    digest: str
    size: int
    recorded: asyncio.Future[bool]
    """True: it counts; False: it came too late and is only recorded."""


@dataclass(frozen=True)
class Settled:
    """A node will not contribute: it refused (policy) or failed."""

    node: str
    assignment: str
    fence: int
    event: AssignmentEvent
    reason: Reason


@dataclass(frozen=True)
class Command:
    """An operator wants something of the job."""

    event: JobEvent
    actor: str
    why: str
    done: asyncio.Future[None]


Input = Wake | Connected | Replied | Delivered | Settled | Command
