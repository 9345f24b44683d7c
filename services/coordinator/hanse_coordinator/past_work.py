"""Work that no runner holds any more: what a node is told about it, and what becomes of contributions to it."""

from __future__ import annotations

from hanse.errors import Conflict, Forbidden, NotFound
from hanse.ledger import JobState, Transaction, View, records
from hanse.ledger.states import AssignmentState
from hanse.rpc import to_proto
from hanse.v1 import node_pb2
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.sessions import NodeSession
from hanse_coordinator.states import ASSIGNMENT, AssignmentEvent, step

__all__ = ["past_assignment", "settle_in_hand", "take_late", "tell_what_ended", "too_late"]

# How many of a node's ended jobs it is reminded of when it connects.
_RECENT_JOBS = 20


async def tell_what_ended(ledger: LedgerThread, session: NodeSession) -> None:
    """Jobs of the node that ended, perhaps while it was away: it need not keep anything for them."""

    def read(view: View) -> list[records.Job]:
        took_part = view.participations_of(session.node, states=[state for state in JobState if state.ended])
        return [view.job(item.job) for item in took_part[-_RECENT_JOBS:]]

    for job in await ledger.read(read):
        session.send(job_ended=node_pb2.JobEnded(job=job.id, state=job.state.value))


async def settle_in_hand(ledger: LedgerThread, session: NodeSession, work: node_pb2.WorkInHand) -> None:
    """A word on what a node still has in hand: none while it is open, else a receipt, or that it is over."""
    found = await ledger.read(lambda view: view.find_assignment(work.assignment))
    if found is not None and found.node == session.node and not found.state.ended:
        return
    if found is not None and found.node == session.node and found.state is AssignmentState.DELIVERED:
        given = await ledger.read(lambda view: view.contribution(work.assignment))
        digest = bytes.fromhex(given.digest) if given else b""
        session.send(receipt=node_pb2.Receipt(assignment=work.assignment, fence=work.fence, digest=digest))
        return
    reason = (found.reason if found else None) or _over(work.assignment).reason
    withdraw = node_pb2.Withdraw(assignment=work.assignment, fence=work.fence, reason=to_proto(reason))
    session.send(withdraw=withdraw)


async def past_assignment(ledger: LedgerThread, node: str, assignment: str) -> records.Assignment:
    """An assignment of a node, as the ledger has it.

    Raises:
        NotFound, Forbidden: no such assignment of this node.
    """
    found = await ledger.read(lambda view: view.find_assignment(assignment))
    if found is None:
        raise NotFound(f"there is no assignment {assignment[:64]}.")
    if found.node != node:
        raise Forbidden(f"assignment {assignment} is not of node '{node}'.", code="NOT_YOURS")
    return found


def take_late(tx: Transaction, assignment: records.Assignment, digest: str, size: int, *, retention_s: float) -> bool:
    """Record a contribution whose phase is over. True: it was taken in time already, and this is the same again.

    Raises:
        Conflict: it was answered with other bytes.
    """
    known = tx.contribution(assignment.id)
    if known is not None:
        if known.digest != digest:
            raise Conflict(
                f"assignment {assignment.id} was answered already, with other bytes.",
                code="ALREADY_CONTRIBUTED",
            )
        return not known.late
    late = step(ASSIGNMENT, tx.assignment(assignment.id).state, AssignmentEvent.DELIVER, what="the assignment")
    tx.add_artifact(
        digest=digest, size=size, kind="contribution", job=assignment.job, retain_until=tx.now + retention_s
    )
    tx.add_contribution(
        assignment=assignment.id,
        phase=assignment.phase,
        job=assignment.job,
        node=assignment.node,
        digest=digest,
        size=size,
        late=True,
    )
    tx.update_assignment(assignment.id, state=late.state)
    body = {"phase": assignment.phase, "digest": digest, "bytes": size, "late": True}
    tx.event("contribution", job=assignment.job, node=assignment.node, body=body)
    return False


def too_late(assignment: str) -> Conflict:
    """The error that a contribution is recorded and not used."""
    return Conflict(
        f"the contribution to assignment {assignment} came after its phase was closed; it is recorded, not used.",
        code="LATE",
    )


def _over(assignment: str) -> Conflict:
    return Conflict(f"assignment {assignment[:64]} is over.", code="PHASE_OVER")
