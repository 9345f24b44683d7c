"""The journal: whole lines on disk before anything leaves, and repetitions called by their name."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hanse_agent import files
from hanse_agent.egress import EgressJournal, Shipment

SHIPMENT = Shipment(
    node="site-a",
    job="j1",
    job_name="activity",
    phase="atoms",
    round=3,
    purpose="train",
    assignment="a1",
    kind="atom_statistics",
    arrays=({"name": "weight", "dtype": "int64", "shape": [4, 2]},),
    size=4096,
    digest="ab" * 32,
)


def test_a_line_says_what_left_when_and_for_whom(tmp_path: Path) -> None:
    journal = EgressJournal(tmp_path / "egress.jsonl")

    assert journal.record(SHIPMENT) == "left"

    (line,) = [json.loads(text) for text in (tmp_path / "egress.jsonl").read_text().splitlines()]
    assert datetime.fromisoformat(line.pop("when")).tzinfo is not None
    assert line == {
        "event": "left",
        "node": "site-a",
        "job": "j1",
        "job_name": "activity",
        "phase": "atoms",
        "round": 3,
        "purpose": "train",
        "assignment": "a1",
        "kind": "atom_statistics",
        "arrays": [{"name": "weight", "dtype": "int64", "shape": [4, 2]}],
        "bytes": 4096,
        "digest": "ab" * 32,
    }


def test_the_line_is_flushed_to_the_disk_before_record_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "egress.jsonl"
    flushed: list[str] = []

    def fsync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            flushed.append(path.read_text())

    monkeypatch.setattr(files.os, "fsync", fsync)
    EgressJournal(path).record(SHIPMENT)

    assert flushed == [path.read_text()]
    assert path.read_text().endswith("\n")


def test_the_same_bytes_again_are_resent(tmp_path: Path) -> None:
    journal = EgressJournal(tmp_path / "egress.jsonl")

    assert [journal.record(SHIPMENT), journal.record(SHIPMENT)] == ["left", "resent"]


def test_another_process_knows_what_an_earlier_one_sent(tmp_path: Path) -> None:
    EgressJournal(tmp_path / "egress.jsonl").record(SHIPMENT)

    assert EgressJournal(tmp_path / "egress.jsonl").record(SHIPMENT, earlier=True) == "resent"


def test_what_was_finished_but_never_sent_has_not_been_resent(tmp_path: Path) -> None:
    EgressJournal(tmp_path / "egress.jsonl").record(SHIPMENT)
    other = replace(SHIPMENT, assignment="a2")

    assert EgressJournal(tmp_path / "egress.jsonl").record(other, earlier=True) == "left"


def test_a_torn_last_line_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "egress.jsonl"
    EgressJournal(path).record(SHIPMENT)
    with path.open("a") as file:
        file.write('{"when": "2026-01-01T00:00:00+00:00", "job": "j1", "ass')

    journal = EgressJournal(path)
    journal.record(replace(SHIPMENT, assignment="a2"))

    assert [line["assignment"] for line in journal.entries()] == ["a1", "a2"]


def test_entries_are_chosen_by_job_and_time(tmp_path: Path) -> None:
    journal = EgressJournal(tmp_path / "egress.jsonl")
    journal.record(SHIPMENT)
    journal.record(replace(SHIPMENT, assignment="a2", job="j2", job_name="other"))

    assert [line["assignment"] for line in journal.entries(job="j2")] == ["a2"]
    assert [line["assignment"] for line in journal.entries(job="activity")] == ["a1"]
    assert list(journal.entries(since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert len(list(journal.entries(since=datetime.now(UTC) - timedelta(hours=1)))) == 2


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(EgressJournal(tmp_path / "egress.jsonl").entries()) == []


def test_the_journal_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    EgressJournal(tmp_path / "egress.jsonl").record(SHIPMENT)

    assert (tmp_path / "egress.jsonl").stat().st_mode & 0o077 == 0
