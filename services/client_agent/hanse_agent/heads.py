"""Heads of the coordinator's ledger, kept as they were shown.

A chain that was cut at its tail still looks whole to itself. Whoever kept a later head can tell:
`hanse ledger verify --against ledger-heads.jsonl`. Lines are `{"sequence": int, "hash": hex}`.
"""

from __future__ import annotations

import json
from pathlib import Path

from hanse.logs import logger
from hanse.v1 import payload_pb2
from hanse_agent.files import PRIVATE, read_lines

KEPT = 1000
"""The file is cut to its newest lines when it has grown to twice this many."""


class LedgerHeads:
    """Appends each new head to a bounded file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = list(read_lines(path))
        self._lines = len(lines)
        self._newest = lines[-1] if lines else None

    def saw(self, head: payload_pb2.LedgerHead) -> None:
        """Keep a head, unless it is the one that was seen last."""
        line = {"sequence": head.sequence, "hash": head.hash.hex()}
        if not head.hash or line == self._newest:
            return
        self._newest = line
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.path.chmod(PRIVATE)
            self._lines += 1
            if self._lines >= 2 * KEPT:
                self._shorten()
        except OSError as error:  # a full disk must not end the session for the sake of an extra proof
            logger().warning("head of the ledger not kept", path=str(self.path), reason=str(error))

    def _shorten(self) -> None:
        kept = list(read_lines(self.path))[-KEPT:]
        temporary = self.path.with_name(f".{self.path.name}.new")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        temporary.replace(self.path)
        self._lines = len(kept)
