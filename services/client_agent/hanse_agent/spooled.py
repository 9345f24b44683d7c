"""A contribution at rest: what was asked for, the attempt at it, and what came of it, as they lie on disk."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanse_agent.files import read_json

META = "meta.json"
IMAGE = "image"
NEXT_STATE = "next_state"
DELIVERED = "delivered"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What an assignment asks for, as far as the state on disk cares."""

    assignment: str
    fence: int
    job: str
    job_name: str
    phase: str
    round: int
    purpose: str
    attempt: int
    instruction: str
    """Digest of what was sent: a retry of the same phase has the same one."""

    def retries(self, other: Task) -> bool:
        """Whether this is the same work as `other`, asked for again because its phase was abandoned."""
        same = (self.phase, self.round, self.purpose, self.instruction)
        return self.attempt > other.attempt and same == (other.phase, other.round, other.purpose, other.instruction)


@dataclass(frozen=True, kw_only=True)
class Spooled:
    """A finished contribution on disk."""

    task: Task
    base: int
    """The version of the state that the learner read."""
    version: int
    """The version that it wrote."""
    kind: str
    arrays: tuple[dict[str, Any], ...]
    size: int
    digest: str
    folder: Path
    delivered: bool = False

    @property
    def image(self) -> Path:
        """The payload's image."""
        return self.folder / IMAGE

    @property
    def document(self) -> dict[str, Any]:
        """What `meta.json` says of it."""
        facts = ("base", "version", "kind", "arrays", "size", "digest")
        return {"task": asdict(self.task), **{name: getattr(self, name) for name in facts}}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A place for one attempt at an assignment: the state to read, and where to write."""

    folder: Path
    base: int
    state: Path | None

    @property
    def next_state(self) -> Path:
        """Where the learner leaves its state; empty at first."""
        return self.folder / NEXT_STATE

    @property
    def image(self) -> Path:
        """Where the contribution goes."""
        return self.folder / IMAGE


def read_spool(folder: Path) -> Spooled | None:
    """The contribution of a folder; None where there is no whole one."""
    document = None if folder.name.startswith(".") else read_json(folder / META)
    if document is None:
        return None
    try:
        return Spooled(
            task=Task(**document["task"]),
            base=int(document["base"]),
            version=int(document["version"]),
            kind=str(document["kind"]),
            arrays=tuple(document["arrays"]),
            size=int(document["size"]),
            digest=str(document["digest"]),
            folder=folder,
            delivered=(folder / DELIVERED).exists(),
        )
    except (KeyError, TypeError, ValueError):
        return None


def whole(spooled: Spooled) -> bool:
    """Whether the image is what it was when it was made."""
    try:
        with spooled.image.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == spooled.digest
    except OSError:
        return False
