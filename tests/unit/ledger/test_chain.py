"""The hash chain: any change of any row is found, and the right row is named."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert, text, update

from hanse.errors import Owner, Reason
from hanse.ledger import Head, Ledger, View, verify
from hanse.ledger.chain import GENESIS, canonical_bytes, canonical_json, link
from hanse.ledger.models import event

EVENTS = 7


@pytest.fixture
def chained(ledger: Ledger, epoch: int) -> Ledger:
    for number in range(1, EVENTS + 1):
        with ledger.write(epoch) as tx:
            tx.event("counted", job="j", node=f"node-{number}", body={"number": number, "share": number / 3})
    return ledger


@pytest.fixture
def heads(chained: Ledger) -> list[Head]:
    with chained.read() as view:
        return [Head(e.sequence, e.hash) for e in view.events()]


class Tampering:
    """What somebody does who may do anything to the database; nothing of it is kept."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def __enter__(self) -> Connection:
        self.connection = self.ledger._engine.connect()
        self.transaction = self.connection.begin()
        if self.connection.dialect.name == "sqlite":
            self.connection.exec_driver_sql("BEGIN IMMEDIATE")
            for trigger in ("event_in_order", "event_unchanged", "event_kept"):
                self.connection.execute(text(f"DROP TRIGGER {trigger}"))
        else:
            self.connection.execute(text("ALTER TABLE event DISABLE TRIGGER ALL"))
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.transaction.rollback()
        self.connection.close()


@pytest.fixture
def tampering(chained: Ledger) -> Tampering:
    return Tampering(chained)


def other_value(column: str, old: Any, draw: Any) -> Any:
    match column:
        case "body" | "previous_hash" | "hash":
            return draw(st.binary(max_size=64).filter(lambda new: new != old))
        case "at":
            return draw(st.floats(allow_nan=False, allow_infinity=False, width=64).filter(lambda new: new != old))
        case "sequence":
            return draw(st.integers(EVENTS + 1, 2**40))
        case "job" | "node":
            plain = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
            return draw(st.one_of(st.none(), plain).filter(lambda new: new != old))
        case _:
            plain = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
            return draw(plain.filter(lambda new: new != old))


def test_the_hash_is_sha256_of_the_previous_hash_and_the_canonical_bytes(ledger: Ledger, epoch: int) -> None:
    with ledger.write(epoch) as tx:
        assert tx.event("node_invited", node="node-1", actor="ada", body={"b": 1, "a": [True, None]}) == 1
        assert tx.event("node_approved", node="node-1") == 2
    with ledger.read() as view:
        first, second = view.events()
        assert view.head() == Head(2, second.hash)
    image = (
        b'{"actor":"ada","at":1700000000.25,"body":{"a":[true,null],"b":1},"job":null,"kind":"node_invited",'
        b'"node":"node-1","sequence":1}'
    )
    assert first.body == image
    assert first.previous_hash == bytes(32)
    assert first.hash == hashlib.sha256(bytes(32) + image).digest()
    assert second.previous_hash == first.hash
    assert second.hash == hashlib.sha256(first.hash + second.body).digest()
    assert first.facts == {"a": [True, None], "b": 1}


def test_canonical_json_has_one_way_to_write_a_value() -> None:
    reason = Reason(code="C", sentence="é", owner=Owner.SITE)
    assert canonical_json({"z": 1, "a": 0.1}) == '{"a":0.1,"z":1}'
    assert canonical_json(reason) == '{"code":"C","owner":"site","remedy":"","sentence":"\\u00e9"}'
    assert canonical_json(b"\x01\xff") == '"01ff"'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_event_holds_no_number_that_json_cannot_say(ledger: Ledger, epoch: int, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"), ledger.write(epoch) as tx:
        tx.event("measured", body={"value": value})
    with ledger.read() as view:
        assert view.head() == Head(0, GENESIS)


def test_an_event_holds_no_object_that_json_cannot_say(ledger: Ledger, epoch: int) -> None:
    with pytest.raises(TypeError, match="cannot hold a set"), ledger.write(epoch) as tx:
        tx.event("measured", body={"value": {1}})


def test_an_empty_trail_is_whole(ledger: Ledger) -> None:
    with ledger.read() as view:
        assert verify(view) == verify(view, [(0, GENESIS)])
        assert verify(view).whole
        assert verify(view).head == Head(0, GENESIS)


def test_an_untouched_trail_is_whole_and_agrees_with_every_head_it_showed(chained: Ledger, heads: list[Head]) -> None:
    with chained.read() as view:
        found = verify(view, heads)
    assert (found.whole, found.events, found.head, found.first_bad) == (True, EVENTS, heads[-1], None)
    assert found.sentence == f"The trail of {EVENTS} events is whole."


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_any_column_of_any_row_is_found_and_the_row_named(
    tampering: Tampering, data: st.DataObject
) -> None:
    row = data.draw(st.integers(1, EVENTS), label="row")
    column = data.draw(st.sampled_from(sorted(event.c.keys())), label="column")
    with tampering as connection:
        old = getattr(View(connection).events(after=row - 1, limit=1)[0], column)
        new = other_value(column, old, data.draw)
        connection.execute(update(event).where(event.c.sequence == row).values({column: new}))
        found = verify(View(connection))
    assert not found.whole
    assert found.first_bad == row
    assert found.events == row - 1
    assert f"{row}" in found.sentence


@pytest.mark.parametrize("row", range(1, EVENTS))
def test_a_deleted_row_is_found_and_named(tampering: Tampering, row: int) -> None:
    with tampering as connection:
        connection.execute(delete(event).where(event.c.sequence == row))
        found = verify(View(connection))
    assert (found.whole, found.first_bad) == (False, row)
    assert found.sentence == f"Event {row} is missing; event {row + 1} follows event {row - 1}."


@pytest.mark.parametrize("kept", range(EVENTS))
def test_a_trail_cut_at_its_end_is_found_by_a_head_that_was_kept(
    tampering: Tampering, heads: list[Head], kept: int
) -> None:
    with tampering as connection:
        connection.execute(delete(event).where(event.c.sequence > kept))
        alone, compared = verify(View(connection)), verify(View(connection), [heads[-1]])
    assert alone.whole
    assert (compared.whole, compared.first_bad, compared.events) == (False, kept + 1, kept)
    assert "cut off" in compared.sentence


@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 5), (6, 7)])
def test_two_rows_that_changed_places_are_found(tampering: Tampering, one: int, other: int) -> None:
    with tampering as connection:
        for was, becomes in ((one, 99), (other, one), (99, other)):
            connection.execute(update(event).where(event.c.sequence == was).values(sequence=becomes))
        found = verify(View(connection))
    assert (found.whole, found.first_bad) == (False, one)


def test_an_inserted_row_is_found(tampering: Tampering) -> None:
    with tampering as connection:
        rows = list(tail(connection, after=3))
        connection.execute(delete(event).where(event.c.sequence > 3))
        foreign = rows[0] | {"kind": "invented"}
        for sequence, row in enumerate([foreign, *rows], start=4):
            connection.execute(insert(event).values(row | {"sequence": sequence}))
        found = verify(View(connection))
    assert (found.whole, found.first_bad) == (False, 4)


def test_a_trail_written_anew_from_some_row_on_is_found_by_a_head_that_was_kept(
    tampering: Tampering, heads: list[Head]
) -> None:
    with tampering as connection:
        rows = list(tail(connection, after=3))
        connection.execute(delete(event).where(event.c.sequence > 3))
        previous = heads[2].hash
        for row in rows:
            columns = {name: row[name] for name in ("sequence", "at", "job", "node", "actor")} | {"kind": "invented"}
            image = canonical_bytes(**columns, body={})
            linked = {"body": image, "previous_hash": previous, "hash": link(previous, image)}
            connection.execute(insert(event).values(columns | linked))
            previous = linked["hash"]
        alone = verify(View(connection))
        compared = verify(View(connection), [heads[1], heads[4], heads[6]])
    assert alone.whole
    assert (compared.whole, compared.first_bad) == (False, 5)
    assert "seen earlier" in compared.sentence


def test_bytes_that_are_not_an_event_are_found_even_with_a_good_hash(tampering: Tampering, heads: list[Head]) -> None:
    for image in (b"", b"[]", b"{}", b"\xff", b"1" * 5000, b"[" * 100_000):
        with tampering as connection:
            forged = {"body": image, "hash": link(heads[-2].hash, image)}
            connection.execute(update(event).where(event.c.sequence == EVENTS).values(forged))
            found = verify(View(connection))
        assert (found.whole, found.first_bad) == (False, EVENTS)


def test_a_head_of_another_trail_is_told_from_this_one(chained: Ledger, heads: list[Head]) -> None:
    with chained.read() as view:
        assert verify(view, [(3, b"\x01" * 32)]).first_bad == 3
        assert verify(view, [(3, heads[2].hash), (3, b"\x01" * 32)]).first_bad == 3
        assert verify(view, [(0, b"\x01" * 32)]).first_bad == 1


def tail(connection: Connection, after: int) -> Iterator[dict[str, Any]]:
    statement = event.select().where(event.c.sequence > after).order_by(event.c.sequence)
    for row in connection.execute(statement).mappings().all():
        yield dict(row)
