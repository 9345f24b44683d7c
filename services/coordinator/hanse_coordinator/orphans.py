"""Bytes in the store that the ledger never heard of: of uploads and outcomes whose recording a crash prevented."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta

from hanse.artifacts import LEFTOVER_AGE, ArtifactStore
from hanse.logs import logger
from hanse_coordinator.ledger_thread import LedgerThread

__all__ = ["delete_orphans"]

AT_ONCE = 500


async def delete_orphans(ledger: LedgerThread, store: ArtifactStore, *, older_than: timedelta = LEFTOVER_AGE) -> int:
    """Delete every artifact that no row of the ledger names and that nobody stored for so long; return how many.

    What is stored again counts as new, so that bytes on their way into the ledger are never taken for an orphan.

    Raises:
        PlatformError: the store cannot be listed.
    """
    oldest = time.time() - older_than.total_seconds()
    listed, deleted = store.stored(), 0
    while page := await asyncio.to_thread(lambda: list(itertools.islice(listed, AT_ONCE))):
        old = [item.digest.hex() for item in page if item.at < oldest]
        recorded = await ledger.read(lambda view, old=old: view.recorded_artifacts(old))
        orphans = [digest for digest in old if digest not in recorded]
        for digest in orphans:
            await asyncio.to_thread(store.delete, bytes.fromhex(digest))
        deleted += len(orphans)
    if deleted:
        logger().info("artifacts that no job knows were deleted", count=deleted)
    return deleted
