"""What an agent says about itself: written by the running agent, read by `hanse-agent status`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hanse.errors import Reason
from hanse_agent.approvals import Approvals
from hanse_agent.files import read_json, write_json
from hanse_agent.folder import StateFolder, utc_now
from hanse_agent.identity import NodeIdentity
from hanse_agent.settings import AgentConfig

if TYPE_CHECKING:
    from hanse.v1 import node_pb2
    from hanse_agent.work import Work

_SETTLE_S = 0.2


class StatusBoard:
    """Keeps `status.json` up to date: at most one write in a fifth of a second, none while nothing changes."""

    def __init__(self, folder: StateFolder, work: Callable[[], list[dict[str, Any]]]) -> None:
        self._folder = folder
        self._work = work
        self._facts: dict[str, Any] = {"pid": os.getpid(), "started": utc_now()}
        self._scheduled: asyncio.TimerHandle | None = None

    def set(self, **facts: Any) -> None:
        """Change what is shown."""
        self._facts.update(facts)
        self.changed()

    def error(self, reason: Reason) -> None:
        """Show the last thing that went wrong."""
        self.set(last_error={**reason_dict(reason), "when": utc_now()})

    def changed(self) -> None:
        """Something is to be shown; written soon."""
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_later(_SETTLE_S, self.write)

    def write(self) -> None:
        """Write now."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        with suppress(OSError):  # a full disk must not end the agent for the sake of a status
            write_json(self._folder.status, {**self._facts, "work": self._work(), "written": utc_now()}, sync=False)


def reason_dict(reason: Reason) -> dict[str, str]:
    """A reason as it stands in JSON."""
    return {
        "code": reason.code,
        "sentence": reason.sentence,
        "owner": reason.owner.value,
        "remedy": reason.remedy,
    }


def dataset_dict(offer: node_pb2.DatasetOffer) -> dict[str, Any]:
    """A dataset as it stands in JSON; without rows where it cannot be read."""
    shown: dict[str, Any] = {"name": offer.name, "kind": offer.kind, "rows": offer.rows}
    if offer.HasField("unavailable"):
        shown |= {"rows": None, "unavailable": offer.unavailable.sentence}
    return shown


def work_dict(work: Work) -> dict[str, Any]:
    """An assignment in hand as it stands in JSON."""
    return {
        "assignment": work.assignment,
        "job": work.job,
        "job_name": work.job_name,
        "round": work.round,
        "phase": work.phase,
        "stage": work.stage.value,
        "fraction": round(work.fraction, 3) if work.fraction >= 0 else None,
    }


def read_status(config: AgentConfig, now: datetime | None = None) -> dict[str, Any]:
    """Everything that is known of a node from its state folder, whether its agent runs or not.

    Raises:
        SiteError: the identity is not whole.
    """
    folder = StateFolder(config.state)
    identity = NodeIdentity.load(folder.identity)
    running = folder.in_use()
    written = read_json(folder.status) or {}
    certificate = None
    if identity is not None:
        until = identity.peer.not_after
        certificate = {"until": until.isoformat(), "expired": until <= (now or datetime.now(UTC))}
    waiting = Approvals(folder.approvals).list() if folder.approvals.is_dir() else []
    return {
        "node": identity.node if identity else None,
        "joined": identity is not None,
        "state": str(config.state),
        "coordinator": ", ".join(map(str, config.coordinator)),
        "certificate": certificate,
        "running": running,
        "pid": written.get("pid") if running else None,
        "connection": written.get("connection", {"state": "connecting"}) if running else {"state": "not running"},
        "clock_skew_s": written.get("clock_skew_s") if running else None,
        "datasets": written.get("datasets", []) if running else [],
        "methods": written.get("methods", []) if running else [],
        "work": written.get("work", []) if running else [],
        "waiting_for_approval": [item.job for item in waiting if item.state == "waiting"],
        "last_error": written.get("last_error"),
    }
