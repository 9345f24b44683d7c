"""`hanse`: the command of operators and researchers.

One module a group of commands. They import what is heavy only when a command runs, so that help is instant.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script."""
    from hanse.cli.app import run

    sys.exit(run(sys.argv[1:]))
