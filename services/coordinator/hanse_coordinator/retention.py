"""Bytes that have served their time are deleted; digest and size stay in the ledger."""

from __future__ import annotations

import asyncio
import time

from hanse.artifacts import ArtifactStore
from hanse.errors import HanseError, NotFound
from hanse.ledger import View
from hanse.logs import logger
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.orphans import delete_orphans

__all__ = ["delete_expired", "keep_deleting", "keep_sweeping"]

PERIOD = 60.0
DAY = 86_400.0


async def keep_deleting(ledger: LedgerThread, store: ArtifactStore) -> None:
    """Look every minute."""
    while True:
        try:
            await delete_expired(ledger, store)
        except HanseError as error:
            logger().warning("retention", error=str(error))
        await asyncio.sleep(PERIOD)


async def delete_expired(ledger: LedgerThread, store: ArtifactStore) -> int:
    """Delete every artifact whose retention has passed; return how many."""

    def find(view: View) -> list[str]:
        expired = [item.digest for item in view.expired_artifacts(time.time())]
        needed = view.still_needed(expired)
        return [digest for digest in expired if digest not in needed]

    digests = await ledger.read(find)
    if not digests:
        return 0

    def delete() -> None:
        for digest in digests:
            try:
                store.delete(bytes.fromhex(digest))
            except NotFound:
                continue

    # First the bytes: a crash in between leaves rows that say "still there" and are tried again.
    await asyncio.to_thread(delete)
    await ledger.write(lambda tx: tx.mark_deleted(digests))
    return len(digests)


async def keep_sweeping(ledger: LedgerThread, store: ArtifactStore) -> None:
    """At the start and once a day: remove what uploads and crashes left behind, in the spool and in the store."""
    while True:
        try:
            await asyncio.to_thread(store.sweep)
            await delete_orphans(ledger, store)
        except HanseError as error:
            logger().warning("sweeping the store", error=str(error))
        await asyncio.sleep(DAY)
