"""The ORM objects of a unit of work that failed: none may look stored, or its row would be missing the next time."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, inspect, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import DetachedInstanceError

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InDoubtError, InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.shop import (
    ShopCard,
    ShopCustomer,
    ShopItem,
    ShopOrder,
    ShopPlace,
    ShopPoint,
    fail_after,
    fail_with,
)
from tests.support.coordinator.usual_unit import EventModel, fail_at, in_both


def test_an_object_with_its_children_and_the_databases_values_is_written_by_the_next_unit(
    dual_write: DualWrite, shop: Engine
) -> None:
    order = ShopOrder(city="Rome", items=[ShopItem(), ShopItem()])
    fail_with(dual_write, order)
    with dual_write.transaction() as tx:
        tx.session.add(order)
    with Session(shop) as session:
        found = session.scalars(select(ShopOrder)).one()
        assert (found.city, found.state, found.version, len(found.items)) == ("Rome", "new", 1, 2)


def test_what_a_new_object_refers_to_can_be_used_again(dual_write: DualWrite, shop: Engine) -> None:
    """Its row was not written, though its collection has changed."""
    customer, runs = ShopCustomer(card=None), iter(range(2))
    with dual_write.transaction() as tx:
        tx.session.add(customer)

    @dual_write.transactional(retries=1)
    def order(tx: Transaction) -> None:
        tx.session.add(customer)
        tx.session.add_all([ShopOrder(city="Rome", customer=customer), ShopCard(customer=customer)])
        tx.session.flush()
        if next(runs) == 0:
            raise KafkaUnavailableError("not now")

    order()
    with Session(shop) as session:
        assert [each.city for each in session.scalars(select(ShopCustomer)).one().orders] == ["Rome"]


def test_an_object_without_its_one_related_object_is_written_by_the_next_unit(
    dual_write: DualWrite, shop: Engine
) -> None:
    """One is new, and one was stored without a card, and stays so."""
    new, stored = ShopCustomer(card=None), ShopCustomer()
    with dual_write.transaction() as tx:
        tx.session.add(stored)
    stored.card = None
    fail_with(dual_write, new, stored)
    with dual_write.transaction() as tx:
        tx.session.add_all([new, stored])
    with Session(shop) as session:
        assert len(session.scalars(select(ShopCustomer)).all()) == 2


def test_a_new_object_has_no_key_again(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    """Another row may have it by now; and some programs add an object only if it has none."""
    one = EventModel(value="one")
    fail_with(dual_write, one)
    with sqlite_engine.begin() as connection:
        connection.execute(insert(events).values(value="another"))
    with dual_write.transaction() as tx:
        if one.id is None:
            tx.session.add(one)
    assert stored_values(sqlite_engine) == ["another", "one"]


def test_a_new_object_keeps_the_key_that_it_was_given(dual_write: DualWrite, sqlite_engine: Engine) -> None:
    one = EventModel(id=7, value="one")
    fail_with(dual_write, one)
    with dual_write.transaction() as tx:
        tx.session.add(one)
    with sqlite_engine.connect() as connection:
        assert connection.scalars(select(events.c.id)).all() == [7]


def test_an_object_whose_children_name_its_key_keeps_the_key(dual_write: DualWrite, shop: Engine) -> None:
    """Under another key it would lose its items, and they would belong to the order that has the key by now."""
    order = ShopOrder(city="Rome", items=[ShopItem()])
    fail_with(dual_write, order)
    with Session(shop) as session, session.begin():
        session.add(ShopOrder(city="Oslo"))
    with pytest.raises(IntegrityError), dual_write.transaction() as tx:
        tx.session.add(order)
    with Session(shop) as session:
        assert session.scalars(select(ShopItem)).all() == []


def test_a_relationship_for_reading_alone_does_not_matter(dual_write: DualWrite, shop: Engine) -> None:
    order = ShopOrder(city="Rome")

    def act(tx: Transaction) -> None:
        tx.session.add(order)
        tx.session.flush()
        tx.session.add(ShopItem(order_id=order.id))
        assert len(order.seen_items) == 1

    fail_after(dual_write, act)
    with dual_write.transaction() as tx:
        tx.session.add(order)
    with Session(shop) as session:
        assert session.scalars(select(ShopOrder.city)).all() == ["Rome"]


def test_an_object_of_composed_values_is_written_by_the_next_unit(dual_write: DualWrite, shop: Engine) -> None:
    place = ShopPlace(point=ShopPoint(1, 2))
    fail_with(dual_write, place)
    with dual_write.transaction() as tx:
        tx.session.add(place)
    with Session(shop) as session:
        assert session.scalars(select(ShopPlace)).one().point == ShopPoint(1, 2)


def test_a_write_only_relationship_that_was_not_used_does_not_matter(dual_write: DualWrite, shop: Engine) -> None:
    customer = ShopCustomer()
    fail_with(dual_write, customer)
    with dual_write.transaction() as tx:
        tx.session.add(customer)
    with Session(shop) as session:
        assert len(session.scalars(select(ShopCustomer)).all()) == 1


def test_objects_of_an_applications_own_session_are_new_again(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    one, runs = EventModel(value="one"), iter(range(2))

    @dual_write.transactional(retries=1)
    def put(tx: Transaction) -> None:
        with Session(tx.connection) as session:
            session.add(one)
        tx.produce("events", value="one")
        if next(runs) == 0:
            raise KafkaUnavailableError("not now")

    put()
    assert in_both(sqlite_engine, kafka, "one")


def add_flushed(tx: Transaction, made: EventModel) -> None:
    tx.session.add(made)
    tx.session.flush()


def add_in_its_block(tx: Transaction, made: EventModel) -> None:
    with tx.session as session:
        session.add(made)


def add_in_a_session_of_the_application(tx: Transaction, made: EventModel) -> None:
    with Session(tx.connection) as session:
        session.add(made)


def add_by_a_listener(tx: Transaction, made: EventModel) -> None:
    add_in_a_flush(tx.session, made)


def add_by_a_listener_of_the_applications_session(tx: Transaction, made: EventModel) -> None:
    add_in_a_flush(Session(tx.connection), made)


def add_in_a_flush(session: Session, made: EventModel) -> None:
    """The library's own listener comes first, and does not see it."""
    replaced = EventModel(value="replaced")
    session.add(replaced)

    def replace(*_: Any) -> None:
        session.expunge(replaced)
        session.add(made)

    event.listen(session, "before_flush", replace, once=True)
    session.flush()


def add_in_an_open_savepoint(tx: Transaction, made: EventModel) -> None:
    tx.session.begin_nested()
    add_flushed(tx, made)


@pytest.mark.parametrize("add", [add_flushed, add_in_a_session_of_the_application])
def test_an_object_of_a_unit_in_doubt_is_refused(
    dual_write: DualWrite,
    sqlite_engine: Engine,
    kafka: FakeKafka,
    monkeypatch: pytest.MonkeyPatch,
    add: Callable[[Transaction, EventModel], None],
) -> None:
    """It is not known whether its row was committed."""
    one = EventModel(value="one")

    def fail(*_: Any) -> None:
        raise OperationalError("COMMIT", {}, ConnectionError("lost"))

    def put(tx: Transaction) -> None:
        add(tx, one)
        tx.produce("events", value="one")
        monkeypatch.setattr(sqlite_engine.dialect, "do_commit", fail)
        monkeypatch.setattr(sqlite_engine.dialect, "do_begin", fail)

    with pytest.raises(InDoubtError), dual_write.transaction() as tx:
        put(tx)
    monkeypatch.undo()
    assert dual_write.wait_idle()
    with pytest.raises(InvalidTransactionStateError, match="make or load the object"), dual_write.transaction() as tx:
        tx.session.add(one)


@pytest.mark.parametrize("request_name", ["prepare", None], ids=["Kafka fails", "the block fails"])
@pytest.mark.parametrize(
    "add",
    [
        add_flushed,
        add_in_its_block,
        add_in_an_open_savepoint,
        add_by_a_listener,
        add_by_a_listener_of_the_applications_session,
    ],
)
def test_objects_of_a_unit_that_failed_are_written_by_the_next(
    dual_write: DualWrite,
    sqlite_engine: Engine,
    kafka: FakeKafka,
    request_name: str | None,
    add: Callable[[Transaction, EventModel], None],
) -> None:
    """They were flushed, and rolled back."""
    one, runs = EventModel(value="one"), iter(range(2))

    @dual_write.transactional(retries=1)
    def put(tx: Transaction) -> None:
        add(tx, one)
        tx.produce("events", value="one")
        if next(runs) == 0 and request_name is None:
            raise KafkaUnavailableError("not now")

    if request_name is not None:
        fail_at(kafka, request_name)
    put()
    assert in_both(sqlite_engine, kafka, "one")


def test_objects_of_an_async_unit_that_failed_are_written_by_the_next(place: AsyncPlace) -> None:
    async def main() -> None:
        one = EventModel(value="one")
        fail_at(place.kafka, "prepare")
        async with place.dual_write() as dual_write:

            @dual_write.transactional(retries=1)
            async def put(tx: AsyncTransaction) -> None:
                tx.session.add(one)
                await tx.produce("events", value="one")

            await put()

    run(main())
    assert place.in_both("one")


def test_objects_of_a_block_that_is_never_left_can_be_added_again(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def begin() -> None:
        block = dual_write.transaction()
        add_flushed(block.__enter__(), one)

    one = EventModel(value="one")
    begin()
    gc.collect()
    with dual_write.transaction() as tx:
        tx.session.add(one)
        tx.produce("events", value="one")
    assert in_both(sqlite_engine, kafka, "one")


def test_an_object_that_a_failed_unit_has_loaded_is_read_anew(dual_write: DualWrite, sqlite_engine: Engine) -> None:
    """What the unit has read may be its own, and was never committed."""
    loaded: list[EventModel] = []

    def fail(tx: Transaction) -> None:
        tx.execute(update(events).values(value="never"))
        loaded.append(tx.session.scalars(select(EventModel)).one())
        assert loaded[0].value == "never"
        raise KafkaUnavailableError("not now")

    with sqlite_engine.begin() as connection:
        connection.execute(insert(events).values(value="there"))
    with pytest.raises(KafkaUnavailableError), dual_write.transaction() as tx:
        fail(tx)
    with pytest.raises(DetachedInstanceError):
        _ = loaded[0].value
    with dual_write.transaction() as tx:
        tx.session.add(loaded[0])
        assert loaded[0].value == "there"


def test_objects_of_a_unit_that_was_committed_stay_stored(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    one = EventModel(value="one")
    with dual_write.transaction() as tx:
        add_flushed(tx, one)
        tx.produce("events", value="one")
    with dual_write.transaction() as tx:
        one.value = "changed"
        tx.session.add(one)
        tx.produce("events", value="changed")
    assert stored_values(sqlite_engine) == ["changed"]
    assert kafka.committed == ["one", "changed"]


def test_objects_stay_stored_if_the_answer_to_the_commit_was_lost(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library finds that the database has committed."""
    one, commit = EventModel(value="one"), sqlite_engine.dialect.do_commit

    def lose_the_answer(connection: Any) -> None:
        commit(connection)
        if kafka.ongoing is not None:
            monkeypatch.undo()
            raise OperationalError("COMMIT", {}, ConnectionError("lost"))

    monkeypatch.setattr(sqlite_engine.dialect, "do_commit", lose_the_answer)
    with dual_write.transaction() as tx:
        add_flushed(tx, one)
        tx.produce("events", value="one")
    assert inspect(one).detached
    assert dual_write.wait_idle()
    assert in_both(sqlite_engine, kafka, "one")


def test_an_object_that_was_flushed_after_a_rollback_inside_the_block_is_written_by_the_next_unit(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    one, sessions = EventModel(value="one"), []

    def roll_back_and_go_on() -> None:
        with dual_write.transaction() as tx:
            tx.connection.rollback()
            sessions.append(Session(tx.connection))
            sessions[0].add(one)
            sessions[0].flush()

    with pytest.raises(InvalidTransactionStateError, match="inside its block rolled this unit of work back"):
        roll_back_and_go_on()
    sessions[0].close()
    with dual_write.transaction() as tx:
        tx.session.add(one)
        tx.produce("events", value="one")
    assert in_both(sqlite_engine, kafka, "one")
