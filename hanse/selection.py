"""Who takes part in a round, and how many must answer: a pure choice from names, seed and settings.

The same on every machine, and the same in a federation and in the harness.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping

from hanse.jobs import Selection
from hanse.method import Purpose

__all__ = ["draw_cohort", "matches", "needed_to_open", "quorum"]


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a node carries all the wanted labels."""
    return all(labels.get(key) == value for key, value in wanted.items())


def draw_cohort(candidates: Iterable[str], selection: Selection, *, seed: int, round_number: int) -> tuple[str, ...]:
    """The nodes of a round, sorted by name.

    With `fraction` 1 all candidates; else the share, raised to `minimum_nodes` and by `over_selection`, of those
    whose hash of (seed, round, name) is smallest. A node that comes or goes changes nobody else's lot.
    """
    names = sorted(candidates)
    if selection.fraction >= 1:
        return tuple(names)
    wanted = max(math.ceil(selection.fraction * len(names)), selection.minimum_nodes)
    wanted = min(len(names), math.ceil(wanted * (1 + selection.over_selection)))
    return tuple(sorted(sorted(names, key=lambda name: _lot(seed, round_number, name))[:wanted]))


def needed_to_open(selection: Selection, purpose: Purpose) -> int:
    """With how many nodes a phase may begin: the quorum of the job's minimum for training, none to adapt, else one."""
    if purpose is not Purpose.TRAIN:
        return 0 if purpose is Purpose.ADAPT else 1
    return max(1, math.ceil(selection.quorum * selection.minimum_nodes))


def quorum(selection: Selection, assigned: Collection[str], purpose: Purpose = Purpose.TRAIN) -> int:
    """How many contributions a phase with these assigned nodes needs.

    Adapting needs none: it is for the nodes' own sake, and no job waits because they are away.
    """
    if purpose is Purpose.ADAPT:
        return 0
    share = selection.quorum / (1 + selection.over_selection)
    return max(1, math.ceil(share * len(assigned) - 1e-9))


def _lot(seed: int, round_number: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{round_number}/{name}".encode()).digest()
