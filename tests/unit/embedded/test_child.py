"""A supervised program: kept alive, heard, and gone when it should be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from hanse.embedded import Child
from hanse.errors import PlatformError

from .conftest import alive, until


def test_one_that_fails_at_once_is_not_started_again_and_its_last_words_are_the_error(child):
    made = child("fail", ready=False)
    with pytest.raises(PlatformError, match="fail ended before it served: the configuration is wrong"):
        made.wait_ready(lambda: False, timeout_s=20)
    assert made.restarts == 0
    assert made.wait(5) == 3


def test_one_that_never_serves_is_given_up(child):
    with pytest.raises(PlatformError, match="does not serve after 0 s"):
        child("sleep", ready=False).wait_ready(lambda: False, timeout_s=0.3)


def test_waiting_ends_when_somebody_asks(child):
    asked = threading.Event()
    asked.set()
    assert child("sleep", ready=False).wait_ready(lambda: False, timeout_s=20, unless=asked) is False


def test_one_that_is_killed_is_started_again_and_the_person_is_told(child, said):
    made = child("sleep")
    until(lambda: "pid" in made.last_words)
    first = made.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: made.restarts == 1 and made.pid != first)
    assert any("sleep was ended by SIGKILL; starting it again" in line for line in said)


def test_pauses_grow_for_one_that_keeps_dying(child, said):
    made = child("fail")
    until(lambda: made.restarts >= 3)
    made.stop()
    pauses = [float(line.rpartition(" in ")[2].removesuffix(" s.")) for line in said]
    assert pauses[2] > pauses[0]


def test_a_stop_during_the_pause_ends_it(child):
    made = child("fail")
    until(lambda: made.restarts >= 2)
    made.stop()
    assert made.ended


def test_stopping_drains(child):
    made = child("sleep")
    until(lambda: "pid" in made.last_words)
    pid = made.pid
    made.stop()
    assert made.ended
    assert not alive(pid)
    assert made.restarts == 0


def test_one_that_does_not_listen_is_ended_with_its_own_children(child, said):
    made = child("parent")
    until(lambda: "worker" in made.last_words)
    worker = int(made.last_words.split()[1])
    assert alive(worker)
    made.stop(grace_s=0.3)
    until(lambda: not alive(worker))
    assert any("does not stop" in line for line in said)


def test_no_setting_of_ours_leaks_into_it_and_loopback_needs_no_proxy(child, monkeypatch):
    monkeypatch.setenv("HANSE_STATE", "/elsewhere")
    monkeypatch.setenv("no_proxy", "intranet")
    made = child("environment")
    until(lambda: "PATH" in made.last_words)
    environment = json.loads(made.last_words)
    assert "HANSE_STATE" not in environment
    assert environment["no_proxy"] == "intranet,127.0.0.1,localhost"


def test_its_output_is_kept_in_a_private_file(child, tmp_path):
    made = child("sleep")
    until(lambda: "pid" in made.last_words)
    log = tmp_path / "child.log"
    assert "pid" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_without_a_file_its_output_is_on_standard_error_under_its_name(capfd):
    made = Child("sleeper", ["programs", "sleep"], say=print)
    made.start()
    until(lambda: "pid" in made.last_words)
    made.stop()
    assert "sleeper: pid" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
def test_a_supervisor_that_is_killed_leaves_nothing_behind():
    command = [sys.executable, "-m", "programs", "supervise"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as supervisor:
        line = supervisor.stderr.readline().decode()
        inner = int(line.split()[-1])
        assert alive(inner)
        supervisor.kill()
    until(lambda: not alive(inner))
