"""The margins of a node's rows, kept between assignments.

Margins follow from the rows and the trees alone, so what is kept is a short cut: whatever is missing or unreadable
is computed again from the trees, with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import SiteError

_FORMAT = 1
_FACTS = "margins.json"
_MARGINS = "margins.npy"


@dataclass(frozen=True, eq=False)
class Margins:
    """Margins float32 [rows, K] after the first `applied` rounds, whose last trees have the digest `last`.

    `start` names the base margins, `data` the rows.
    """

    values: NDArray[np.float32]
    applied: int
    last: bytes
    start: str
    data: str

    def fits(self, grown: tuple[bytes, ...], start: str) -> bool:
        """Whether further trees of a job that has grown these can be added."""
        known = grown[self.applied - 1] if 0 < self.applied <= len(grown) else b""
        return self.applied <= len(grown) and self.last == known and self.start == start

    def save(self, folder: Path) -> None:
        """Write into an empty folder."""
        np.save(folder / _MARGINS, self.values, allow_pickle=False)
        (folder / _FACTS).write_text(json.dumps(self._facts(), sort_keys=True), encoding="utf-8")

    def same_in(self, folder: Path) -> bool:
        """Whether the folder holds just these margins."""
        return _read_facts(folder) == self._facts() and (folder / _MARGINS).is_file()

    def _facts(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "applied": self.applied,
            "last": self.last.hex(),
            "start": self.start,
            "data": self.data,
            "shape": list(self.values.shape),
        }


def load_margins(folder: Path, *, data: str, shape: tuple[int, int]) -> Margins | None:
    """The margins that a folder holds; None when there are none that can be read.

    Raises:
        SiteError: they were made for other rows: the dataset has changed during the job.
    """
    facts = _read_facts(folder)
    if facts.get("format") != _FORMAT:
        return None
    if facts.get("data") != data:
        raise SiteError(
            "The dataset has changed since this node began the job.",
            code="DATASET_CHANGED",
            remedy="Put back the file as it was, or start a new job for the new records.",
        )
    try:
        values = np.load(folder / _MARGINS, allow_pickle=False)
        margins = Margins(
            values=values,
            applied=int(facts["applied"]),
            last=bytes.fromhex(facts["last"]),
            start=str(facts["start"]),
            data=data,
        )
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None
    return margins if values.dtype == np.float32 and values.shape == shape else None


def carry_over(source: Path, target: Path) -> None:
    """Put the files of one version into the next: as further names of the same files where the disk allows it."""
    for name in (_MARGINS, _FACTS):
        if not (source / name).is_file():
            continue
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)


def fingerprint(*arrays: NDArray[Any]) -> str:
    """A name for these arrays' content."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
