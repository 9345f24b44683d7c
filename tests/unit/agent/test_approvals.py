"""A person's word is kept in a file that the command line and the agent share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hanse.errors import NotFound, OperatorError
from hanse_agent.approvals import Approvals
from hanse_agent.policy import Word
from tests.unit.agent.probe import job


def test_a_job_waits_until_somebody_speaks(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    asked = approvals.ask(job("job-1"))

    assert asked.word is Word.NONE
    assert approvals.say("job-1", "approved").word is Word.APPROVED
    assert Approvals(tmp_path).get("job-1") == approvals.get("job-1")


def test_asking_again_does_not_take_a_word_back(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    approvals.ask(job())
    approvals.say("job-1", "refused", "holiday")

    again = approvals.ask(job())

    assert (again.word, again.why) == (Word.REFUSED, "holiday")


def test_a_person_may_use_the_name_and_change_their_mind(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    approvals.ask(job("01ab", name="activity"))
    approvals.say("activity", "approved")

    assert approvals.say("01ab", "refused", "second thoughts").word is Word.REFUSED


def test_unknown_jobs_are_not_approved(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no job 'job-9'"):
        Approvals(tmp_path).say("job-9", "approved")


def test_waiting_jobs_come_first(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    for name in ("job-1", "job-2", "job-3"):
        approvals.ask(job(name))
    approvals.say("job-3", "approved")
    approvals.say("job-1", "approved")

    assert approvals.list()[0].job == "job-2"


def test_the_stamp_changes_with_a_decision(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    approvals.ask(job())
    before = approvals.stamp()
    approvals.say("job-1", "approved")

    assert approvals.stamp() != before


def test_a_job_that_ended_undecided_is_forgotten_and_a_decision_is_kept(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    approvals.ask(job("job-1"))
    approvals.ask(job("job-2"))
    approvals.say("job-2", "refused")
    approvals.drop("job-1")
    approvals.drop("job-2")

    assert [item.job for item in approvals.list()] == ["job-2"]


def test_identifiers_from_the_wire_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(OperatorError):
        Approvals(tmp_path).ask(job("../../etc/passwd"))


def test_a_file_that_is_no_approval_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "job-1.json").write_text('{"job": 1}')
    (tmp_path / "job-2.json").write_text("half")

    assert Approvals(tmp_path).list() == []
