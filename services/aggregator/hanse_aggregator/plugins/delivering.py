"""The last phase of a job: the finished model goes to every node, for predictions there.

It is for the nodes' own sake. The model is the job's result already, so the phase needs no answer (purpose `adapt`):
nodes that are away, or cannot keep it, neither pause the job nor fail it. The ledger has them as absent when the phase
opened, or with the reason why their assignment ended.
"""

from __future__ import annotations

from collections.abc import Mapping

from hanse.method import Audience, Contribution, MetricValue, Outcome, Phase, Purpose, Scope
from hanse.payload import Payload
from hanse.payload.kinds import read_document

DELIVER = "deliver"


def delivery(phase: Phase, instruction: Payload, personal: Mapping[str, Payload] | None = None) -> Phase:
    """The phase that brings a model to all nodes, to some with a payload of their own."""
    return phase.then(DELIVER, instruction, purpose=Purpose.ADAPT, audience=Audience.ALL, personal=dict(personal or {}))


class DeliveryAggregation:
    """Nothing is added up: nodes that have the model are counted, and the job ends. `reply` is the document's kind."""

    def __init__(self, state: Payload | None, reply: str) -> None:
        self._state = state
        self._reply = reply
        self._nodes = 0

    def add(self, contribution: Contribution) -> None:
        """Count a node that has the model.

        Raises:
            InvalidPayload: another reply than that it came.
        """
        read_document(contribution.payload, self._reply)
        self._nodes += 1

    def finish(self) -> Outcome:
        """The end of the job."""
        count = MetricValue(name="nodes_with_the_model", value=float(self._nodes), scope=Scope.AGGREGATION)
        return Outcome(next_phase=None, state=self._state, metrics=(count,))
