"""The state folder of one node: what lies where, and that only one agent works in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hanse.errors import Conflict, SiteError

PRIVATE_FOLDER = 0o700


def utc_now() -> str:
    """The time as it stands in all files here: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class StateFolder:
    """`state:` of `agent.yaml`."""

    root: Path

    @property
    def identity(self) -> Path:
        """Key, certificate, authority and the name of the node."""
        return self.root / "identity"

    @property
    def jobs(self) -> Path:
        """One folder a job: the learner's versioned state, the spooled contribution, cached artifacts."""
        return self.root / "jobs"

    @property
    def egress(self) -> Path:
        """The journal of everything that left, written before it left."""
        return self.root / "egress.jsonl"

    @property
    def approvals(self) -> Path:
        """Jobs that wait for a person's word, or have it."""
        return self.root / "approvals"

    @property
    def heads(self) -> Path:
        """Heads of the coordinator's ledger as they were shown: for `hanse ledger verify --against`."""
        return self.root / "ledger-heads.jsonl"

    @property
    def status(self) -> Path:
        """What the agent is doing, for `hanse-agent status`."""
        return self.root / "status.json"

    @property
    def _lock(self) -> Path:
        return self.root / "agent.lock"

    def create(self) -> None:
        """Make the folder and its rooms.

        Raises:
            SiteError: the folder cannot be made or written.
        """
        try:
            for folder in (self.root, self.identity, self.jobs, self.approvals):
                folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        except OSError as error:
            raise SiteError(
                f"the state folder {self.root} cannot be made: {error.strerror or error}.",
                remedy="Choose a folder that the agent's user may write, or give it that right.",
                code="STATE_NOT_WRITABLE",
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Claim the folder for this process.

        Raises:
            Conflict: another agent works in it.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Conflict(
                    f"another agent works in {self.root} already.",
                    remedy="Stop it first; each identity needs a state folder of its own.",
                    code="STATE_IN_USE",
                ) from None
            yield
        finally:
            os.close(descriptor)

    def in_use(self) -> bool:
        """Whether an agent works in the folder at this moment."""
        try:
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False
