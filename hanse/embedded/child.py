"""One supervised program: started, its output kept, started again when it dies, stopped in order.

A child that dies before it was ever ready is not started again: its last words are the error. Afterwards it is
started again for as long as its supervisor lives, with pauses that grow and are jittered.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from hanse.embedded.logfile import LogFile
from hanse.errors import PlatformError

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
HEALTHY_AFTER_S = 30.0
"""A child that lived so long starts again at the shortest pause."""
POLL_S = 0.05


def child_environment() -> dict[str, str]:
    """What children inherit: our environment without settings meant for us, and no proxy for loopback."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HANSE_") or name == "HANSE_TRACES"
    }
    for name in ("no_proxy", "NO_PROXY"):
        environment[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1", "localhost")))
    environment["PYTHONUNBUFFERED"] = "1"
    # One thread a process: trees and linear algebra oversubscribe badly when many processes share few cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment.setdefault(name, "1")
    # Memory of glibc: with an arena a thread, what small rounds leave behind creeps up by kilobytes a round.
    environment.setdefault("MALLOC_ARENA_MAX", "2")
    return environment


class Child:
    """A Python module run as a process of its own, in a session of its own (Ctrl-C does not reach it directly)."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path | None = None,
        say: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            name: what messages call it.
            arguments: module and its arguments, as after `python -m`.
            log: file for its output, rotated; None: our standard error, each line led by the name.
            say: takes sentences for the person who watches.
            environment: of the child; default `child_environment()`.
        """
        self.name = name
        self.restarts = 0
        self._command = [sys.executable, "-m", "hanse.embedded.tether", *arguments]
        self._environment = dict(child_environment() if environment is None else environment)
        self._log = LogFile(log) if log else None
        self.log = log
        self._say = say
        self._tail: deque[str] = deque(maxlen=20)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=f"supervise-{name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process as it runs now."""
        return self._process.pid if self._process else None

    @property
    def ended(self) -> bool:
        """Whether it is over for good."""
        return self._ended.is_set()

    def start(self) -> None:
        """Start it, and supervise it from a thread."""
        self._watcher.start()

    def wait_ready(self, check: Callable[[], bool], *, timeout_s: float, unless: threading.Event | None = None) -> bool:
        """Wait until `check` says that it serves; False if `unless` was set before.

        Raises:
            PlatformError: it ended first (with its last words), or the time ran out.
        """
        deadline = time.monotonic() + timeout_s
        while not (unless and unless.is_set()):
            if self._ended.wait(POLL_S):
                raise PlatformError(
                    f"{self.name} ended before it served: {self.last_words}",
                    remedy=f"See {self.log}." if self.log else "See the log above.",
                    code="NOT_STARTED",
                )
            if check():
                self._ready = True
                return True
            if time.monotonic() > deadline:
                raise PlatformError(
                    f"{self.name} does not serve after {timeout_s:.0f} s: {self.last_words}",
                    remedy=f"See {self.log}." if self.log else "See the log above.",
                    code="NOT_STARTED",
                )
        return False

    def assume_ready(self) -> None:
        """From now on it is started again when it dies; for programs that serve nobody."""
        self._ready = True

    @property
    def last_words(self) -> str:
        """The end of its output, for an error."""
        lines = [line for line in self._tail if line.strip()]
        return lines[-1].strip() if lines else "it said nothing"

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until it is over for good; its exit code, None when it still runs."""
        if not self._ended.wait(timeout_s):
            return None
        return self._process.returncode if self._process else None

    def stop(self, *, grace_s: float = 20.0) -> None:
        """Ask it to drain (SIGTERM), wait, and end it and its own children if it does not."""
        self._stopping.set()
        if not self._watcher.is_alive():
            return
        self._signal(signal.SIGTERM)
        if not self._ended.wait(grace_s):
            self._say(f"{self.name} does not stop; ending it.")
            self.kill()
            self._ended.wait(5.0)

    def kill(self) -> None:
        """End it and its own children at once, for good."""
        self._stopping.set()
        self._signal(signal.SIGKILL, group=True)

    def _signal(self, number: signal.Signals, *, group: bool = False) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def _watch(self) -> None:
        pause = FIRST_PAUSE_S
        try:
            while not self._stopping.is_set():
                born = time.monotonic()
                code = self._run_once()
                if self._stopping.is_set() or not self._ready:
                    return
                lived = time.monotonic() - born
                pause = FIRST_PAUSE_S if lived > HEALTHY_AFTER_S else min(LONGEST_PAUSE_S, pause * 2)
                wait_s = pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
                self._say(f"{self.name} {describe_end(code)}; starting it again in {wait_s:.1f} s.")
                self.restarts += 1
                if self._stopping.wait(wait_s):
                    return
        finally:
            self._ended.set()
            if self._log:
                self._log.close()

    def _run_once(self) -> int:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )
        self._process = process
        if self._stopping.is_set():  # stop() came between the loop's look and the start
            self._signal(signal.SIGTERM)
        assert process.stdout is not None
        pump = threading.Thread(target=self._pump, args=(process.stdout,), name=f"log-{self.name}", daemon=True)
        pump.start()
        code = process.wait()
        pump.join(1.0)  # its own children may hold the pipe open for longer
        return code

    def _pump(self, output: IO[bytes]) -> None:
        with output:
            for raw in output:
                line = raw.decode(errors="replace").rstrip("\n")
                self._tail.append(line)
                if self._log:
                    self._log.write(line)
                else:
                    sys.stderr.write(f"{self.name}: {line}\n")
                    sys.stderr.flush()


def describe_end(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
