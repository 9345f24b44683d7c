"""How many connections a program may hold at once."""

from __future__ import annotations

import resource

__all__ = ["allow_many_open_files"]

MOST = 1_048_576


def allow_many_open_files() -> int:
    """Raise this process's limit of open files as far as the system lets it, and return the limit.

    Every connection is a file. Systems begin with 1,024 for programs that use the old `select`, which none of ours
    does, and let each raise it itself: else a coordinator would stand still at a thousand nodes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
