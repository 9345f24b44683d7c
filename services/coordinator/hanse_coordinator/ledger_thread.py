"""The ledger, from an event loop: one thread does all database work, in the order in which it was asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    stop_never,
    wait_random_exponential,
)
from tenacity.stop import stop_base

from hanse.errors import FencedOut, HanseError, PlatformError
from hanse.ledger import Ledger, Transaction, View
from hanse.ledger.chain import Head
from hanse.logs import logger
from hanse_coordinator.metrics import CoordinatorMetrics

__all__ = ["LedgerThread"]

T = TypeVar("T")


class LedgerThread:
    """Runs functions over the ledger in its own thread. The coordinator is the ledger's only writer.

    A write whose database is away for a while is tried again: its function must depend on nothing but the
    transaction. A write that is fenced out (another coordinator leads) calls `on_fenced` and never succeeds.
    """

    def __init__(
        self,
        ledger: Ledger,
        epoch: int,
        *,
        on_fenced: Callable[[], None] = lambda: None,
        metrics: CoordinatorMetrics | None = None,
    ) -> None:
        self._ledger = ledger
        self._epoch = epoch
        self._on_fenced = on_fenced
        self._metrics = metrics or CoordinatorMetrics()
        self._over = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        with ledger.read() as view:
            self.head: Head = view.head()

    async def write(self, work: Callable[[Transaction], T], *, patience: float | None = 5.0) -> T:
        """Run `work` in one transaction and return what it returns.

        `patience` is how many seconds to go on trying while the database is away; None: for ever.

        Raises:
            FencedOut: this coordinator no longer leads, or is stopping.
            PlatformError: the database stayed away.
            HanseError: what `work` raised; nothing was written.
        """
        return await self._patiently(lambda: self._write(work), patience)

    async def read(self, work: Callable[[View], T], *, patience: float | None = 0.0) -> T:
        """Run `work` over a consistent view; `patience` as in `write`.

        Raises:
            PlatformError: the database is away.
        """
        return await self._patiently(lambda: self._read(work), patience)

    async def read_aside(self, work: Callable[[View], T]) -> T:
        """Run `work`, which may take long, over a consistent view and beside what the ledger's thread does.

        Raises:
            PlatformError: the database is away.
        """
        return await asyncio.to_thread(self._read, work)

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        self._thread.shutdown(wait=True)
        self._over = True

    def abandon(self) -> None:
        """End the thread without waiting for what it does: the database may be away, and the epoch fences."""
        self._over = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _patiently(self, call: Callable[[], T], patience: float | None) -> T:
        try:  # nearly always; the apparatus of retries would cost as much as a small transaction
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except PlatformError as error:
            if not error.retryable or patience == 0:
                raise
            self._metrics.away()
        stop: stop_base = stop_never if patience is None else stop_after_delay(patience)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(_transient),
            stop=stop,
            wait=wait_random_exponential(0.1, max=5),
            reraise=True,
            before_sleep=self._complain,
        ):
            with attempt:
                if self._over:
                    raise FencedOut("this coordinator does not lead any more.", code="NOT_LEADING")
                return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        raise AssertionError("unreachable")

    def _write(self, work: Callable[[Transaction], T]) -> T:
        began = time.perf_counter()
        try:
            with self._ledger.write(self._epoch) as transaction:
                result = work(transaction)
                head = transaction.head()
        except FencedOut:
            # Counted by whoever proves that a deposed leader wrote nothing.
            logger().warning("a write was refused: another coordinator leads", epoch=self._epoch)
            self._on_fenced()
            raise
        self.head = head
        self._metrics.wrote(time.perf_counter() - began, head.sequence, transaction.appended)
        return result

    def _read(self, work: Callable[[View], T]) -> T:
        with self._ledger.read() as view:
            result = work(view)
        self._metrics.answered()
        return result

    def _complain(self, state: RetryCallState) -> None:
        self._metrics.away()
        logger().warning("the database is away; trying again", attempt=state.attempt_number)


def _transient(error: BaseException) -> bool:
    return isinstance(error, PlatformError) and isinstance(error, HanseError) and error.retryable
