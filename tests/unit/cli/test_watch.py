"""Watching a job: what is seen, how it ends, and what happens when the coordinator is away for a while."""

from __future__ import annotations

import io
import sys

import grpc
import pytest

from hanse.cli import watch
from hanse.cli.watch import answers, block, headline, slowest
from hanse.errors import Forbidden
from hanse.v1 import payload_pb2


def see(cli, served, *flags):
    return cli("job", "watch", "activity", "--state", served.state, *flags)


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 5), ("cancelled", 3)])
def test_the_exit_code_says_how_the_job_ended(cli, served, state, code):
    served.control.watched = [served.control.detail(), served.control.detail(state)]
    assert see(cli, served).code == code


def test_a_failed_job_brings_its_reason_and_its_data(cli, served):
    reason = payload_pb2.Reason(code="NO_DATA", sentence="No rows.", owner="site", remedy="Add rows.")
    served.control.watched = [served.control.detail("failed", reason=reason)]
    result = see(cli, served, "--json")
    assert result.code == 5
    assert result.document["ok"] is False
    assert result.document["error"] == {
        "code": "NO_DATA",
        "sentence": "No rows.",
        "owner": "site",
        "remedy": "Add rows.",
    }
    assert result.document["data"]["job"]["state"] == "failed"


def test_a_wait_that_runs_out_is_exit_6_and_the_job_goes_on(cli, served):
    served.control.watched = [served.control.detail()]
    result = see(cli, served, "--timeout", "300ms")
    assert result.code == 6
    assert "hanse job watch j1" in result.err
    assert not any(method == "CancelJob" for method, _ in served.control.requests)


def test_ctrl_c_only_stops_watching_and_says_how_to_go_on(cli, served, monkeypatch):
    def interrupt(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "follow", interrupt)
    result = see(cli, served)
    assert result.code == 3
    assert "hanse job watch activity" in result.err
    assert not any(method == "CancelJob" for method, _ in served.control.requests)


def test_without_a_terminal_there_is_one_line_a_change(cli, served):
    detail = served.control.detail()
    served.control.watched = [detail, detail, served.control.detail("succeeded")]
    lines = see(cli, served).err.splitlines()
    assert lines == [
        "activity running  round 2/4  atoms 1/3 answered, quorum 2, 1 lost  accuracy 0.8750",
        "activity succeeded  round 2/4  accuracy 0.8750",
    ]


def test_a_restart_of_the_coordinator_is_waited_for(cli, served):
    served.control.watched = [
        served.control.detail(),
        grpc.StatusCode.UNAVAILABLE,
        served.control.detail("succeeded"),
    ]
    result = see(cli, served)
    assert result.code == 0
    assert "Trying again" in result.err
    assert [request.job for method, request in served.control.requests if method == "WatchJob"] == ["activity", "j1"]


def test_a_stream_that_ends_early_is_opened_again(cli, served, monkeypatch):
    served.control.watched = [served.control.detail(), grpc.StatusCode.CANCELLED, served.control.detail("succeeded")]
    assert see(cli, served).code == 0


def test_a_coordinator_that_stays_away_is_given_up(cli, served, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE_S", 0.5)
    served.control.watched = [served.control.detail(), *[grpc.StatusCode.UNAVAILABLE] * 50]
    assert see(cli, served).code == 7


def test_a_refusal_is_not_tried_again(cli, served):
    served.control.watched = [Forbidden("Only for researchers.")]
    assert see(cli, served).code == 4


def test_the_block_shows_what_a_person_asks_for(served):
    lines = block(served.control.detail(seconds_left=125.0))
    text = "\n".join(lines)
    assert "round 2/4" in lines[0]
    assert "atoms (collecting)" in text
    assert "1/3 answered, quorum 2, 1 lost" in text
    assert "slowest    n2 (train 25%)" in text
    assert "accuracy 0.8750" in text
    assert "about 2 min 05 s" in text


def test_nobody_is_slow_when_all_have_answered(served):
    phase = served.control.detail().phase
    for row in phase.assignments:
        row.state = "delivered"
    assert slowest(phase) == ""
    assert answers(phase) == "3/3 answered, quorum 2"


def test_a_hostile_name_does_not_steer_the_terminal(served):
    detail = served.control.detail()
    detail.job.name = "a\x1b[2Jb\nc"
    detail.phase.assignments[1].node = "n\x1b]0;x\x07"
    assert "\x1b[2J" not in headline(detail) + "".join(block(detail))
    assert "\n" not in headline(detail)
    assert "\x1b]" not in "".join(block(detail))


def test_a_terminal_gets_one_block_that_is_drawn_over(served, monkeypatch):
    drawn = io.StringIO()
    monkeypatch.setattr(sys, "stderr", drawn)
    screen = watch.Screen(live=True)
    screen.show(served.control.detail())
    height = len(block(served.control.detail()))
    screen.show(served.control.detail("succeeded"))
    assert f"\x1b[{height}A" in drawn.getvalue()


def test_no_line_of_the_block_wraps(served, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    drawn = io.StringIO()
    monkeypatch.setattr(sys, "stderr", drawn)
    reason = payload_pb2.Reason(code="FEW", sentence="Too few nodes. " * 10, owner="site")
    watch.Screen(live=True).show(served.control.detail("paused", reason=reason))
    lines = drawn.getvalue().replace("\x1b[2K", "").splitlines()
    assert max(map(len, lines)) < 40
    assert "".join(lines).count("Too few") == 10


def test_submit_can_watch(cli, served, job_file):
    served.control.watched = [served.control.detail("succeeded")]
    result = cli("job", "submit", job_file, "--watch", "--state", served.state, "--json")
    assert result.code == 0
    assert result.document["command"] == "job submit"
    assert result.document["data"]["job"]["state"] == "succeeded"
