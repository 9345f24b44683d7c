"""The machine: its disk, its memory, and its clock as far as a certificate can tell."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

import psutil
from cryptography import x509

from hanse.errors import HanseError
from hanse.security import Address
from hanse.security.probe import require_validity
from hanse_agent.doctor.findings import Finding, failed, failure, ok, skipped, warning
from hanse_agent.settings import Policy, WorkerSettings

_PROBE_BYTES = 1024 * 1024
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_BEFORE_JOINING = 1_000_000_000
"""What a site should have free before it knows its policy, in bytes, on the disk and in memory."""


def examine_clock(address: Address, certificate: x509.Certificate, now: datetime | None = None) -> Finding:
    """Whether the clock falls within the validity of what the server shows. The exact difference needs a call."""
    try:
        require_validity(address, certificate, now or datetime.now(UTC))
    except HanseError as error:
        return failure("clock", error, "The clock and the certificate contradict each other.")
    return ok("clock", "not far off, by the coordinator's certificate; measured exactly once there is an invitation")


def examine_disk(folder: Path, policy: Policy | None = None) -> Finding:
    """Whether the state folder can be written and has room for what a job keeps there."""
    place = _existing(folder)
    wanted = 2 * policy.largest_payload if policy else _BEFORE_JOINING
    probe = place / f".doctor-{secrets.token_hex(6)}"
    try:
        try:
            with probe.open("xb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
        state = os.statvfs(place)
    except OSError as error:
        return failed(
            "disk",
            f"{place} cannot be written: {error.strerror or error}.",
            cause="The disk is full, mounted read-only, or the folder belongs to another user.",
            remedy="Make room there, or let the agent's user write; or choose another folder for `state`.",
        )
    free = state.f_bavail * state.f_frsize
    if free < wanted:
        return failed(
            "disk",
            f"{place} has {_size(free)} free; {_size(wanted)} are needed.",
            cause="A job keeps its state, and a contribution of up to policy.largest_payload until it is delivered.",
            remedy="Make room there, or lower policy.largest_payload.",
            free=free,
            wanted=wanted,
        )
    return ok("disk", f"{place} can be written and has {_size(free)} free", free=free, wanted=wanted)


def examine_memory(worker: WorkerSettings | None = None) -> Finding:
    """Whether the workers' memory fits into the machine's, or into the container's."""
    wanted = worker.memory * worker.processes if worker else _BEFORE_JOINING
    memory = psutil.virtual_memory()
    total = min(memory.total, _container_limit() or memory.total)
    facts = {"total": total, "available": memory.available, "wanted": wanted}
    if total < wanted:
        return failed(
            "memory",
            f"This machine has {_size(total)}; workers may take {_size(wanted)}.",
            cause="worker.memory times worker.processes is more than there is; the system would end a worker."
            if worker
            else "A small job needs about as much.",
            remedy="Lower worker.memory or worker.processes, or use a larger machine.",
            **facts,
        )
    if memory.available < wanted:
        return warning(
            "memory",
            f"{_size(memory.available)} of {_size(total)} are free; workers may take {_size(wanted)}.",
            cause="Other programs hold the rest.",
            remedy="Lower worker.memory, or stop what is not needed while jobs run.",
            **facts,
        )
    return ok("memory", f"{_size(memory.available)} free; workers may take {_size(wanted)}", **facts)


def no_clock() -> Finding:
    """The clock cannot be compared with anything."""
    return skipped("clock", "needs the coordinator")


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _container_limit() -> int | None:
    try:
        text = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
