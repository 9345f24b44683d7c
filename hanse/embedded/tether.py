"""Runs a Python module that must not outlive its parent: `python -m hanse.embedded.tether MODULE ARGUMENT…`.

The kernel (Linux) is asked to send SIGTERM when the parent dies, so that a supervisor that is killed leaves no
program behind. The request survives `exec`, so that the program itself is as if it had been started directly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and become the module."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)  # it died in between
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])  # noqa: S606 - our own interpreter


if __name__ == "__main__":
    main()
