"""Put the reference package where `importlib.metadata` finds it: a folder for PYTHONPATH with module and dist-info."""

from __future__ import annotations

import shutil
from pathlib import Path

MODULE = Path(__file__).with_name("hanse_reference.py")


def install(folder: Path) -> Path:
    """Copy the module and write its metadata; returns the folder."""
    source = MODULE.read_text(encoding="utf-8")
    entry_points = source.split('ENTRY_POINTS = """\\\n', 1)[1].split('"""', 1)[0]
    info = folder / "hanse_reference-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(MODULE, folder / MODULE.name)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanse-reference\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder
