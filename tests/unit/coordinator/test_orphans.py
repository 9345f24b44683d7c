"""What a crash left in the store, unknown to the ledger."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

from hanse_coordinator.orphans import delete_orphans
from tests.unit.artifacts.payloads import a_payload
from tests.unit.coordinator.engine_federation import Federation


def left_behind(federation: Federation, seed: int, age_s: float) -> bytes:
    """An artifact that no row of the ledger names."""
    payload, at = a_payload(seed), time.time() - age_s
    federation.store.put(payload)
    os.utime(federation.store.path(payload.digest), (at, at))
    return payload.digest


def test_only_what_no_row_names_and_nobody_stored_for_long_is_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        federation = Federation(tmp_path, ["ada", "ben"])
        await federation.start()
        job = await federation.submit(rounds=2, selection={"minimum_nodes": 2})
        assert (await federation.until(job)).state == "succeeded"
        with federation.ledger.read() as view:
            recorded = {bytes.fromhex(item.digest) for item in view.artifacts(job)}
        before = {item.digest for item in federation.store.stored()}
        orphan, young = left_behind(federation, 1, 60), left_behind(federation, 2, 0)
        before_the_ledger = left_behind(federation, 3, 30 * 86_400)
        assert await delete_orphans(federation.thread, federation.store) == 0  # nothing is two days old and its own
        assert await delete_orphans(federation.thread, federation.store, older_than=timedelta(seconds=30)) >= 1
        kept = {item.digest for item in federation.store.stored()}
        assert recorded & before <= kept
        assert orphan not in kept
        assert young in kept
        assert before_the_ledger in kept  # of a time in which this ledger was not written: somebody else's
        await federation.stop()

    asyncio.run(scenario())


def test_an_orphan_that_is_stored_again_counts_as_new(tmp_path: Path) -> None:
    async def scenario() -> None:
        federation = Federation(tmp_path, ["ada"])
        await federation.start()
        digest = left_behind(federation, 1, 60)
        federation.store.put(federation.store.open(digest))
        assert await delete_orphans(federation.thread, federation.store, older_than=timedelta(seconds=30)) == 0
        assert federation.store.exists(digest)
        await federation.stop()

    asyncio.run(scenario())
