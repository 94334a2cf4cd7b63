"""The ORM objects of a unit of work that failed which no later unit accepts: their rows would not be the same again."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, event, func, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.shop import (
    ShopCard,
    ShopCustomer,
    ShopItem,
    ShopLine,
    ShopNote,
    ShopOrder,
    ShopTag,
    ShopVisit,
    a_stored_order,
    fail_after,
    fail_with,
    stored,
)
from tests.support.coordinator.usual_unit import EventModel


def refuse(dual_write: DualWrite, kafka: FakeKafka, instance: object) -> None:
    """The next unit does not accept ``instance``, even if its error is caught."""

    def act(tx: Transaction) -> None:
        tx.produce("events", value="one")
        with pytest.raises(InvalidTransactionStateError, match="object: a unit of work that failed has written it"):
            tx.session.add(instance)

    with pytest.raises(InvalidTransactionStateError, match="make or load the object"), dual_write.transaction() as tx:
        act(tx)
    assert (kafka.committed, kafka.ongoing) == ([], None)


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
    order = ShopOrder(city="Rome", items=[stored(dual_write, ShopItem())])
    fail_with(dual_write, order)
    return order


def with_a_line_that_was_there(dual_write: DualWrite) -> object:
    order = ShopOrder(city="Rome", lines=[stored(dual_write, ShopLine())])
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


def given_to_a_customer(dual_write: DualWrite) -> object:
    visit, customer = stored(dual_write, ShopVisit()), stored(dual_write, ShopCustomer())
    visit.customer = customer
    fail_with(dual_write, visit)
    return visit


def given_a_stored_item_in_the_unit(dual_write: DualWrite) -> object:
    order, item = a_stored_order(dual_write), stored(dual_write, ShopItem())

    def act(tx: Transaction) -> None:
        tx.session.add_all([order, item])
        order.items.append(item)
        tx.session.flush()

    fail_after(dual_write, act)
    return order


def tagged_in_the_unit(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)

    def act(tx: Transaction) -> None:
        tx.session.add(order)
        order.tags.append(ShopTag())
        tx.session.flush()

    fail_after(dual_write, act)
    return order


def without_its_card(dual_write: DualWrite) -> object:
    customer = stored(dual_write, ShopCustomer(card=ShopCard()))
    customer.card = None
    fail_with(dual_write, customer)
    return customer


def tagged(dual_write: DualWrite) -> object:
    order, tag = a_stored_order(dual_write), ShopTag()
    order.tags.append(tag)
    fail_with(dual_write, order)
    return order


def loaded_and_closed(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    fail_after(dual_write, lambda tx: load_and_close(tx.session, order))
    return order


def loaded_and_closed_in_a_session_of_the_application(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    fail_after(dual_write, lambda tx: load_and_close(Session(tx.connection), order))
    return order


def load_and_close(opened: Session, order: ShopOrder) -> None:
    """``order`` keeps what the unit has made of it by a statement."""
    with opened as session:
        session.add(order)
        session.execute(update(ShopOrder).values(city="Oslo"))
        assert order.city == "Oslo"


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


def changed(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    order.city = "Oslo"
    fail_with(dual_write, order)
    return order


def changed_in_a_session_that_was_closed(dual_write: DualWrite) -> object:
    order = a_stored_order(dual_write)
    fail_after(dual_write, lambda tx: change_and_close(tx.session, order))
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
    fail_after(dual_write, lambda tx: change_and_close(Session(tx.connection), order))
    return order


def change_and_close(opened: Session, order: ShopOrder) -> None:
    with opened as session:
        session.add(order)
        order.city = "Oslo"


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "write",
    [
        with_an_expression,
        changed_after_a_savepoint,
        with_a_tag,
        with_an_item_that_was_there,
        with_a_line_that_was_there,
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
        given_to_a_customer,
        given_a_stored_item_in_the_unit,
        tagged,
        tagged_in_the_unit,
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
