"""The ORM objects of a unit of work that failed: none may look stored, or its row would be missing the next time."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Column, Engine, ForeignKey, Table, event, func, insert, inspect, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, WriteOnlyMapped, composite, mapped_column, relationship
from sqlalchemy.orm.exc import DetachedInstanceError

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InDoubtError, InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, fail_at, in_both


class ShopBase(DeclarativeBase):
    pass


order_tags = Table(
    "order_tags",
    ShopBase.metadata,
    Column("order_id", ForeignKey("orders.id")),
    Column("tag_id", ForeignKey("tags.id")),
)


class ShopTag(ShopBase):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(primary_key=True)


class ShopItem(ShopBase):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int | None] = mapped_column(ForeignKey("orders.id"))
    order: Mapped["ShopOrder | None"] = relationship(back_populates="items")


class ShopNote(ShopBase):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))


class ShopCustomer(ShopBase):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    notes: WriteOnlyMapped[ShopNote] = relationship()
    orders: Mapped[list["ShopOrder"]] = relationship(back_populates="customer")
    card: Mapped["ShopCard | None"] = relationship(back_populates="customer")


class ShopCard(ShopBase):
    __tablename__ = "cards"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[ShopCustomer | None] = relationship(back_populates="card")


class ShopOrder(ShopBase):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    city: Mapped[str | None]
    state: Mapped[str] = mapped_column(server_default="new")
    version: Mapped[int] = mapped_column(default=func.abs(-1))
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[ShopCustomer | None] = relationship(back_populates="orders")
    items: Mapped[list[ShopItem]] = relationship(back_populates="order")
    tags: Mapped[list[ShopTag]] = relationship(secondary=order_tags)


@dataclass
class ShopPoint:
    x: int
    y: int


class ShopPlace(ShopBase):
    __tablename__ = "places"
    id: Mapped[int] = mapped_column(primary_key=True)
    point: Mapped[ShopPoint] = composite(mapped_column("x"), mapped_column("y"))


@pytest.fixture
def shop(sqlite_engine: Engine) -> Engine:
    ShopBase.metadata.create_all(sqlite_engine)
    return sqlite_engine


def fail_after(dual_write: DualWrite, act: Callable[[Transaction], object]) -> None:
    """A unit that does ``act`` and fails."""

    def fail(tx: Transaction) -> None:
        act(tx)
        raise KafkaUnavailableError("not now")

    with pytest.raises(KafkaUnavailableError), dual_write.transaction() as tx:
        fail(tx)


def fail_with(dual_write: DualWrite, *instances: object) -> None:
    """A unit that writes ``instances`` and fails."""

    def act(tx: Transaction) -> None:
        tx.session.add_all(instances)
        tx.session.flush()

    fail_after(dual_write, act)


def refuse(dual_write: DualWrite, kafka: FakeKafka, instance: object) -> None:
    """The next unit does not accept ``instance``, even if its error is caught."""

    def act(tx: Transaction) -> None:
        tx.produce("events", value="one")
        with pytest.raises(InvalidTransactionStateError, match="object: a unit of work that failed has written it"):
            tx.session.add(instance)

    with pytest.raises(InvalidTransactionStateError, match="make or load the object"), dual_write.transaction() as tx:
        act(tx)
    assert (kafka.committed, kafka.ongoing) == ([], None)


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


def changed_after_a_savepoint(dual_write: DualWrite) -> object:
    order = ShopOrder(city="Rome")

    def act(tx: Transaction) -> None:
        tx.session.add(order)
        tx.session.flush()
        savepoint = tx.session.begin_nested()
        order.city = "Oslo"
        tx.session.flush()
        savepoint.rollback()

    fail_after(dual_write, act)
    return order


def with_an_expression(dual_write: DualWrite) -> object:
    order = ShopOrder(city=func.upper("Rome"))
    fail_with(dual_write, order)
    return order


def with_a_tag(dual_write: DualWrite) -> object:
    order = ShopOrder(city="Rome", tags=[ShopTag()])
    fail_with(dual_write, order)
    return order


def with_an_item_that_was_there(dual_write: DualWrite) -> object:
    item = ShopItem()
    with dual_write.transaction() as tx:
        tx.session.add(item)
    order = ShopOrder(city="Rome", items=[item])
    fail_with(dual_write, order)
    return order


def with_notes_that_it_does_not_hold(dual_write: DualWrite) -> object:
    customer = ShopCustomer()
    customer.notes.add(ShopNote())
    fail_with(dual_write, customer)
    return customer


def with_items_that_it_has_forgotten(dual_write: DualWrite) -> object:
    order = ShopOrder(city="Rome", items=[ShopItem()])

    def act(tx: Transaction) -> None:
        tx.session.add(order)
        tx.session.flush()
        tx.session.refresh(order)

    fail_after(dual_write, act)
    return order


def with_an_expression_that_a_failed_flush_has_replaced(dual_write: DualWrite) -> object:
    order = ShopOrder(city=func.upper("Rome"))

    def act(tx: Transaction) -> None:
        with pytest.raises(IntegrityError), tx.session.begin_nested():
            tx.session.add_all([order, EventModel(value=None)])

    fail_after(dual_write, act)
    return order


def added_again_after_a_failed_flush(dual_write: DualWrite) -> object:
    """The second flush writes no city, as the first has replaced it."""
    order = ShopOrder(city=func.upper("Rome"))

    def act(tx: Transaction) -> None:
        with pytest.raises(IntegrityError), tx.session.begin_nested():
            tx.session.add_all([order, EventModel(value=None)])
        tx.session.add(order)
        tx.session.flush()

    fail_after(dual_write, act)
    return order


def without_its_card(dual_write: DualWrite) -> object:
    customer = ShopCustomer(card=ShopCard())
    with dual_write.transaction() as tx:
        tx.session.add(customer)
    customer.card = None
    fail_with(dual_write, customer)
    return customer


def tagged(dual_write: DualWrite) -> object:
    order, tag = a_stored_order(dual_write), ShopTag()
    order.tags.append(tag)
    fail_with(dual_write, order)
    return order


def loaded_and_closed(dual_write: DualWrite) -> object:
    """It keeps what the unit has made of it by a statement."""
    order = a_stored_order(dual_write)

    def act(tx: Transaction) -> None:
        with tx.session as session:
            session.add(order)
            session.execute(update(ShopOrder).values(city="Oslo"))
            assert order.city == "Oslo"

    fail_after(dual_write, act)
    return order


def loaded_and_closed_in_a_session_of_the_application(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)

    def act(tx: Transaction) -> None:
        with Session(tx.connection) as session:
            session.add(order)
            session.execute(update(ShopOrder).values(city="Oslo"))
            assert order.city == "Oslo"

    fail_after(dual_write, act)
    return order


def deleted_by_a_listener(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    fail_after(dual_write, lambda tx: delete_in_a_flush(tx.session, order))
    return order


def deleted_by_a_listener_of_the_applications_session(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    fail_after(dual_write, lambda tx: delete_in_a_flush(Session(tx.connection), order))
    return order


def delete_in_a_flush(session: Session, order: ShopOrder) -> None:
    """The library's own listener comes first, and does not see it."""
    session.add_all([order, ShopTag()])
    event.listen(session, "before_flush", lambda *_: session.delete(order), once=True)
    session.flush()


def with_an_item_that_the_unit_has_added(dual_write: DualWrite) -> object:
    """Added again, it would bring that item along, beside the next one."""
    order = ShopOrder(city="Rome")

    def act(tx: Transaction) -> None:
        tx.session.add(order)
        order.items.append(ShopItem())
        tx.session.flush()

    fail_after(dual_write, act)
    return order


def referred_to_by_an_order_of_the_unit(dual_write: DualWrite) -> object:
    customer = ShopCustomer()
    fail_after(dual_write, lambda tx: tx.session.add(ShopOrder(customer=customer)))
    return customer


def stored_and_given_an_item_before(dual_write: DualWrite) -> object:
    """The item would be forgotten as the collection is expired."""
    order = a_stored_order(dual_write)
    order.items.append(ShopItem())
    fail_with(dual_write, order)
    return order


def a_stored_order(dual_write: DualWrite) -> ShopOrder:
    order = ShopOrder(city="Rome", tags=[], items=[])
    with dual_write.transaction() as tx:
        tx.session.add(order)
    return order


def changed(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    order.city = "Oslo"
    fail_with(dual_write, order)
    return order


def changed_in_a_session_that_was_closed(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)

    def act(tx: Transaction) -> None:
        with tx.session as session:
            session.add(order)
            order.city = "Oslo"

    fail_after(dual_write, act)
    return order


def changed_and_not_flushed(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    order.city = "Oslo"

    def act(tx: Transaction) -> None:
        tx.session.add(order)

    fail_after(dual_write, act)
    return order


def deleted(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)

    def act(tx: Transaction) -> None:
        tx.session.delete(order)
        tx.session.flush()

    fail_after(dual_write, act)
    return order


def expired_by_a_commit(dual_write: DualWrite) -> object:
    order = ShopOrder(city="Rome")

    def act(tx: Transaction) -> None:
        with Session(tx.connection) as session, session.begin():
            session.add(order)

    fail_after(dual_write, act)
    return order


def changed_in_a_session_of_the_application(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)

    def act(tx: Transaction) -> None:
        with Session(tx.connection) as session:
            session.add(order)
            order.city = "Oslo"

    fail_after(dual_write, act)
    return order


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "write",
    [
        with_an_expression,
        changed_after_a_savepoint,
        with_a_tag,
        with_an_item_that_was_there,
        with_notes_that_it_does_not_hold,
        changed,
        changed_in_a_session_that_was_closed,
        changed_and_not_flushed,
        changed_in_a_session_of_the_application,
        deleted,
        expired_by_a_commit,
        with_items_that_it_has_forgotten,
        with_an_expression_that_a_failed_flush_has_replaced,
        added_again_after_a_failed_flush,
        without_its_card,
        tagged,
        with_an_item_that_the_unit_has_added,
        referred_to_by_an_order_of_the_unit,
        stored_and_given_an_item_before,
        loaded_and_closed,
        loaded_and_closed_in_a_session_of_the_application,
        deleted_by_a_listener,
        deleted_by_a_listener_of_the_applications_session,
    ],
)
def test_an_object_that_would_not_be_written_as_it_was_is_refused(
    dual_write: DualWrite, shop: Engine, kafka: FakeKafka, write: Callable[[DualWrite], object]
) -> None:
    instance = write(dual_write)
    kafka.committed.clear()
    refuse(dual_write, kafka, instance)


@pytest.mark.parametrize("use", ["merge", "bulk_save_objects"])
def test_a_refused_object_can_neither_be_merged_nor_saved_in_bulk(
    dual_write: DualWrite, shop: Engine, kafka: FakeKafka, use: str
) -> None:
    order = changed(dual_write)

    def act(tx: Transaction) -> None:
        getattr(tx.session, use)(order if use == "merge" else [order])

    with pytest.raises(InvalidTransactionStateError, match="make or load the object"), dual_write.transaction() as tx:
        act(tx)


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
