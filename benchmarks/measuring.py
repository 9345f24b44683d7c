"""What benchmarks measure of processes: anonymous memory and processor time, read from /proc."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

SAMPLE_S = 0.02
FAMILY_S = 1.0
"""How long it is believed which processes a root has: finding out looks at every process of the machine, and would
take more of it than what is measured does."""


def family(pid: int) -> list[int]:
    """A process and all that descends from it."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return []


def anonymous_bytes(pids: Iterable[int]) -> int:
    """Memory that belongs to no file (RssAnon), summed: mapped files can be dropped and do not count."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        line = next((line for line in text.splitlines() if line.startswith("RssAnon:")), "RssAnon: 0 kB")
        total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes so far."""
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


class Watch:
    """Samples memory and processor time of groups of processes in a thread.

    `groups` gives each group's root processes anew for every sample; a group of several roots is measured root by
    root, and the largest growth counts.
    """

    def __init__(self, groups: Callable[[], Mapping[str, list[int]]]) -> None:
        self._groups = groups
        self._families: dict[int, list[int]] = {}
        self._looked = float("-inf")
        self._idle = {root: anonymous_bytes(family(root)) for roots in groups().values() for root in roots}
        self._peak: dict[int, int] = dict(self._idle)
        self._cpu = self._cpu_now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[dict[str, float], dict[str, float]]:
        """By group: largest growth over idle in MB, and processor seconds of all its roots together."""
        self._ended.set()
        self._thread.join()
        spent = {name: seconds - self._cpu[name] for name, seconds in self._cpu_now().items()}
        growth = {
            name: max((self._peak[root] - self._idle[root]) / 1e6 for root in roots)
            for name, roots in self._groups().items()
        }
        return growth, spent

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            if time.monotonic() - self._looked > FAMILY_S:
                self._families = {root: family(root) for roots in self._groups().values() for root in roots}
                self._looked = time.monotonic()
            for root, pids in self._families.items():
                self._peak[root] = max(self._peak[root], anonymous_bytes(pids))

    def _cpu_now(self) -> dict[str, float]:
        return {
            name: cpu_seconds(pid for root in roots for pid in family(root)) for name, roots in self._groups().items()
        }


def waited(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Poll until something holds.

    Raises:
        TimeoutError: it never did; the sentence says what was waited for.
    """
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.05)
