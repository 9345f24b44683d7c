"""Bytes in the store that the ledger never heard of: of uploads and outcomes whose recording a crash prevented."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

from hanse.artifacts import LEFTOVER_AGE, ArtifactStore, Stored
from hanse.ledger import View
from hanse.logs import logger
from hanse_coordinator.ledger_thread import LedgerThread

__all__ = ["delete_orphans"]

AT_ONCE = 500
HOUR_S = 3600


async def delete_orphans(ledger: LedgerThread, store: ArtifactStore, *, older_than: timedelta = LEFTOVER_AGE) -> int:
    """Delete every artifact that no row of the ledger names and that nobody stored for so long; return how many.

    What is stored again counts as new, so that bytes on their way into the ledger are never taken for an orphan. And
    only what was stored while this very ledger was being written can be its orphan: a ledger that was restored from an
    old backup knows nothing of what came since, and leaves it alone.

    Raises:
        PlatformError: the store cannot be listed.
    """
    oldest = time.time() - older_than.total_seconds()
    listed, deleted = store.stored(), 0
    while page := await asyncio.to_thread(_next, listed):
        old = [item for item in page if item.at < oldest]
        orphans = await ledger.read(partial(_orphans, old)) if old else []
        for orphan in orphans:
            await asyncio.to_thread(store.delete, orphan.digest)
        deleted += len(orphans)
    if deleted:
        logger().info("artifacts that no job knows were deleted", count=deleted)
    return deleted


def _next(listed: Iterator[Stored]) -> list[Stored]:
    return list(itertools.islice(listed, AT_ONCE))


def _orphans(old: Sequence[Stored], view: View) -> list[Stored]:
    recorded = view.recorded_artifacts([item.digest.hex() for item in old])
    unknown = [item for item in old if item.digest.hex() not in recorded]
    if not unknown:
        return []
    times = [item.at for item in unknown]
    written = view.hours_written(min(times) - 2 * HOUR_S, max(times) + 2 * HOUR_S)
    # What is stored belongs to a phase, and something was written of that shortly before or after.
    return [item for item in unknown if any(int(item.at // HOUR_S) + near in written for near in (-1, 0, 1))]
