"""Warm worker processes, shared by the identities of one agent.

A worker that dies or runs out of memory is started again once; if the same work kills it a second time, the work has
failed, with a reason. A worker is alive as long as it makes progress: it says so itself, or its processor time grows.
One that is stopped does neither, and the lease of its assignment runs out.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from hanse.errors import HanseError, MethodError, OperatorError, Owner, PlatformError, SiteError
from hanse.logs import logger
from hanse_agent import metrics
from hanse_agent.settings import WorkerSettings

_LONGEST_LINE = 64 * 1024 * 1024
_TRIES = 2

OnProgress = Callable[[float, str], None]
OnFetch = Callable[[str], Awaitable[str | None]]
OnAlive = Callable[[], None]

_BY_OWNER: dict[str, type[HanseError]] = {
    Owner.SITE: SiteError,
    Owner.METHOD: MethodError,
    Owner.OPERATOR: OperatorError,
    Owner.PLATFORM: PlatformError,
}


class WorkerDied(SiteError):
    """The process ended in the middle of work."""

    default_code = "WORKER_DIED"


class OutOfMemory(SiteError):
    """The work needs more memory than the site gives a worker."""

    default_code = "OUT_OF_MEMORY"


def error_from(reason: dict[str, Any], *, memory: bool = False) -> HanseError:
    """The error that a worker reported, as the class of its owner."""
    cls = OutOfMemory if memory else _BY_OWNER.get(reason["owner"], PlatformError)
    return cls(reason["sentence"], remedy=reason["remedy"], code=reason["code"])


class WorkerProcess:
    """One child process and the line to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.served: set[str] = set()
        """Keys of the work that it has done: learners that it may have warm."""

    @classmethod
    async def start(cls, settings: WorkerSettings) -> WorkerProcess:
        """Start a worker. It is never forked: threads of gRPC would not survive that.

        Raises:
            SiteError: the machine has no room for another process.
        """
        threads = str(settings.threads)
        names = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB", "BLIS")
        environment = {**os.environ, **{f"{name}_NUM_THREADS": threads for name in names}}
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "hanse_agent.worker", "--parent", str(os.getpid())),
                *("--memory", str(settings.memory), "--learners", str(settings.learners)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                limit=_LONGEST_LINE,
                start_new_session=True,  # a Ctrl-C at the agent is the agent's to handle
            )
        except OSError as error:
            raise SiteError(
                f"a worker process cannot be started: {error.strerror or error}.",
                remedy="See whether the machine is short of memory or processes.",
                code="WORKER_NOT_STARTED",
            ) from error
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    def cpu_seconds(self) -> float:
        """Processor time so far; it stands still when the process is stopped or waits."""
        import psutil

        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    async def ask(
        self, command: dict[str, Any], *, on_progress: OnProgress | None = None, on_fetch: OnFetch | None = None
    ) -> dict[str, Any]:
        """Have one thing done.

        Raises:
            WorkerDied: the process ended meanwhile.
            HanseError: what went wrong in it.
        """
        await self._send(command)
        while True:
            message = await self._receive()
            if "progress" in message:
                if on_progress is not None:
                    on_progress(message["progress"], message["note"])
            elif "fetch" in message:
                path = await on_fetch(message["fetch"]) if on_fetch is not None else None
                await self._send({"path": path} if path else {"missing": True})
            elif "failed" in message:
                logger(pid=self.pid).warning("worker failed", detail=message["detail"], **message["failed"])
                raise error_from(message["failed"], memory=message["memory"])
            else:
                done: dict[str, Any] = message["done"]
                return done

    async def stop(self) -> None:
        """End the process, whatever it does; returns when it is gone."""
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise await self._death() from None

    async def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise await self._death()
        message: dict[str, Any] = json.loads(line)
        return message

    async def _death(self) -> WorkerDied:
        code = await self._process.wait()
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return WorkerDied(
            f"the worker process {how}.",
            remedy="If the machine is short of memory, give the worker less (worker.memory) or the machine more; "
            "the agent's log may say more.",
        )


class WorkerPool:
    """At most `processes` workers; each is stopped after `idle_after` without work."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._free: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._slots = asyncio.Semaphore(settings.processes)
        self._idle: dict[WorkerProcess, asyncio.TimerHandle] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._finished = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are running now."""
        return tuple(sorted(worker.pid for worker in (*self._free, *self._busy)))

    async def run(
        self,
        command: dict[str, Any],
        *,
        key: str = "",
        on_progress: OnProgress | None = None,
        on_fetch: OnFetch | None = None,
        on_alive: OnAlive | None = None,
        check_every: float = 10.0,
    ) -> dict[str, Any]:
        """Have a worker do something, preferably the one that has served `key` before.

        `on_alive` is called every `check_every` seconds in which the work, or while it queues the pool, got on.
        Being cancelled kills the worker: a learner cannot be interrupted otherwise.

        Raises:
            WorkerDied, OutOfMemory: twice in a row.
            HanseError: what the worker reported.
        """
        watch = asyncio.create_task(self._watch(key, on_alive, check_every)) if on_alive else None
        try:
            for left in reversed(range(_TRIES)):
                try:
                    async with self._slots:
                        return await self._once(command, key, on_progress, on_fetch)
                except (WorkerDied, OutOfMemory) as error:
                    if not left:
                        raise
                    metrics.worker_restarted()
                    logger(key=key).warning("worker is started again", code=error.code, reason=error.sentence)
            raise AssertionError("unreachable")
        finally:
            if watch is not None:
                watch.cancel()

    async def forget(self, job: str) -> None:
        """Let idle workers drop the learners of a job that is over."""
        for worker in [worker for worker in self._free if any(key.split("/")[1:2] == [job] for key in worker.served)]:
            async with self._slots:
                if worker in self._free:
                    async with self._borrowed(worker):
                        await worker.ask({"do": "forget", "job": job})

    async def close(self) -> None:
        """Stop all workers; work in progress fails."""
        for handle in self._idle.values():
            handle.cancel()
        self._idle.clear()
        await asyncio.gather(*(worker.stop() for worker in (*self._free, *self._busy)), *self._stops)
        self._free.clear()

    async def _once(
        self, command: dict[str, Any], key: str, on_progress: OnProgress | None, on_fetch: OnFetch | None
    ) -> dict[str, Any]:
        worker = self._pick(key) or await WorkerProcess.start(self._settings)
        async with self._borrowed(worker, key):
            return await worker.ask(command, on_progress=on_progress, on_fetch=on_fetch)

    @asynccontextmanager
    async def _borrowed(self, worker: WorkerProcess, key: str = "") -> AsyncIterator[None]:
        """Hold a worker for one piece of work; one that did not end it cleanly is not used again."""
        if (handle := self._idle.pop(worker, None)) is not None:
            handle.cancel()
        if worker in self._free:
            self._free.remove(worker)
        self._busy.add(worker)
        worker.served.add(key)
        usable = False
        try:
            yield
            usable = True
        except (WorkerDied, OutOfMemory):
            raise
        except HanseError:
            usable = True
            raise
        finally:
            self._busy.discard(worker)
            self._finished += 1
            if usable and worker.alive:
                self._free.append(worker)
                self._stop_when_idle(worker)
            else:
                await asyncio.shield(self._stop_soon(worker))

    def _pick(self, key: str) -> WorkerProcess | None:
        self._free = [worker for worker in self._free if worker.alive]
        warm = [worker for worker in self._free if key in worker.served]
        return (warm or self._free or [None])[-1]  # type: ignore[list-item]

    def _stop_when_idle(self, worker: WorkerProcess) -> None:
        def stop() -> None:
            self._idle.pop(worker, None)
            if worker in self._free:
                self._free.remove(worker)
                self._stop_soon(worker)

        delay = self._settings.idle_after.total_seconds()
        self._idle[worker] = asyncio.get_running_loop().call_later(delay, stop)

    def _stop_soon(self, worker: WorkerProcess) -> asyncio.Task[None]:
        task = asyncio.create_task(worker.stop())
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        return task

    async def _watch(self, key: str, on_alive: OnAlive, check_every: float) -> None:
        before = self._movement(key)
        while True:
            await asyncio.sleep(check_every)
            now = self._movement(key)
            if now != before:
                on_alive()
            before = now

    def _movement(self, key: str) -> tuple[int, float]:
        """Changes whenever the worker of `key` computes; while none has it yet, whenever any worker gets on."""
        own = [worker for worker in self._busy if key in worker.served]
        watched = own or list(self._busy)
        return (self._finished if not own else 0, sum(worker.cpu_seconds() for worker in watched))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
