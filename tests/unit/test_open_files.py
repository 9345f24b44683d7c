"""A program may hold as many connections as the system allows, whatever its shell began with."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(hard, 4096)))
from hanse.open_files import allow_many_open_files
print(allow_many_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
print(allow_many_open_files())
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    limits, again = done.stdout.splitlines()
    assert len(set(limits.split())) == 1
    assert int(limits.split()[0]) > 256
    assert again == limits.split()[0]
