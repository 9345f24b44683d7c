"""The life of jobs, phases and assignments: one table of (state, event) -> (state, effects).

Nothing here acts. The engine looks a transition up, writes it to the ledger, and only then performs the
effects, in the order given. Whatever is not in a table is not allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from hanse.errors import Conflict
from hanse.ledger.states import AssignmentState as A
from hanse.ledger.states import JobState as J
from hanse.ledger.states import PhaseState as P


class JobEvent(StrEnum):
    """What can happen to a job."""

    OFFER = "offer"
    START = "start"
    FINISH = "finish"
    STUCK = "stuck"
    BREAK = "break"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


class PhaseEvent(StrEnum):
    """What can happen to a phase."""

    ASSIGN = "assign"
    CLOSE = "close"
    OUTCOME = "outcome"
    GIVE_UP = "give up"
    SUSPEND = "suspend"
    STOP = "stop"


class AssignmentEvent(StrEnum):
    """What can happen to an assignment."""

    SEND = "send"
    DELIVER = "deliver"
    REFUSE = "refuse"
    FAIL = "fail"
    LAPSE = "lapse"
    WITHDRAW = "withdraw"
    REJECT = "reject"


class Effect(StrEnum):
    """What the engine does after a transition is in the ledger."""

    OFFER_JOB = "offer the job to the nodes"
    PROCEED = "begin the job, or go on where it stopped"
    END_PHASE = "end the phase that is open"
    SUSPEND_PHASE = "end the phase that is open; keep one whose contributions are complete"
    TELL_NODES = "tell the nodes that the job has ended"
    SEND_ASSIGNMENTS = "send the assignments"
    FINISH_AGGREGATION = "let the aggregator finish"
    DROP_AGGREGATION = "drop the aggregation"
    WITHDRAW_ASSIGNMENTS = "withdraw what is still assigned"
    RETRY_PHASE = "try the phase again, or pause the job"
    NEXT_PHASE = "open the next phase, or end the job"
    AGGREGATE = "hand the contribution to the aggregator"


State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


@dataclass(frozen=True)
class Transition(Generic[State]):
    """Where an event leads, and what follows from it."""

    state: State
    effects: tuple[Effect, ...] = ()


Table = Mapping[tuple[State, Event], Transition[State]]


def _job(state: J, *effects: Effect) -> Transition[J]:
    return Transition(state, effects)


def _phase(state: P, *effects: Effect) -> Transition[P]:
    return Transition(state, effects)


def _assignment(state: A, *effects: Effect) -> Transition[A]:
    return Transition(state, effects)


_BROKEN = _job(J.FAILED, Effect.END_PHASE, Effect.TELL_NODES)
_CANCELLED = _job(J.CANCELLED, Effect.END_PHASE, Effect.TELL_NODES)
_PAUSED = _job(J.PAUSED, Effect.SUSPEND_PHASE)

JOB: Table[J, JobEvent] = {
    (J.SUBMITTED, JobEvent.OFFER): _job(J.WAITING, Effect.OFFER_JOB),
    (J.WAITING, JobEvent.START): _job(J.RUNNING, Effect.PROCEED),
    (J.RUNNING, JobEvent.FINISH): _job(J.SUCCEEDED, Effect.TELL_NODES),
    (J.RUNNING, JobEvent.STUCK): _PAUSED,
    (J.WAITING, JobEvent.BREAK): _BROKEN,
    (J.RUNNING, JobEvent.BREAK): _BROKEN,
    (J.SUBMITTED, JobEvent.PAUSE): _PAUSED,
    (J.WAITING, JobEvent.PAUSE): _PAUSED,
    (J.RUNNING, JobEvent.PAUSE): _PAUSED,
    (J.PAUSED, JobEvent.RESUME): _job(J.WAITING, Effect.OFFER_JOB),
    (J.SUBMITTED, JobEvent.CANCEL): _CANCELLED,
    (J.WAITING, JobEvent.CANCEL): _CANCELLED,
    (J.RUNNING, JobEvent.CANCEL): _CANCELLED,
    (J.PAUSED, JobEvent.CANCEL): _CANCELLED,
}

_ABANDONED = _phase(P.ABANDONED, Effect.WITHDRAW_ASSIGNMENTS, Effect.DROP_AGGREGATION)

PHASE: Table[P, PhaseEvent] = {
    (P.OPEN, PhaseEvent.ASSIGN): _phase(P.COLLECTING, Effect.SEND_ASSIGNMENTS),
    (P.OPEN, PhaseEvent.GIVE_UP): _phase(P.ABANDONED, Effect.RETRY_PHASE),
    (P.OPEN, PhaseEvent.SUSPEND): _ABANDONED,
    (P.OPEN, PhaseEvent.STOP): _ABANDONED,
    (P.COLLECTING, PhaseEvent.CLOSE): _phase(P.AGGREGATING, Effect.FINISH_AGGREGATION),
    (P.COLLECTING, PhaseEvent.GIVE_UP): _phase(
        P.ABANDONED, Effect.WITHDRAW_ASSIGNMENTS, Effect.DROP_AGGREGATION, Effect.RETRY_PHASE
    ),
    (P.COLLECTING, PhaseEvent.SUSPEND): _ABANDONED,
    (P.COLLECTING, PhaseEvent.STOP): _ABANDONED,
    (P.AGGREGATING, PhaseEvent.OUTCOME): _phase(P.CLOSED, Effect.NEXT_PHASE),
    # Its contributions are complete: a pause loses none of them.
    (P.AGGREGATING, PhaseEvent.SUSPEND): _phase(P.AGGREGATING, Effect.DROP_AGGREGATION),
    (P.AGGREGATING, PhaseEvent.STOP): _ABANDONED,
}

_LATE = _assignment(A.LATE)

ASSIGNMENT: Table[A, AssignmentEvent] = {
    (A.PENDING, AssignmentEvent.SEND): _assignment(A.LEASED),
    (A.LEASED, AssignmentEvent.SEND): _assignment(A.LEASED),
    (A.PENDING, AssignmentEvent.DELIVER): _assignment(A.DELIVERED, Effect.AGGREGATE),
    (A.LEASED, AssignmentEvent.DELIVER): _assignment(A.DELIVERED, Effect.AGGREGATE),
    (A.EXPIRED, AssignmentEvent.DELIVER): _LATE,
    (A.WITHDRAWN, AssignmentEvent.DELIVER): _LATE,
    (A.PENDING, AssignmentEvent.REFUSE): _assignment(A.REFUSED),
    (A.LEASED, AssignmentEvent.REFUSE): _assignment(A.REFUSED),
    (A.PENDING, AssignmentEvent.FAIL): _assignment(A.FAILED),
    (A.LEASED, AssignmentEvent.FAIL): _assignment(A.FAILED),
    (A.PENDING, AssignmentEvent.LAPSE): _assignment(A.EXPIRED),
    (A.LEASED, AssignmentEvent.LAPSE): _assignment(A.EXPIRED),
    (A.PENDING, AssignmentEvent.WITHDRAW): _assignment(A.WITHDRAWN),
    (A.LEASED, AssignmentEvent.WITHDRAW): _assignment(A.WITHDRAWN),
    (A.DELIVERED, AssignmentEvent.REJECT): _assignment(A.REJECTED),
}


def step(table: Table[State, Event], state: State, event: Event, *, what: str) -> Transition[State]:
    """Look a transition up.

    Raises:
        Conflict: the event does not fit the state; `what` names the thing in the sentence.
    """
    transition = table.get((state, event))
    if transition is None:
        raise Conflict(
            f"{what} is {state.value}: '{event.value}' is not possible.",
            remedy=_possible(table, state),
            code="WRONG_STATE",
        )
    return transition


def _possible(table: Table[State, Event], state: State) -> str:
    events = [event.value for known, event in table if known == state]
    return f"Possible now: {', '.join(events)}." if events else "Nothing more will happen to it."
