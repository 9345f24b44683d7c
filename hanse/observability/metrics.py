"""Metrics as every program keeps them: a registry of its own, and labels that cannot grow without end."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from hanse import __version__

__all__ = ["OTHER", "KnownWords", "new_registry"]

OTHER = "other"
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_MOST_WORDS = 100


def new_registry(program: str) -> CollectorRegistry:
    """A registry with what each process tells of itself, and `hanse_build_info`.

    `program` is the command's name, for instance `hanse-coordinator`.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge(
        "hanse_build_info", "1, for each program with its version.", ["program", "version"], registry=registry
    )
    build.labels(program, __version__).set(1)
    return registry


class KnownWords:
    """Keeps a label to a bounded set of values, whatever is said elsewhere.

    Codes of reasons come from sites and plug-ins as well: the first hundred that look like a code are told apart,
    and all others are `other`.
    """

    def __init__(self, known: Iterable[str] = (), *, closed: bool = False) -> None:
        """`closed`: no word is added to those that are known from the start."""
        self._known = set(known)
        self._closed = closed

    def __call__(self, word: str) -> str:
        """The label's value for a word."""
        if word in self._known:
            return word
        if self._closed or len(self._known) >= _MOST_WORDS or not _WORD.fullmatch(word):
            return OTHER
        self._known.add(word)
        return word
