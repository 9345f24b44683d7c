"""What an assignment is to be done with lies whole under its digest, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from hanse.v1 import node_pb2, payload_pb2
from hanse_agent.jobs import JobFolder
from hanse_agent.performing import Performing


def test_an_instruction_that_was_cut_by_a_crash_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, nothing = JobFolder(tmp_path), None
    image = b"instruction" * 100
    assign = node_pb2.Assign(instruction=payload_pb2.PayloadSource(inline=image))
    whole = Path.write_bytes

    def cut(path: Path, data: Any) -> int:
        whole(path, data[:10])
        raise KeyboardInterrupt

    def obtain() -> Path:
        performing = Performing.__new__(Performing)
        progress: Any = nothing
        return asyncio.run(performing._inputs(assign, folder, set(), progress))[0]

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", cut)
        with pytest.raises(KeyboardInterrupt):
            obtain()
    assert obtain().read_bytes() == image
    assert obtain().name == hashlib.sha256(image).hexdigest()
    JobFolder(tmp_path)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [hashlib.sha256(image).hexdigest()]
