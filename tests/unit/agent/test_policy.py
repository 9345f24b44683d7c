"""What the site allows: every key of the policy decides something, and a refusal names it with value and limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hanse.errors import PolicyRefusal
from hanse.v1 import payload_pb2
from hanse_agent.policy import Decision, OfferedDataset, SitePolicy, Word
from hanse_agent.settings import Policy
from tests.unit.agent.probe import job

METRICS = payload_pb2.PayloadHeader(metrics=payload_pb2.Metrics())


def site(*, rows: int = 200, kind: str = "probe", kinds: tuple[str, ...] = ("probe",), **rules: Any) -> SitePolicy:
    return SitePolicy(
        policy=Policy.model_validate({"methods": ["probe"], **rules}),
        datasets={"records": OfferedDataset(kind=kind, rows=rows)},
        methods={"probe": kinds},
    )


def refusal(policy: SitePolicy, word: Word = Word.NONE, why: str = "", **changes: Any) -> PolicyRefusal:
    with pytest.raises(PolicyRefusal) as caught:
        policy.decide(job(**changes), word, why)
    return caught.value


def test_a_job_within_the_policy_is_accepted() -> None:
    assert site().decide(job()) is Decision.ACCEPTED


def test_methods_that_are_not_listed_are_refused() -> None:
    error = refusal(site(), method="other")

    assert (error.rule, error.code) == ("methods", "POLICY_METHODS")
    assert "'other' is not allowed here (allowed: probe)" in error.sentence


def test_a_listed_method_without_a_learner_is_refused() -> None:
    error = refusal(site(methods=["probe", "other"]), method="other")

    assert error.rule == "methods"
    assert "no learner for it is installed" in error.sentence


def test_datasets_that_are_not_offered_are_refused() -> None:
    error = refusal(site(), dataset="secrets")

    assert error.rule == "datasets"
    assert "'secrets' is not offered here (offered: records)" in error.sentence


def test_a_dataset_of_a_kind_that_the_learner_does_not_read_is_refused() -> None:
    error = refusal(site(kind="images"))

    assert error.rule == "datasets"
    assert "is of kind 'images', and the method 'probe' reads probe" in error.sentence


def test_models_that_are_not_listed_are_refused_where_models_are_listed() -> None:
    assert site().decide(job(model="any")) is Decision.ACCEPTED
    assert site(models=["small"]).decide(job(model="small")) is Decision.ACCEPTED
    assert site(models=["small"]).decide(job()) is Decision.ACCEPTED

    assert refusal(site(models=["small"]), model="large").rule == "models"


def test_too_few_rows_are_refused_with_both_numbers() -> None:
    assert site(minimum_rows=200).decide(job()) is Decision.ACCEPTED
    error = refusal(site(minimum_rows=201))

    assert error.rule == "minimum_rows"
    assert "has 200 rows, and this site takes part with at least 201" in error.sentence


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        ({"secure_aggregation": "required"}, "secure_aggregation"),
        ({"privacy_budget": {"epsilon": 1.0, "delta": 1e-6}}, "privacy_budget"),
    ],
)
def test_requirements_that_cannot_be_met_yet_refuse_every_job(rules: dict[str, Any], rule: str) -> None:
    error = refusal(site(**rules))

    assert error.rule == rule
    assert "does not have" in error.sentence


def test_by_hand_a_job_waits_until_a_person_speaks() -> None:
    policy = site(approve="by_hand")

    assert policy.decide(job()) is Decision.AWAITING_APPROVAL
    assert policy.decide(job(), Word.APPROVED) is Decision.ACCEPTED
    error = refusal(policy, Word.REFUSED, "not this month")
    assert error.rule == "approve"
    assert "not this month" in error.sentence


def test_an_approval_does_not_set_aside_the_other_rules() -> None:
    assert refusal(site(approve="by_hand", minimum_rows=1000), Word.APPROVED).rule == "minimum_rows"


def test_an_assignment_of_a_job_that_nobody_approved_is_refused() -> None:
    with pytest.raises(PolicyRefusal, match="nobody has approved") as caught:
        site(approve="by_hand").check_assignment(job(), "train", Word.NONE)

    assert "hanse-agent approvals approve job-1" in caught.value.remedy


def test_an_assignment_is_judged_by_the_policy_of_now() -> None:
    with pytest.raises(PolicyRefusal, match="'other' is not allowed here"):
        site().check_assignment(job(method="other"), "train", Word.NONE)


def test_unknown_purposes_are_refused() -> None:
    with pytest.raises(PolicyRefusal, match="the purpose 'export' is not known"):
        site().check_assignment(job(), "export", Word.NONE)


def test_a_node_that_is_left_out_of_training_does_not_train() -> None:
    site().check_assignment(job(unseen=True), "adapt", Word.NONE)
    site().check_assignment(job(unseen=True), "evaluate", Word.NONE)
    with pytest.raises(PolicyRefusal, match="evaluation alone"):
        site().check_assignment(job(unseen=True), "train", Word.NONE)


def test_a_payload_of_exactly_the_limit_may_leave_and_one_byte_more_may_not() -> None:
    policy = site(largest_payload="1kB")

    policy.check_payload(METRICS, 1000)
    with pytest.raises(PolicyRefusal, match="has 1001 bytes, and this site lets at most 1000 leave") as caught:
        policy.check_payload(METRICS, 1001)
    assert caught.value.rule == "largest_payload"


def test_a_payload_of_an_unknown_kind_does_not_leave() -> None:
    with pytest.raises(PolicyRefusal) as caught:
        site().check_payload(payload_pb2.PayloadHeader(), 10)
    assert caught.value.rule == "kind"


def compressed(scheme: str) -> dict[str, Any]:
    return {"config": json.dumps({"compression": {"scheme": scheme}}).encode()}


@pytest.mark.parametrize("scheme", ["bf16", "int8", "top_k", "a new one"])
def test_a_site_that_forbids_lossy_compression_refuses_the_job_that_asks_for_it(scheme: str) -> None:
    error = refusal(site(compression="forbidden"), **compressed(scheme))

    assert (error.rule, error.code) == ("compression", "POLICY_COMPRESSION")
    assert f"compressed with loss ({scheme})" in error.sentence
    assert site().decide(job(**compressed(scheme))) is Decision.ACCEPTED


@pytest.mark.parametrize(
    "config", [b"", b"{}", b"[]", b"no json", b'{"compression":{"scheme":"none","lossless":true}}']
)
def test_a_job_without_loss_is_welcome_everywhere(config: bytes) -> None:
    assert site(compression="forbidden").decide(job(config=config)) is Decision.ACCEPTED


@pytest.mark.parametrize("encoding", [payload_pb2.ENCODING_BFLOAT16, payload_pb2.ENCODING_TOP_K, 77])
def test_a_lossy_contribution_does_not_leave_such_a_site(encoding: Any) -> None:
    header = payload_pb2.PayloadHeader(weight_delta=payload_pb2.WeightDelta())
    header.arrays.add(name="plain", dtype="float32", encoding=payload_pb2.ENCODING_RAW)
    header.arrays.add(name="packed", dtype="float32", encoding=payload_pb2.ENCODING_ZSTD)
    site(compression="forbidden").check_payload(header, 10)
    header.arrays.add(name="w", dtype="float32", encoding=encoding)
    site().check_payload(header, 10)
    with pytest.raises(PolicyRefusal, match="the array 'w' of the contribution is compressed with loss"):
        site(compression="forbidden").check_payload(header, 10)
