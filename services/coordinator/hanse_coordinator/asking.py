"""Asking nodes whether they take part in a job, and writing down what they say."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hanse.errors import Reason
from hanse.ledger import Transaction, records
from hanse.ledger.states import Decision, JobState
from hanse.v1 import node_pb2
from hanse_coordinator import messages
from hanse_coordinator.collecting import Mirror, Surroundings
from hanse_coordinator.inputs import Replied
from hanse_coordinator.sessions import NodeSession

__all__ = ["Asking"]


class Asking:
    """The offers of one job. Every answer is in the ledger before it counts."""

    def __init__(self, around: Surroundings, mirror: Mirror) -> None:
        self._around = around
        self._mirror = mirror

    async def offer(self, session: NodeSession, *, fresh: bool) -> None:
        """Offer the job to a node that may take part and has not agreed yet; `fresh`: ask again who refused."""
        job, offers = self._mirror.job, self._mirror.offers
        if job.state not in {JobState.WAITING, JobState.RUNNING} or not offers.should_offer(session, fresh=fresh):
            return
        await self._write(session.node, Decision.OFFERED, None)
        offers.offered(session.node, asyncio.get_running_loop().time())
        described = messages.job_description(job, self._mirror.spec, unseen=offers.unseen(session.node))
        session.send(offer=node_pb2.Offer(job=described))

    async def replied(self, item: Replied) -> None:
        """A node answered."""
        known = self._mirror.offers.participants.get(item.node)
        if known is not None and (known.decision, known.reason) != (item.decision, item.reason):
            await self._write(item.node, item.decision, item.reason)

    async def explain_waiting(self) -> None:
        """Let the ledger say what the job waits for, when that has changed."""
        job, reason = self._mirror.job, self._mirror.offers.waiting_for()
        if reason != job.reason:
            await self._around.ledger.write(lambda tx: tx.update_job(job.id, reason=reason), patience=None)
            self._mirror.job = replace(job, reason=reason)

    async def _write(self, node: str, decision: Decision, reason: Reason | None) -> None:
        job, spec, offers = self._mirror.job.id, self._mirror.spec, self._mirror.offers
        session = self._around.sessions.get(node)
        dataset = session.dataset(spec.dataset) if session else None
        unseen = offers.unseen(node)

        def work(tx: Transaction) -> records.Participation:
            tx.set_participation(
                job=job,
                node=node,
                decision=decision,
                unseen=unseen,
                reason=reason,
                dataset=messages.dataset_to_dict(dataset) if dataset else None,
            )
            body: dict[str, object] = {"decision": decision.value, "unseen": unseen}
            if reason:
                body |= {"code": reason.code, "sentence": reason.sentence, "owner": reason.owner.value}
            tx.event("offer_" + decision.value, job=job, node=node, body=body)
            found = tx.participation(job, node)
            assert found is not None
            return found

        offers.participants[node] = await self._around.ledger.write(work, patience=None)
