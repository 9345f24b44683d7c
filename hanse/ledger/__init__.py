"""The ledger: the database of everything that happened, with a hash-chained audit trail.

`Ledger` opens it; `Transaction` and `View` are what its blocks give; records are frozen dataclasses.
"""

from hanse.ledger.chain import Head, Verification, verify
from hanse.ledger.database import InvariantBroken
from hanse.ledger.records import (
    Artifact,
    Assignment,
    Certificate,
    Contribution,
    Event,
    Invitation,
    Job,
    Leader,
    Lease,
    Metric,
    Node,
    OperatorToken,
    Participation,
    Phase,
    PhaseTally,
    Picture,
    Round,
)
from hanse.ledger.repository import Ledger, Transaction, View
from hanse.ledger.rows import new_id
from hanse.ledger.states import ROLES, AssignmentState, Decision, JobState, PhaseState, Trust

__all__ = [
    "ROLES",
    "Artifact",
    "Assignment",
    "AssignmentState",
    "Certificate",
    "Contribution",
    "Decision",
    "Event",
    "Head",
    "InvariantBroken",
    "Invitation",
    "Job",
    "JobState",
    "Leader",
    "Lease",
    "Ledger",
    "Metric",
    "Node",
    "OperatorToken",
    "Participation",
    "Phase",
    "PhaseState",
    "PhaseTally",
    "Picture",
    "Round",
    "Transaction",
    "Trust",
    "Verification",
    "View",
    "new_id",
    "verify",
]
