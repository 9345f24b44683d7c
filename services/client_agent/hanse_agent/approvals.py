"""Jobs that wait for a person at the site, one small file each: the command line and a running agent share them.

Nobody needs to be running for a decision to count: the agent looks at the files whenever an offer or an assignment
comes, and watches them (one `stat` a second) only while a job waits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hanse.errors import NotFound
from hanse.v1 import node_pb2
from hanse_agent.files import read_json, safe_name, write_json
from hanse_agent.folder import utc_now
from hanse_agent.policy import Word


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A job and what has been said about it."""

    job: str
    name: str
    method: str
    dataset: str
    rounds: int
    submitted_by: str
    since: str
    state: Literal["waiting", "approved", "refused"] = "waiting"
    why: str = ""
    decided_at: str = ""

    @property
    def word(self) -> Word:
        """The person's word for the policy."""
        return Word(self.state)


class Approvals:
    """The folder of decisions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, job: node_pb2.JobDescription) -> Approval:
        """Note that a job waits for a person; an earlier word about it stays."""
        known = self.get(job.id)
        if known is not None:
            return known
        asked = Approval(
            job=safe_name(job.id),
            name=job.name,
            method=job.method,
            dataset=job.dataset,
            rounds=job.rounds,
            submitted_by=job.submitted_by,
            since=utc_now(),
        )
        self._write(asked)
        return asked

    def get(self, job: str) -> Approval | None:
        """What is known about a job."""
        document = read_json(self.folder / f"{safe_name(job)}.json")
        return _parse(document) if document else None

    def list(self) -> list[Approval]:
        """All jobs, those that wait first, then the newest."""
        found = [_parse(document) for path in self.folder.glob("*.json") if (document := read_json(path))]
        known = sorted((item for item in found if item is not None), key=lambda item: item.since, reverse=True)
        return sorted(known, key=lambda item: item.state != "waiting")

    def say(self, job: str, state: Literal["approved", "refused"], why: str = "") -> Approval:
        """Write a person's word down; a later word replaces an earlier one.

        Raises:
            NotFound: no such job has been offered here.
        """
        known = self.get(job) or next((item for item in self.list() if item.name == job), None)
        if known is None:
            raise NotFound(
                f"no job '{job[:80]}' has asked for approval here.",
                remedy="See `hanse-agent approvals list`.",
                code="NO_SUCH_JOB",
            )
        decided = replace(known, state=state, why=why, decided_at=utc_now())
        self._write(decided)
        return decided

    def drop(self, job: str) -> None:
        """Forget a job that ended before anybody decided; decisions stay, as a record."""
        known = self.get(job)
        if known is not None and known.state == "waiting":
            (self.folder / f"{safe_name(job)}.json").unlink(missing_ok=True)

    def stamp(self) -> tuple[tuple[str, int], ...]:
        """Changes whenever a decision is written."""
        return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in self.folder.glob("*.json")))

    def _write(self, approval: Approval) -> None:
        write_json(self.folder / f"{approval.job}.json", asdict(approval))


def _parse(document: dict[str, Any]) -> Approval | None:
    try:
        approval = Approval(**document)
        return approval if approval.state in {"waiting", "approved", "refused"} else None
    except TypeError:
        return None
