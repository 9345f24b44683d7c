"""A job on disk: the learner's versioned state, and the contribution that waits for its receipt.

    jobs/JOB/job.json           whose folder this is: id, name, method, dataset
    jobs/JOB/versions/N/        the learner's state after N contributions; the highest N is current
    jobs/JOB/work/RANDOM/       an attempt in progress; nothing in it counts
    jobs/JOB/spool/ASSIGNMENT/  a finished contribution: meta.json and the image, kept until a later one replaces it
    jobs/JOB/cache/DIGEST       instructions and other artifacts that were downloaded

One rename is the instant at which work is done: `work/RANDOM`, with image, meta.json and the next state in it, becomes
`spool/ASSIGNMENT`. A crash before it starts again from state N; after it, whoever opens the folder moves the next
state to `versions/N+1`, and the same bytes are delivered. All is flushed to the disk before but the image, which may
be large and is on its way anyway: a power cut that spoils it is found out by its digest, and the work is done again.
Two states are kept: when the coordinator abandons a phase and tries it again, the new assignment starts from the state
before the first attempt, so that a retry gives the same bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanse_agent.files import remove, safe_name, sync_folder, sync_tree, write_json
from hanse_agent.spooled import DELIVERED, META, NEXT_STATE, Attempt, Spooled, Task, read_spool, whole

JOB = "job.json"


class JobFolder:
    """One job of one node. Only one thread may change it at a time, and nobody else while the agent runs: what the
    folder holds is read once, and known from then on."""

    def __init__(self, root: Path) -> None:
        """Open the folder, making it if need be, and finish or undo what a crash interrupted."""
        self.root = root
        for name in ("versions", "work", "spool", "cache"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self._spools: dict[str, Spooled] = {}
        self._versions: set[int] = set()
        self._cached: set[str] = set()
        """What may lie in the cache."""
        self._remembered = False
        self._recover()

    def remember(self, *, job: str, name: str, method: str, dataset: str) -> None:
        """Note whose folder this is, for commands that work without the coordinator."""
        if not self._remembered:
            write_json(self.root / JOB, {"job": job, "name": name, "method": method, "dataset": dataset})
            self._remembered = True

    @property
    def current(self) -> int:
        """The version of the newest state; 0 before the first contribution."""
        return max(self._versions, default=0)

    def spooled(self) -> Spooled | None:
        """The newest finished contribution, delivered or not."""
        return max(self._spools.values(), key=lambda spooled: spooled.version, default=None)

    def begin(self, task: Task) -> Attempt:
        """A fresh place to work on an assignment."""
        base = self._base(task)
        folder = self.root / "work" / secrets.token_hex(8)
        (folder / NEXT_STATE).mkdir(parents=True)
        state = self._version(base) if base else None
        return Attempt(folder=folder, base=base, state=state)

    def commit(
        self, task: Task, attempt: Attempt, *, kind: str, arrays: list[dict[str, Any]], size: int, digest: str
    ) -> Spooled:
        """Make an attempt's result the contribution to the assignment, and its state the job's.

        The learner's files are flushed before anything points to them.
        """
        spooled = Spooled(
            task=task,
            base=attempt.base,
            version=self.current + 1,
            kind=kind,
            arrays=tuple(arrays),
            size=size,
            digest=digest,
            folder=self._spool(task.assignment),
        )
        write_json(attempt.folder / META, spooled.document, sync=False)
        sync_tree(attempt.folder, leave_out=attempt.image)
        with self._known():
            attempt.folder.rename(spooled.folder)
            self._spools[task.assignment] = spooled
            sync_folder(spooled.folder.parent)
            self._promote(spooled)
            self._prune(spooled)
        return spooled

    def discard(self, attempt: Attempt) -> None:
        """Forget an attempt that came to nothing."""
        remove(attempt.folder)

    def delivered(self, assignment: str) -> None:
        """The receipt has come. The contribution stays until the next one, in case it is asked for again."""
        if (spooled := self._spools.get(assignment)) is not None:
            (spooled.folder / DELIVERED).touch()
            self._spools[assignment] = replace(spooled, delivered=True)

    def withdraw(self, assignment: str) -> None:
        """The contribution is not wanted. If it was never delivered, the state goes back to before it."""
        spooled = self._spools.get(assignment)
        if spooled is None or spooled.delivered:
            return
        with self._known():
            if spooled.version == self.current:
                self._remove_version(spooled.version)
            self._remove_spool(spooled)

    def end(self) -> None:
        """The job is over: keep the learner's last state and nothing else."""
        for name in ("work", "spool", "cache"):
            remove(self.root / name)
        self._spools.clear()
        self._cached.clear()
        for version in self._versions - {self.current}:
            self._remove_version(version)

    def cached(self, digest: str) -> Path:
        """Where the artifact of that digest is kept."""
        name = safe_name(digest)
        self._cached.add(name)
        return self.root / "cache" / name

    def trim_cache(self, keep: set[str]) -> None:
        """Delete all cached artifacts but these."""
        if self._cached <= keep:
            return
        for path in (self.root / "cache").iterdir():
            if path.name not in keep:
                remove(path)
        self._cached &= keep

    def _base(self, task: Task) -> int:
        """The version to start from: the current one, or the one before a first attempt at the same work."""
        before = self.spooled()
        if before is not None and before.version == self.current and task.retries(before.task):
            return before.base
        return self.current

    def _recover(self) -> None:
        for path in (self.root / "work").iterdir():
            remove(path)
        for room in ("versions", "spool", "cache"):
            for path in (self.root / room).glob(".*"):
                remove(path)
        for path in (self.root / "spool").iterdir():
            if read_spool(path) is None:
                remove(path)
        self._look()
        newest = self.spooled()
        if newest is None:
            return
        if not whole(newest):  # a power cut: the state that belongs to these bytes goes with them
            if not newest.delivered:
                self._remove_version(newest.version)
            self._remove_spool(newest)
            return
        if (newest.folder / NEXT_STATE).is_dir():
            self._promote(newest)
        elif newest.version not in self._versions:
            self._remove_spool(newest)  # a withdrawal was interrupted after it took the state back
            return
        self._prune(newest)

    def _look(self) -> None:
        """Read what the folder holds."""
        found = [read_spool(path) for path in (self.root / "spool").iterdir()]
        self._spools = {spooled.task.assignment: spooled for spooled in found if spooled is not None}
        self._versions = {int(path.name) for path in (self.root / "versions").iterdir() if path.name.isdigit()}
        self._cached = {path.name for path in (self.root / "cache").iterdir()}
        self._remembered = (self.root / JOB).exists()

    @contextmanager
    def _known(self) -> Iterator[None]:
        """Change the folder; if the disk fails at it, look again how far it came."""
        try:
            yield
        except OSError:
            with suppress(OSError):
                self._look()
            raise

    def _promote(self, spooled: Spooled) -> None:
        # Not flushed: after a power cut the state lies here or there, and `_recover` moves it again.
        (spooled.folder / NEXT_STATE).rename(self._version(spooled.version))
        self._versions.add(spooled.version)

    def _prune(self, newest: Spooled) -> None:
        """Keep the newest contribution, its state, and the state that it started from."""
        for spooled in [other for other in self._spools.values() if other.folder != newest.folder]:
            self._remove_spool(spooled)
        for version in self._versions - {newest.version, newest.base}:
            self._remove_version(version)

    def _remove_version(self, number: int) -> None:
        remove(self._version(number))
        self._versions.discard(number)

    def _remove_spool(self, spooled: Spooled) -> None:
        remove(spooled.folder)
        self._spools.pop(spooled.task.assignment, None)

    def _version(self, number: int) -> Path:
        return self.root / "versions" / f"{number:08d}"

    def _spool(self, assignment: str) -> Path:
        return self.root / "spool" / safe_name(assignment)


class Jobs:
    """All jobs of a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: dict[str, JobFolder] = {}

    def open(self, job: str) -> JobFolder:
        """The job's folder, made on first use."""
        if job not in self._open:
            self._open[job] = JobFolder(self.root / safe_name(job))
        return self._open[job]

    def undelivered(self) -> list[Spooled]:
        """Finished contributions that nobody has confirmed: what a restarted agent delivers first."""
        found = []
        for path in sorted(self.root.iterdir()):
            if (path / "spool").is_dir():
                spooled = self.open(path.name).spooled()
                if spooled is not None and not spooled.delivered:
                    found.append(spooled)
        return found

    def end(self, job: str) -> None:
        """The job is over."""
        if (self.root / safe_name(job)).is_dir():
            self.open(job).end()
        self._open.pop(job, None)
