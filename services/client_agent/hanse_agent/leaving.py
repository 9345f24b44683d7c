"""`hanse-agent leave`: what joining and working made is removed; the journal of what left stays, for the site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hanse.errors import Conflict, SiteError
from hanse_agent.files import remove
from hanse_agent.folder import StateFolder
from hanse_agent.identity import NodeIdentity


@dataclass(frozen=True, kw_only=True)
class Left:
    """What became of the state folder."""

    node: str
    """Empty: the node had never joined, or its identity could not be read."""
    removed: tuple[str, ...]
    kept: tuple[str, ...]


def leave(root: Path, *, journal: bool = False) -> Left:
    """Remove key, certificate, learners' states, approvals and everything else from a state folder.

    The egress journal is the site's own record and stays, unless `journal`. Datasets are never touched.

    Raises:
        Conflict: an agent works in the folder.
        SiteError: something cannot be removed.
    """
    folder = StateFolder(root)
    if not root.is_dir():
        return Left(node="", removed=(), kept=())
    if folder.in_use():
        raise Conflict(
            f"an agent works in {root} at this moment.",
            remedy="Stop it first (SIGTERM, or Ctrl-C).",
            code="STATE_IN_USE",
        )
    node = _node(folder)
    kept = [] if journal else [folder.egress.name]
    doomed = sorted(entry for entry in root.iterdir() if entry.name not in kept)
    # The key goes first: whatever interrupts this, the node can no longer speak.
    doomed.sort(key=lambda entry: entry != folder.identity)
    try:
        for entry in doomed:
            remove(entry)
        if not any(root.iterdir()):
            root.rmdir()
    except OSError as error:
        raise SiteError(
            f"{error.filename or root} cannot be removed: {error.strerror or error}.",
            remedy="Run the command as the user that the agent ran as.",
            code="STATE_NOT_WRITABLE",
        ) from error
    return Left(
        node=node,
        removed=tuple(entry.name for entry in doomed),
        kept=tuple(name for name in kept if (root / name).exists()),
    )


def _node(folder: StateFolder) -> str:
    try:
        identity = NodeIdentity.load(folder.identity)
    except SiteError:  # it is about to go anyway
        return ""
    return identity.node if identity else ""
