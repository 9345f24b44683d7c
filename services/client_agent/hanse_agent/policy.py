"""What the site allows, decided without clock, disk or network. A refusal names the rule, the value and the limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hanse.errors import PolicyRefusal
from hanse.v1 import node_pb2, payload_pb2
from hanse_agent.settings import Policy

LOSSLESS = frozenset({payload_pb2.ENCODING_RAW, payload_pb2.ENCODING_ZSTD})
PURPOSES = frozenset({"train", "adapt", "evaluate"})


class Word(Enum):
    """What a person at the site has said about a job."""

    NONE = "waiting"
    APPROVED = "approved"
    REFUSED = "refused"


class Decision(Enum):
    """What becomes of an offered job."""

    ACCEPTED = "accepted"
    AWAITING_APPROVAL = "awaiting approval"


@dataclass(frozen=True)
class OfferedDataset:
    """What the policy needs to know of a dataset."""

    kind: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """The policy of `agent.yaml` with the datasets and methods that it is about.

    `methods` names the installed methods with the dataset kinds that their learners read (empty: any).
    """

    policy: Policy
    datasets: Mapping[str, OfferedDataset]
    methods: Mapping[str, tuple[str, ...]]

    def decide(self, job: node_pb2.JobDescription, word: Word = Word.NONE, why: str = "") -> Decision:
        """Whether this node takes part in a job; `word` and `why` are what a person has said about it.

        Raises:
            PolicyRefusal: it does not; `rule` is the key of the policy.
        """
        self._check_requirements()
        self._check_method(job)
        self._check_dataset(job)
        if self.policy.compression == "forbidden" and (scheme := _lossy(job)):
            raise _compression(f"the job has its contributions compressed with loss ({scheme})")
        if word is Word.REFUSED:
            raise PolicyRefusal(f"a person at the site refused this job: {why or 'no reason given'}.", rule="approve")
        if self.policy.approve == "by_hand" and word is not Word.APPROVED:
            return Decision.AWAITING_APPROVAL
        return Decision.ACCEPTED

    def check_assignment(self, job: node_pb2.JobDescription, purpose: str, word: Word, why: str = "") -> None:
        """Whether one assignment of a job may be worked on: what was accepted then may be forbidden now.

        Raises:
            PolicyRefusal: it may not.
        """
        if self.decide(job, word, why) is Decision.AWAITING_APPROVAL:
            raise PolicyRefusal(
                f"this site approves each job by hand, and nobody has approved '{job.name}'.",
                rule="approve",
                remedy=f"At the site: hanse-agent approvals approve {job.id}",
            )
        if purpose not in PURPOSES:
            raise PolicyRefusal(f"the purpose '{purpose[:40]}' is not known here.", rule="purpose")
        if job.unseen and purpose == "train":
            raise PolicyRefusal("this node takes part in evaluation alone, and was asked to train.", rule="purpose")

    def check_payload(self, header: payload_pb2.PayloadHeader, size: int) -> None:
        """Whether a contribution may leave.

        Raises:
            PolicyRefusal: it may not.
        """
        limit = self.policy.largest_payload
        if size > limit:
            raise PolicyRefusal(
                f"the contribution has {size} bytes, and this site lets at most {limit} leave at a time.",
                rule="largest_payload",
                remedy="Raise policy.largest_payload at the site, or let the method send less (fewer bins).",
            )
        lossy = next((spec.name for spec in header.arrays if spec.encoding not in LOSSLESS), None)
        if self.policy.compression == "forbidden" and lossy is not None:
            raise _compression(f"the array '{lossy}' of the contribution is compressed with loss")
        if header.WhichOneof("kind") is None:
            raise PolicyRefusal("the contribution is of a kind that this agent does not know.", rule="kind")

    def _check_requirements(self) -> None:
        if self.policy.secure_aggregation == "required":
            raise PolicyRefusal(
                "this site requires secure aggregation, which this version of Hanse does not have.",
                rule="secure_aggregation",
                remedy="Wait for a version that has it, or set policy.secure_aggregation: not_required at the site.",
            )
        if self.policy.privacy_budget is not None:
            raise PolicyRefusal(
                "this site requires accounting against a privacy budget "
                f"(epsilon {self.policy.privacy_budget.epsilon:g}), which this version of Hanse does not have.",
                rule="privacy_budget",
                remedy="Wait for a version that has it, or remove policy.privacy_budget at the site.",
            )

    def _check_method(self, job: node_pb2.JobDescription) -> None:
        if job.method not in self.policy.methods:
            raise PolicyRefusal(
                f"the method '{job.method[:100]}' is not allowed here (allowed: {_listed(self.policy.methods)}).",
                rule="methods",
                remedy="Add it to policy.methods at the site, if the site wants it.",
            )
        if job.method not in self.methods:
            raise PolicyRefusal(
                f"the method '{job.method[:100]}' is allowed here, but no learner for it is installed.",
                rule="methods",
                remedy="Install the package that holds the learner.",
            )
        if job.model and self.policy.models is not None and job.model not in self.policy.models:
            raise PolicyRefusal(
                f"the model '{job.model[:100]}' is not allowed here (allowed: {_listed(self.policy.models)}).",
                rule="models",
                remedy="Add it to policy.models at the site, if the site wants it.",
            )

    def _check_dataset(self, job: node_pb2.JobDescription) -> None:
        dataset = self.datasets.get(job.dataset)
        if dataset is None:
            raise PolicyRefusal(
                f"the dataset '{job.dataset[:100]}' is not offered here (offered: {_listed(self.datasets)}).",
                rule="datasets",
                remedy="Declare it under datasets (and policy.datasets, where that is set) at the site, and see "
                "in `hanse-agent status` that it can be read.",
            )
        kinds = self.methods[job.method]
        if kinds and dataset.kind not in kinds:
            raise PolicyRefusal(
                f"the dataset '{job.dataset}' is of kind '{dataset.kind}', and the method '{job.method}' reads "
                f"{_listed(kinds)}.",
                rule="datasets",
                remedy="Name a dataset of a fitting kind in the job file.",
            )
        if dataset.rows < self.policy.minimum_rows:
            raise PolicyRefusal(
                f"the dataset '{job.dataset}' has {dataset.rows} rows, and this site takes part with at least "
                f"{self.policy.minimum_rows}.",
                rule="minimum_rows",
                remedy="Lower policy.minimum_rows at the site, or wait for more records.",
            )


def _lossy(job: node_pb2.JobDescription) -> str:
    """The lossy form that a job asks for; empty: none."""
    try:
        config = json.loads(job.config or b"{}")
        scheme = config["compression"]["scheme"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(scheme)[:40] if scheme != "none" else ""


def _compression(what: str) -> PolicyRefusal:
    return PolicyRefusal(
        f"{what}, which this site forbids.",
        rule="compression",
        remedy="Leave method_config.compression.scheme at none in the job file, or set policy.compression: allowed "
        "at the site.",
    )


def _listed(names: Mapping[str, object] | tuple[str, ...]) -> str:
    return ", ".join(sorted(names)) or "none"
