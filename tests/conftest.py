"""Fixtures that several kinds of tests share."""

import signal
from pathlib import Path

import pytest

from tests.buckets import new_bucket, s3_server
from tests.databases import database_url, new_database, postgresql

__all__ = ["database_url", "new_bucket", "new_database", "postgresql", "s3_server"]

_TESTS = Path(__file__).parent
_OF_PROCESSES = ("browser", "chaos", "deploy", "integration")


def pytest_configure() -> None:
    """A shell that runs the tests in the background lets them ignore Ctrl-C, and the programs that they start inherit
    it; those are tested with what a person's shell gives them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts real processes is tried once more when it fails, and the summary says so (R): other work on the
    machine may hold a process for longer than any patience. What fails twice is a fault."""
    for item in items:
        if item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).parts[0] in _OF_PROCESSES:
            item.add_marker(pytest.mark.flaky(reruns=1))
