"""Leading by the lease row of a ledger on PostgreSQL: it runs out by the database's clock unless it is renewed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from hanse.errors import Conflict, FencedOut, HanseError, OperatorError, PlatformError
from hanse.ledger import Ledger
from hanse.logs import logger
from hanse_coordinator.standby import Doorbell

__all__ = ["LeaseLead"]

_RENEWALS = 3
"""Renewals within one lease."""
_LOOKS = 10
"""How often a standby looks within one lease."""
_LONGEST_PAUSE_S = 1.0
_RELEASE_S = 5.0
_SCHEMA = "LEDGER_SCHEMA"
_BUSY = "LEDGER_BUSY"
T = TypeVar("T")


class LeaseLead:
    """Leads by the lease row. A thread of its own, with a connection of its own, takes and renews it, so that neither
    a busy event loop nor a long transaction costs the lease."""

    def __init__(self, open_ledger: Callable[[], Ledger], holder: str, lease: float) -> None:
        self.epoch = 0
        self._open_ledger = open_ledger
        self.holder = holder
        self._lease = lease
        self._good_until = 0.0
        self._loop = asyncio.get_running_loop()
        self._won: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[HanseError] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._ended = False
        self._wake = threading.Event()
        self._log = logger(holder=holder)
        self._trouble = ""

    @classmethod
    async def win(cls, open_ledger: Callable[[], Ledger], holder: str, lease: float) -> LeaseLead:
        """Stand by until this coordinator leads; see `Leadership.win`."""
        lead = cls(open_ledger, holder, lease)
        # A daemon: a connection that hangs in a dead network must not keep the program from ending.
        threading.Thread(target=lead._run, name="lease", daemon=True).start()
        try:
            await lead._won
        except asyncio.CancelledError:
            lead._end()
            raise
        return lead

    def fenced(self) -> None:
        """See `leadership.Lead`."""
        self._wake.set()  # the next renewal, now, tells who leads

    def _end(self) -> None:
        self._ended = True
        self._wake.set()

    async def until_lost(self) -> HanseError:
        """See `leadership.Lead`."""
        while not self._lost.done():
            left = self._good_until - time.monotonic()
            if left <= 0:
                # Also after the process was stopped for long: nothing is given out on a lease that has run out.
                return PlatformError(
                    f"the lease of {self._lease:g} s could not be renewed in time{self._trouble}.",
                    remedy="Look whether the database answers; this coordinator stands by until it does.",
                    code="LEASE_RAN_OUT",
                )
            await asyncio.wait({self._lost}, timeout=left)
        return self._lost.result()

    async def release(self) -> None:
        """See `leadership.Lead`."""
        self._end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_S):
                await asyncio.shield(self._over)

    # ---- In the thread
    def _run(self) -> None:
        try:
            with self._open_ledger() as ledger:
                if self._take(ledger):
                    self._tell(self._won, None)
                    self._keep(ledger)
        except HanseError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread that died in silence would leave the others waiting
            self._log.exception("leadership failed", error=repr(error))
            self._fail(PlatformError(f"leadership failed: {type(error).__name__}: {error}.", code="COORDINATOR_FAULT"))
        finally:
            self._tell(self._over, None)

    def _take(self, ledger: Ledger) -> bool:
        """Stand by until the lease is ours; False when nobody wants it any more."""
        bell, pause = Doorbell(), min(self._lease / _LOOKS, _LONGEST_PAUSE_S)
        seen, checked = None, False
        while not self._ended:
            try:
                if not checked:
                    ledger.require_schema()
                    checked = True
                leader = ledger.leader()
                self._recovered()
                free = leader is None or leader.holder == self.holder or (leader.seconds_left or 0) <= 0
                gone = not free and leader is not None and bell.nobody_home(leader.holder)
                if free or gone:
                    began = time.monotonic()
                    over = leader.epoch if leader is not None and gone else None
                    self.epoch = ledger.take_lease(self.holder, self._lease, over=over)
                    self._good_until = began + self._lease
                    self._log.info("leads", epoch=self.epoch, before=leader.holder if leader else None, early=gone)
                    return True
                if leader is not None and leader.epoch != seen:
                    seen = leader.epoch
                    self._log.info("stands by", leader=leader.holder, epoch=leader.epoch)
            except Conflict:
                continue  # another standby was faster
            except PlatformError as error:
                if error.code == _SCHEMA:
                    raise
                self._complain(error)
                if error.code == _BUSY:
                    self._free_the_row(ledger)
            self._wake.wait(pause)
        return False

    def _free_the_row(self, ledger: Ledger) -> None:
        """The lease is free, but somebody locked its row and fell silent: a leader that was stopped while it wrote."""
        with suppress(PlatformError):
            if ledger.end_silent_leader(self._lease):
                self._log.warning("ended a transaction that held the lease's row and whose client fell silent")

    def _keep(self, ledger: Ledger) -> None:
        """Renew until told to end, or until somebody else leads."""
        pause = self._lease / _RENEWALS
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self._ended:
                break
            began = time.monotonic()
            try:
                ledger.renew_lease(self.epoch, self._lease)
            except FencedOut as error:
                self._tell(self._lost, self._deposed(ledger, error))
                return
            except PlatformError as error:
                self._complain(error)
                pause = min(self._lease / _LOOKS, _LONGEST_PAUSE_S)
            else:
                self._recovered()
                self._good_until = began + self._lease
                pause = self._lease / _RENEWALS
        with suppress(HanseError):  # it runs out by itself
            ledger.release_lease(self.epoch)

    def _complain(self, error: HanseError) -> None:
        if not self._trouble:
            self._log.warning("the lease's database does not answer; trying again", reason=str(error))
        self._trouble = f" ({error.sentence.rstrip('.')})"

    def _recovered(self) -> None:
        if self._trouble:
            self._log.info("the lease's database answers again")
        self._trouble = ""

    def _deposed(self, ledger: Ledger, error: FencedOut) -> HanseError:
        with suppress(HanseError):
            leader = ledger.leader()
            if leader is not None and leader.holder == self.holder:
                return OperatorError(
                    f"another coordinator calls itself {self.holder} as well.",
                    remedy="Give each a health_address of its own (HANSE_COORDINATOR_HEALTH_ADDRESS).",
                    code="SAME_HOLDER",
                )
        return error

    def _fail(self, error: HanseError) -> None:
        def told() -> None:
            if not self._won.done():
                self._won.set_exception(error)
            elif not self._lost.done():
                self._lost.set_result(error)

        with suppress(RuntimeError):  # the loop is over, and nobody waits
            self._loop.call_soon_threadsafe(told)

    def _tell(self, future: asyncio.Future[T], result: T) -> None:
        def told() -> None:
            if not future.done():
                future.set_result(result)

        with suppress(RuntimeError):  # the loop is over, and nobody waits
            self._loop.call_soon_threadsafe(told)
