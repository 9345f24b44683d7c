"""Watching a job: one block that updates itself on a terminal, one line a change anywhere else."""

from __future__ import annotations

import random
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hanse.cli.output import Answer, Cancelled, Exit, WaitTimeout, printable, tone, visible
from hanse.cli.views import because, plain, span
from hanse.cli.words import duration
from hanse.errors import Owner, Reason, Unreachable
from hanse.rpc import from_proto
from hanse.v1 import control_pb2

if TYPE_CHECKING:
    from hanse.cli.command import Run
    from hanse.cli.connection import Control

ENDS = {"succeeded": Exit.OK, "failed": Exit.UNSUCCESSFUL, "cancelled": Exit.CANCELLED}
PATIENCE_S = 120.0
"""How long a coordinator may be away (a restart, a failover) before the watch gives up."""

_DELIVERED = frozenset({"delivered"})
_OPEN = frozenset({"pending", "leased"})
_CLEAR_LINE = "\x1b[2K"


def watch_job(run: Run, control: Control, job: str, timeout: str = "") -> Answer:
    """Follow the job to its end; shows progress on standard error.

    Raises:
        WaitTimeout: `timeout` ran out; the job goes on.
        Cancelled: the person stopped watching; the job goes on.
        Unreachable: the coordinator stayed away for longer than `PATIENCE_S`.
    """
    allowed = duration(timeout, "--timeout") if timeout else None
    screen = Screen(live=sys.stderr.isatty() and not run.json)
    try:
        detail = follow(control, job, screen.show, timeout_s=allowed, say=run.note)
    except KeyboardInterrupt:
        raise Cancelled(
            "No longer watching; the job goes on.", remedy=f"Watch again: hanse job watch {job}", code="DETACHED"
        ) from None
    return ending(detail)


def ending(detail: control_pb2.JobDetail) -> Answer:
    """The answer for a job that has ended."""
    job = detail.job
    code = ENDS.get(job.state, Exit.FAILED)
    reason = None
    if code is not Exit.OK:
        reason = from_proto(job.reason) if job.reason.code else _unexplained(job)
    text = f"{printable(job.name)} ({job.id}) {tone(job.state)} after {job.round} of {job.rounds} rounds"
    lasted = f" in {span(job.ended_at - job.submitted_at)}" if job.ended_at else ""
    more = f"\nPull the model: hanse model pull {job.id}" if job.state == "succeeded" and detail.model_digest else ""
    return Answer(data=plain(detail), text=f"{text}{lasted}{more}", reason=reason, exit_code=code)


def _unexplained(job: control_pb2.Job) -> Reason:
    return Reason(code=f"JOB_{job.state.upper()}", sentence=f"Job {job.id} {job.state}.", owner=Owner.PLATFORM)


def follow(
    control: Control,
    job: str,
    show: Callable[[control_pb2.JobDetail], None],
    *,
    timeout_s: float | None = None,
    say: Callable[[str], None],
) -> control_pb2.JobDetail:
    """Read the job's stream until the job has ended, through restarts of the coordinator.

    A restart shows as a broken stream: it is opened again with growing, jittered pauses. Errors as `watch_job`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    detail: control_pb2.JobDetail
    lost_at: float | None = None
    tries = 0
    known = job
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise _out_of_time(known)
        try:
            for detail in control.stream("WatchJob", control_pb2.GetJobRequest(job=known), timeout_s=left):
                lost_at, tries = None, 0
                known = detail.job.id  # a name means the newest job; stay with the one that was found
                show(detail)
                if detail.job.state in ENDS:
                    return detail
        except Unreachable as error:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise _out_of_time(known) from error
            if not control.reached:
                raise  # it never answered: a wrong address, not a restart
            if lost_at is None:
                lost_at = now
                say(f"{error.sentence} Trying again; the job goes on.")
            if now - lost_at > PATIENCE_S:
                raise
        tries += 1
        time.sleep(min(5.0, 0.2 * 2 ** min(tries, 6)) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret


def _out_of_time(job: str) -> WaitTimeout:
    return WaitTimeout(
        f"Job {printable(job)} has not ended within the time given; it goes on.",
        remedy=f"Watch again: hanse job watch {job}",
    )


class Screen:
    """Where progress is drawn: a block that is drawn over, or a line for each change."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._drawn = 0
        self._last = ""

    def show(self, detail: control_pb2.JobDetail) -> None:
        """Draw the job as it is now."""
        if self._live:
            width = shutil.get_terminal_size().columns
            self._redraw([clip(line, width) for line in block(detail, width)])
            return
        line = headline(detail)
        if line != self._last:
            self._last = line
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _redraw(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        blank = _CLEAR_LINE + "\n"
        gone = max(0, self._drawn - len(lines))
        back = f"\x1b[{gone}A" if gone else ""
        sys.stderr.write(up + "".join(f"{_CLEAR_LINE}{line}\n" for line in lines) + blank * gone + back)
        sys.stderr.flush()
        self._drawn = len(lines)


def headline(detail: control_pb2.JobDetail) -> str:
    """One line: state, round, phase, answers against the quorum, a metric. It changes only when something does."""
    job = detail.job
    parts = [f"{printable(job.name)} {job.state}", f"round {job.round}/{job.rounds}"]
    if detail.HasField("phase") and job.state in {"running", "waiting", "paused"}:
        parts.append(f"{detail.phase.name} {answers(detail.phase)}")
    parts += metrics(detail)[:2]
    reason = because(job.reason)
    return "  ".join(parts) + (f"  {reason}" if reason else "")


def block(detail: control_pb2.JobDetail, width: int = 100) -> list[str]:
    """Everything a person wants to see at a glance, as lines; a long reason is wrapped."""
    job = detail.job
    lines = [f"{printable(job.name)}  {tone(job.state)}  round {job.round}/{job.rounds}  {bar(job.round, job.rounds)}"]
    if reason := because(job.reason):
        lines += textwrap.wrap(reason, width, initial_indent="  ", subsequent_indent="  ")
    if detail.HasField("phase"):
        phase = detail.phase
        attempt = f", try {phase.attempt}" if phase.attempt > 1 else ""
        lines.append(f"  phase      {phase.name} ({phase.state}{attempt})  {answers(phase)}")
        if slow := slowest(phase):
            lines.append(f"  slowest    {slow}")
    if newest := metrics(detail):
        lines.append(f"  metrics    {'  '.join(newest[:4])}")
    if detail.seconds_left > 0:
        lines.append(f"  time left  about {span(detail.seconds_left)}")
    if job.state not in ENDS:
        lines.append("  Ctrl-C stops watching; the job goes on.")
    return lines


def clip(line: str, width: int) -> str:
    """A line that does not wrap: a block that wraps could not be drawn over. A cut line loses its colour."""
    plain_line = visible(line)
    return line if len(plain_line) < width else plain_line[: max(1, width - 2)] + "…"


def bar(done: int, total: int, width: int = 24) -> str:
    """A bar of characters."""
    filled = round(width * done / total) if total else 0
    return "[" + "#" * filled + "." * (width - filled) + "]"


def answers(phase: control_pb2.Phase) -> str:
    """How many of the assigned nodes have answered, against the quorum, and how many fell out."""
    states = [row.state for row in phase.assignments]
    delivered = sum(state in _DELIVERED for state in states)
    lost = sum(state not in _DELIVERED | _OPEN for state in states)
    text = f"{delivered}/{len(states)} answered, quorum {phase.quorum}"
    return f"{text}, {lost} lost" if lost else text


def slowest(phase: control_pb2.Phase) -> str:
    """The node that the phase waits for: the one with the least progress among those still at work."""
    waiting = [row for row in phase.assignments if row.state in _OPEN]
    if not waiting:
        return ""
    last = min(waiting, key=lambda row: (row.fraction, row.node))
    share = f" {last.fraction:.0%}" if last.fraction > 0 else ""
    return f"{printable(last.node)} ({last.stage or last.state}{share})"


def metrics(detail: control_pb2.JobDetail) -> list[str]:
    """The newest pooled metrics, as `name value`; those of unseen nodes say so."""
    rows = sorted(
        (row for row in detail.metrics if row.scope in {"pooled", "unseen"}), key=lambda row: (row.scope, row.name)
    )
    return [f"{row.name}{' (unseen)' if row.scope == 'unseen' else ''} {row.value:.4f}" for row in rows]
