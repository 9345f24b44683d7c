"""Workers are real processes: they die, run out of memory, are stopped, and the agent goes on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hanse.errors import HanseError, MethodError, Owner, SiteError
from hanse.payload import Payload
from hanse.v1 import payload_pb2
from hanse_agent.pool import OutOfMemory, WorkerDied, WorkerPool
from hanse_agent.settings import WorkerSettings
from tests.unit.agent.probe import document_of, eventually, instruction

pytestmark = pytest.mark.usefixtures("probe")


@asynccontextmanager
async def a_pool(**settings: Any) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(WorkerSettings.model_validate({"memory": "1GB", **settings}))
    try:
        yield pool
    finally:
        await pool.close()


def command(
    folder: Path, *, state: Path | None = None, state_of: str = "", job: str = "j1", **ask: Any
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "instruction").write_bytes(instruction(**ask))
    return {
        "do": "perform",
        "assignment": folder.name,
        "node": "site-a",
        "job": {
            "id": job,
            "name": "activity",
            "method": "probe",
            "dataset": "records",
            "rounds": 3,
            "seed": 0,
            "model": "",
            "config": "{}",
        },
        "dataset": {"name": "records", "kind": "probe", "options": {}, "folder": str(folder)},
        "phase": "work",
        "round": 1,
        "purpose": "train",
        "unseen": False,
        "instruction": str(folder / "instruction"),
        "personal": "",
        "state": str(state) if state else "",
        "state_of": state_of,
        "next_state": str(folder / "next_state"),
        "output": str(folder / "image"),
        "limits": {"minimum_rows_per_atom": 7},
    }


def answer(folder: Path) -> dict[str, Any]:
    return document_of((folder / "image").read_bytes())


async def failure(pool: WorkerPool, folder: Path, **ask: Any) -> HanseError:
    with pytest.raises(HanseError) as caught:
        await pool.run(command(folder, **ask))
    return caught.value


async def test_work_is_done_and_its_digest_told(tmp_path: Path) -> None:
    async with a_pool() as pool:
        result = await pool.run(command(tmp_path / "a1"))

    image = (tmp_path / "a1" / "image").read_bytes()
    assert result == {"digest": hashlib.sha256(image).hexdigest(), "size": len(image)}
    assert answer(tmp_path / "a1")["node"] == "site-a"
    assert (tmp_path / "a1" / "next_state" / "count").read_text() == "1"


async def test_what_a_learner_prints_does_not_disturb_the_line(tmp_path: Path) -> None:
    async with a_pool() as pool:
        await pool.run(command(tmp_path / "a1", do="print"))

    assert answer(tmp_path / "a1")["count"] == 1


async def test_a_worker_stays_warm_and_goes_on_from_the_state_that_it_wrote(tmp_path: Path) -> None:
    async with a_pool() as pool:
        await pool.run(command(tmp_path / "a1"), key="site-a/j1/records")
        pids = pool.pids
        state = tmp_path / "a1" / "next_state"
        await pool.run(command(tmp_path / "a2", state=state, state_of="a1"), key="site-a/j1/records")

        assert pool.pids == pids
    assert answer(tmp_path / "a2") == {"count": 2, "performed": 2, "node": "site-a"}


async def test_a_warm_learner_of_another_state_is_made_anew(tmp_path: Path) -> None:
    async with a_pool() as pool:
        await pool.run(command(tmp_path / "a1"))
        await pool.run(command(tmp_path / "a2", state=tmp_path / "a1" / "next_state", state_of="a1"))
        await pool.run(command(tmp_path / "a3", state=tmp_path / "a1" / "next_state", state_of="a1"))

    assert answer(tmp_path / "a3") == {"count": 2, "performed": 1, "node": "site-a"}


async def test_only_so_many_learners_are_kept_warm(tmp_path: Path) -> None:
    async with a_pool(learners=1) as pool:
        await pool.run(command(tmp_path / "a1", job="j1"))
        await pool.run(command(tmp_path / "b1", job="j2"))
        await pool.run(command(tmp_path / "a2", job="j1", state=tmp_path / "a1" / "next_state", state_of="a1"))

    assert answer(tmp_path / "a2")["performed"] == 1


async def test_a_worker_that_was_killed_is_started_again_and_the_work_done(tmp_path: Path) -> None:
    async with a_pool() as pool:
        await pool.run(command(tmp_path / "a1", do="die", once=str(tmp_path / "died")))

    assert (tmp_path / "died").exists()
    assert answer(tmp_path / "a1")["count"] == 1
    assert [path.name for path in (tmp_path / "a1" / "next_state").iterdir()] == ["count"]


async def test_a_worker_that_dies_twice_is_a_failure_of_the_site_with_the_signal(tmp_path: Path) -> None:
    async with a_pool() as pool:
        error = await failure(pool, tmp_path / "a1", do="die")

    assert isinstance(error, WorkerDied)
    assert (error.code, error.owner) == ("WORKER_DIED", Owner.SITE)
    assert "was killed by SIGKILL" in error.sentence


async def test_an_exit_code_is_named(tmp_path: Path) -> None:
    async with a_pool() as pool:
        error = await failure(pool, tmp_path / "a1", do="exit")

    assert "ended with exit code 7" in error.sentence


async def test_the_memory_limit_holds_and_is_named(tmp_path: Path) -> None:
    async with a_pool(memory="600MB") as pool:
        error = await failure(pool, tmp_path / "a1", do="hog")
        assert isinstance(error, OutOfMemory)
        assert (error.code, error.owner) == ("OUT_OF_MEMORY", Owner.SITE)
        assert "worker.memory" in error.remedy

        await pool.run(command(tmp_path / "a2"))
    assert answer(tmp_path / "a2")["count"] == 1


async def test_an_exception_becomes_a_reason_of_the_method_without_its_traceback(tmp_path: Path) -> None:
    async with a_pool() as pool:
        error = await failure(pool, tmp_path / "a1", do="raise")

    assert isinstance(error, MethodError)
    assert error.sentence == "the learner failed with ZeroDivisionError: nought"
    assert "File" not in str(error)


async def test_a_learners_own_reason_is_kept(tmp_path: Path) -> None:
    async with a_pool() as pool:
        error = await failure(pool, tmp_path / "a1", do="site")

    assert isinstance(error, SiteError)
    assert (error.code, error.sentence, error.remedy) == ("CLASS_MISSING", "a class is missing here.", "Add rows.")


async def test_the_limits_of_the_policy_reach_the_learner(tmp_path: Path) -> None:
    async with a_pool() as pool:
        error = await failure(pool, tmp_path / "a1", do="policy")

    assert (error.code, error.sentence) == ("POLICY_MINIMUM_ROWS_PER_ATOM", "atoms of fewer than 7 rows.")


async def test_a_method_without_a_learner_is_named(tmp_path: Path) -> None:
    work = command(tmp_path / "a1")
    work["job"]["method"] = "elsewhere"
    async with a_pool() as pool:
        with pytest.raises(MethodError, match="no learner for method 'elsewhere' is installed here") as caught:
            await pool.run(work)

    assert caught.value.code == "METHOD_NOT_INSTALLED"


async def test_a_learner_fetches_what_its_instruction_refers_to(tmp_path: Path) -> None:
    extra = Payload.build(payload_pb2.Opaque(type="extra"))
    path = tmp_path / "extra"
    digest = extra.write(path).hex()
    asked: list[str] = []

    async def fetch(wanted: str) -> str | None:
        asked.append(wanted)
        return str(path) if wanted == digest else None

    async with a_pool() as pool:
        await pool.run(command(tmp_path / "a1", do="fetch", digest=digest), on_fetch=fetch)
        with pytest.raises(MethodError, match="KeyError"):
            await pool.run(command(tmp_path / "a2", do="fetch", digest="00" * 32), on_fetch=fetch)

    assert asked == [digest, "00" * 32]


async def test_progress_is_passed_on(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    async with a_pool() as pool:
        work = command(tmp_path / "a1", do="progress")
        await pool.run(work, on_progress=lambda fraction, note: told.append((fraction, note)))

    assert told == [(0.25, "a quarter")]


async def test_a_worker_that_computes_is_alive_and_one_that_is_stopped_is_not(tmp_path: Path) -> None:
    alive: list[int] = []
    began, until = tmp_path / "began", tmp_path / "until"
    async with a_pool() as pool:
        work = command(tmp_path / "a1", do="spin", began=str(began), until=str(until))
        running = asyncio.create_task(pool.run(work, key="k", on_alive=lambda: alive.append(1), check_every=0.05))
        await eventually(lambda: len(alive) >= 3 and began.exists(), "signs of life")
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "stopped")
        assert pool._movement("k") == pool._movement("k"), "a stopped worker does not move"
        seen = len(alive)
        os.kill(pid, signal.SIGCONT)
        await eventually(lambda: len(alive) > seen, "life again")
        until.touch()
        await running


async def test_being_cancelled_kills_the_worker_and_the_next_work_gets_a_new_one(tmp_path: Path) -> None:
    began = tmp_path / "began"
    async with a_pool() as pool:
        work = command(tmp_path / "a1", do="wait", began=str(began), until=str(tmp_path / "never"))
        running = asyncio.create_task(pool.run(work))
        await eventually(began.exists)
        (pid,) = pool.pids
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

        assert not psutil.pid_exists(pid)
        await pool.run(command(tmp_path / "a2"))
    assert answer(tmp_path / "a2")["count"] == 1


async def test_a_worker_without_work_is_stopped_and_the_next_work_starts_one(tmp_path: Path) -> None:
    async with a_pool(idle_after="0s") as pool:
        await pool.run(command(tmp_path / "a1"))
        await eventually(lambda: not pool.pids, "the idle worker to end")
        await pool.run(command(tmp_path / "a2"))
    assert answer(tmp_path / "a2")["performed"] == 1


async def test_no_more_workers_than_allowed_run_at_once(tmp_path: Path) -> None:
    until = tmp_path / "until"
    async with a_pool(processes=2) as pool:
        works = [
            command(tmp_path / f"a{n}", job=f"j{n}", do="wait", began=str(tmp_path / f"began{n}"), until=str(until))
            for n in range(4)
        ]
        running = [asyncio.create_task(pool.run(work, key=str(n))) for n, work in enumerate(works)]
        await eventually(lambda: sum((tmp_path / f"began{n}").exists() for n in range(4)) == 2, "two at work")
        assert len(pool.pids) == 2
        until.touch()
        await asyncio.gather(*running)
        assert len(pool.pids) == 2


async def test_threads_and_memory_are_set_before_the_learner_runs(tmp_path: Path) -> None:
    async with a_pool(threads=3, memory="900MB") as pool:
        await pool.run(command(tmp_path / "a1"))
        (pid,) = pool.pids
        process = psutil.Process(pid)

        assert process.environ()["OMP_NUM_THREADS"] == "3"
        assert process.rlimit(psutil.RLIMIT_DATA) == (900_000_000, 900_000_000)


async def test_datasets_and_methods_are_described_and_faults_stay_apart(tmp_path: Path) -> None:
    def dataset(name: str, **options: Any) -> dict[str, Any]:
        return {"name": name, "kind": "probe", "options": options, "folder": str(tmp_path)}

    asked = {
        "do": "describe",
        "datasets": [dataset("good", rows=5), dataset("gone", missing="not-there"), dataset("wrong", colour="red")],
        "methods": ["probe", "elsewhere"],
    }
    async with a_pool() as pool:
        found = await pool.run(asked)

    assert found["datasets"]["good"] == {"rows": 5, "columns": [["x", "float32"]], "target": "y", "facts": {}}
    assert found["datasets"]["gone"]["failed"]["code"] == "DATA_MISSING"
    assert found["datasets"]["wrong"]["failed"]["owner"] == "operator"
    assert "unknown key 'colour'" in found["datasets"]["wrong"]["failed"]["sentence"]
    assert found["methods"]["probe"] == {"version": "1", "kinds": ["probe"]}
    assert found["methods"]["elsewhere"]["failed"]["code"] == "METHOD_NOT_INSTALLED"
    json.dumps(found)


async def test_a_worker_ends_with_the_agent_even_while_it_computes(tmp_path: Path) -> None:
    began = tmp_path / "began"
    work = command(tmp_path / "a1", do="spin", began=str(began), until=str(tmp_path / "never"))
    script = tmp_path / "agent.py"
    script.write_text(
        "import asyncio, json, sys\n"
        "from hanse_agent.pool import WorkerPool\n"
        "from hanse_agent.settings import WorkerSettings\n"
        "async def main():\n"
        "    pool = WorkerPool(WorkerSettings())\n"
        "    running = asyncio.create_task(pool.run(json.loads(sys.argv[1])))\n"
        "    while not pool.pids:\n"
        "        await asyncio.sleep(0.01)\n"
        "    print(*pool.pids, flush=True)\n"
        "    await running\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable, str(script), json.dumps(work), stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    pid = int(await agent.stdout.readline())
    await eventually(began.exists)
    agent.kill()
    await agent.wait()

    await eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "its end")
