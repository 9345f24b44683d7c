"""Leading by the lock on a file beside a ledger on SQLite, whose coordinators are all on one machine."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from hanse.errors import FencedOut, HanseError, OperatorError
from hanse.ledger import Ledger
from hanse.logs import logger

__all__ = ["FileLead"]

_PAUSE_S = 0.2


class FileLead:
    """Leads by a lock on a file beside the SQLite database; it is let go with the process, however that ends."""

    def __init__(self, descriptor: int, holder: str, epoch: int) -> None:
        self.epoch = epoch
        self.holder = holder
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[HanseError] = self._loop.create_future()

    @classmethod
    async def win(cls, url: str, database: Path, holder: str) -> FileLead:
        """Stand by until this coordinator leads; see `Leadership.win`."""
        descriptor = await _locked(database.with_name(database.name + ".leader"), holder)
        try:
            return cls(descriptor, holder, await asyncio.to_thread(_first_epoch, url, holder))
        except BaseException:
            os.close(descriptor)
            raise

    def fenced(self) -> None:
        """See `leadership.Lead`."""

        def told() -> None:
            if not self._lost.done():
                self._lost.set_result(FencedOut("another coordinator leads.", remedy="This one stands by."))

        self._loop.call_soon_threadsafe(told)

    async def until_lost(self) -> HanseError:
        """See `leadership.Lead`."""
        return await asyncio.shield(self._lost)

    async def release(self) -> None:
        """See `leadership.Lead`."""
        os.close(self._descriptor)


def _first_epoch(url: str, holder: str) -> int:
    """The file is this process's alone: bring its tables up to date, and lead."""
    with Ledger.open(url) as ledger:
        ledger.migrate()
        return ledger.take_lease(holder)


async def _locked(path: Path, holder: str) -> int:
    """Hold the lock on a file, however long it takes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OperatorError(
            f"{path} cannot be written: {error.strerror or error}.",
            remedy="Mend the permissions of the ledger's folder, or name another.",
            code="FOLDER_NOT_WRITTEN",
        ) from error
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    leader = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                    logger(holder=holder).info("stands by", leader=leader)
                told = True
                await asyncio.sleep(_PAUSE_S)
            else:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{holder}\n".encode(), 0)
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
