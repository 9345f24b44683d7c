"""Answers to offered jobs: by the policy, and by a person where the policy says so."""

from __future__ import annotations

import asyncio

from hanse.errors import HanseError, PolicyRefusal, Reason
from hanse.logs import logger
from hanse.rpc import to_proto
from hanse.v1 import node_pb2
from hanse_agent import metrics
from hanse_agent.approvals import Approvals
from hanse_agent.catalogue import Catalogue
from hanse_agent.link import Links
from hanse_agent.policy import Decision, Word

WATCH_EVERY_S = 1.0

_WIRE = {
    Decision.ACCEPTED: node_pb2.OfferReply.DECISION_ACCEPTED,
    Decision.AWAITING_APPROVAL: node_pb2.OfferReply.DECISION_AWAITING_APPROVAL,
}


class Offers:
    """The offers of this session of the agent that wait for a person, and how offers are answered."""

    def __init__(self, catalogue: Catalogue, approvals: Approvals, links: Links) -> None:
        self._catalogue = catalogue
        self._approvals = approvals
        self._links = links
        self._waiting: dict[str, node_pb2.JobDescription] = {}
        self._any = asyncio.Event()

    def take(self, job: node_pb2.JobDescription) -> None:
        """Answer an offer now."""
        decision, reason = self._decide(job)
        reply = node_pb2.OfferReply(
            job=job.id,
            decision=_WIRE[decision] if decision else node_pb2.OfferReply.DECISION_REFUSED,
            reason=to_proto(reason),
        )
        if decision is Decision.AWAITING_APPROVAL:
            self._approvals.ask(job)
            self._waiting[job.id] = job
            self._any.set()
        else:
            self.forget(job.id)
        logger(job=job.id, method=job.method).info(
            "offer answered",
            decision=decision.value if decision else "refused",
            **({"reason": reason.sentence} if reason else {}),
        )
        if (link := self._links.current) is not None:
            link.send(offer_reply=reply)

    def end(self, job: str) -> None:
        """The job is over: nobody needs to decide about it any more."""
        self.forget(job)
        self._approvals.drop(job)

    def forget(self, job: str) -> None:
        """The job waits for no answer any more."""
        self._waiting.pop(job, None)
        if not self._waiting:
            self._any.clear()

    async def watch(self) -> None:
        """While jobs wait for a person, see whether one has decided."""
        seen = self._approvals.stamp()
        while True:
            await self._any.wait()
            await asyncio.sleep(WATCH_EVERY_S)
            now = self._approvals.stamp()
            if now == seen or self._links.current is None:
                continue
            seen = now
            for job in list(self._waiting.values()):
                said = self._approvals.get(job.id)
                if said is not None and said.word is not Word.NONE:
                    self.take(job)

    def _decide(self, job: node_pb2.JobDescription) -> tuple[Decision | None, Reason | None]:
        try:
            unreadable = self._catalogue.unavailable.get(job.dataset)
            if unreadable is not None:
                return None, unreadable
            said = self._approvals.get(job.id)
            word, why = (said.word, said.why) if said else (Word.NONE, "")
            return self._catalogue.policy.decide(job, word, why), None
        except HanseError as error:
            if isinstance(error, PolicyRefusal):
                metrics.refused(error.code)
            return None, error.reason
