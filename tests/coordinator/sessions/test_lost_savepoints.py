"""A flush that fails inside a savepoint of the session rolls it back, and with it what was flushed there before. If the
error is caught and the savepoint is not ended, SQLAlchemy's own commit() refuses; a unit of work does, too."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, in_both, run_unit, write_unit

SessionOf = Callable[[Transaction], Session]
LOST = "failed inside a savepoint, and the error was caught, but the savepoint was not ended"


def units_own(tx: Transaction) -> Session:
    return tx.session


def of_the_application(tx: Transaction) -> Session:
    return Session(tx.connection)


def with_a_savepoint_of_its_own(tx: Transaction) -> Session:
    return Session(tx.connection, join_transaction_mode="create_savepoint")


def losing(session_of: SessionOf, end: Callable[[Session], object] = lambda session: None) -> Callable[..., None]:
    """Loses the row of a record, and then calls ``end``."""

    def act(tx: Transaction) -> None:
        session = session_of(tx)
        if session_of is not with_a_savepoint_of_its_own:
            session.begin_nested()
        session.add(EventModel(value="two"))
        session.flush()
        tx.produce("events", value="two")
        session.add(EventModel(value="one"))
        with suppress(IntegrityError):
            session.flush()
        end(session)

    return act


@pytest.mark.slow_cases("mariadb")
@pytest.mark.parametrize("session_of", [units_own, of_the_application, with_a_savepoint_of_its_own])
def test_a_savepoint_that_a_failed_flush_has_lost_leaves_the_unit_on_neither_side(
    make_dual_write: Callable[..., DualWrite], engine: Engine, kafka: FakeKafka, session_of: SessionOf
) -> None:
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    with pytest.raises(InvalidTransactionStateError, match=LOST):
        run_unit(dual_write, losing(session_of))
    assert in_both(engine, kafka, "one")
    write_unit(dual_write, "three")
    assert in_both(engine, kafka, "one", "three")
    assert dual_write.outcomes() == []


@pytest.mark.parametrize("session_of", [units_own, of_the_application])
@pytest.mark.parametrize("end", [Session.close, Session.reset], ids=["closed", "reset"])
def test_a_session_that_is_closed_after_it_has_lost_a_savepoint_leaves_the_unit_on_neither_side(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, session_of: SessionOf, end: Any
) -> None:
    write_unit(dual_write, "one")
    method = end.__name__
    with pytest.raises(InvalidTransactionStateError, match=LOST):
        run_unit(dual_write, losing(session_of, lambda session: getattr(session, method)()))
    assert in_both(sqlite_engine, kafka, "one")


def test_a_savepoint_that_the_application_ends_after_a_failed_flush_is_its_own_affair(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")

    def write_again(session: Session) -> None:
        savepoint = session.get_nested_transaction()
        assert savepoint is not None
        savepoint.rollback()
        session.add(EventModel(value="two"))

    run_unit(dual_write, losing(units_own, write_again))
    assert in_both(sqlite_engine, kafka, "one", "two")
