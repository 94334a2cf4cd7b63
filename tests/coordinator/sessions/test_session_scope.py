"""A scoped_session as ``session_factory``: inside a unit of work it is the unit's session."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, delete, insert, select, update
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.coordinator.unit.uncommitted_writes import has_uncommitted_writes
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, in_both

Make = Callable[..., DualWrite]


@pytest.fixture
def scoped(sqlite_engine: Engine) -> scoped_session[Session]:
    return scoped_session(sessionmaker(sqlite_engine))


@pytest.fixture
def dual_write(make_dual_write: Make, scoped: scoped_session[Session]) -> DualWrite:
    return make_dual_write(session_factory=scoped)


def put(scoped: scoped_session[Session], value: str) -> None:
    """A function of the application's that knows nothing of units of work."""
    scoped.add(EventModel(value=value))


def run_unit(dual_write: DualWrite, act: Callable[[Transaction], object]) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", value="one")
        act(tx)


def test_it_is_the_units_session_inside_and_what_it_was_outside(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    before = scoped()
    with dual_write.transaction() as tx:
        assert scoped() is tx.session
        put(scoped, "one")
        tx.produce("events", value="one")
    assert scoped() is before
    assert in_both(sqlite_engine, kafka, "one")


def test_a_scope_without_a_session_has_none_afterwards(dual_write: DualWrite, scoped: scoped_session[Session]) -> None:
    with dual_write.transaction():
        assert scoped.registry.has()
    assert not scoped.registry.has()


def test_what_it_has_added_is_undone_with_the_unit(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def fail(tx: Transaction) -> None:
        put(scoped, "one")
        raise KafkaUnavailableError("not now")

    with pytest.raises(KafkaUnavailableError):
        run_unit(dual_write, fail)
    assert not scoped.registry.has()
    assert in_both(sqlite_engine, kafka)


def test_a_scope_with_unflushed_changes_is_refused_and_keeps_them(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine
) -> None:
    put(scoped, "before")
    with pytest.raises(InvalidTransactionStateError, match="changes from before this unit of work"):
        dual_write.transaction().__enter__()
    scoped.commit()
    assert stored_values(sqlite_engine) == ["before"]
    with dual_write.transaction() as tx:
        assert scoped() is tx.session
    scoped.remove()


def loaded(scoped: scoped_session[Session], engine: Engine) -> EventModel:
    with engine.begin() as connection:
        connection.execute(insert(events).values(value="there"))
    return scoped.scalars(select(EventModel)).one()


def flush_one(scoped: scoped_session[Session]) -> None:
    put(scoped, "before")
    scoped.flush()


def change_one(scoped: scoped_session[Session]) -> None:
    scoped.scalars(select(EventModel)).one().value = "changed"
    scoped.flush()


def delete_one(scoped: scoped_session[Session]) -> None:
    scoped.delete(scoped.scalars(select(EventModel)).one())
    scoped.flush()


def insert_one(scoped: scoped_session[Session]) -> None:
    scoped.execute(insert(events).values(value="before"))


def update_one(scoped: scoped_session[Session]) -> None:
    scoped.execute(update(events).values(value="before"))


def erase_one(scoped: scoped_session[Session]) -> None:
    scoped.execute(delete(events))


def release(scoped: scoped_session[Session]) -> None:
    scoped.connection().exec_driver_sql("BEGIN")  # a savepoint alone is a transaction to SQLite
    with scoped.begin_nested():
        flush_one(scoped)


def go_on_in_a_savepoint(scoped: scoped_session[Session]) -> None:
    flush_one(scoped)
    scoped.begin_nested()


def insert_by_an_engine_with_options(scoped: scoped_session[Session]) -> None:
    same: Any = scoped.get_bind().engine.execution_options(logging_token="another engine for the same database")
    scoped.execute(insert(events).values(value="before"), bind_arguments={"bind": same})


WRITES = [flush_one, change_one, delete_one, insert_one, update_one, erase_one, release, go_on_in_a_savepoint]


@pytest.mark.parametrize("write", [*WRITES, insert_by_an_engine_with_options])
def test_a_scope_with_rows_that_are_not_committed_is_refused(
    dual_write: DualWrite,
    scoped: scoped_session[Session],
    sqlite_engine: Engine,
    kafka: FakeKafka,
    write: Callable[[scoped_session[Session]], None],
) -> None:
    put(scoped, "first")
    scoped.commit()
    write(scoped)
    with pytest.raises(InvalidTransactionStateError, match="has changes from before this unit of work"):
        run_unit(dual_write, lambda tx: pytest.fail("the unit has begun"))
    scoped.rollback()
    run_unit(dual_write, lambda tx: put(scoped, "one"))
    assert (stored_values(sqlite_engine), kafka.committed) == (["first", "one"], ["one"])


def read(scoped: scoped_session[Session], engine: Engine) -> None:
    scoped.scalars(select(EventModel)).all()


def commit(scoped: scoped_session[Session], engine: Engine) -> None:
    flush_one(scoped)
    scoped.commit()
    read(scoped, engine)


def roll_back(scoped: scoped_session[Session], engine: Engine) -> None:
    flush_one(scoped)
    scoped.rollback()
    read(scoped, engine)


def change_nothing(scoped: scoped_session[Session], engine: Engine) -> None:
    first = scoped.scalars(select(EventModel)).one()
    first.value = str(first.value)
    scoped.flush()


def write_elsewhere(scoped: scoped_session[Session], engine: Engine) -> None:
    other = ready_engine(str(engine.url).replace(".db", "-other.db"))
    scoped.execute(insert(events).values(value="other"), bind_arguments={"bind": other})


@pytest.mark.parametrize("act", [read, commit, roll_back, change_nothing, write_elsewhere])
def test_a_scope_without_uncommitted_rows_of_the_database_is_not_refused(
    dual_write: DualWrite,
    scoped: scoped_session[Session],
    sqlite_engine: Engine,
    kafka: FakeKafka,
    act: Callable[[scoped_session[Session], Engine], None],
) -> None:
    put(scoped, "first")
    scoped.commit()
    act(scoped, sqlite_engine)
    run_unit(dual_write, lambda tx: put(scoped, "one"))
    assert (stored_values(sqlite_engine)[-1], kafka.committed) == ("one", ["one"])
    scoped.remove()


def test_rows_of_a_savepoint_that_was_rolled_back_are_no_uncommitted_writes(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine
) -> None:
    with scoped.begin_nested() as outer:
        erase_one(scoped)
        with scoped.begin_nested():
            flush_one(scoped)
        assert has_uncommitted_writes(scoped(), sqlite_engine)
        outer.rollback()
    assert not has_uncommitted_writes(scoped(), sqlite_engine)
    scoped.remove()


@pytest.mark.parametrize("flushes", [True, False])
def test_objects_from_before_that_are_changed_inside_doom_the_unit(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine, kafka: FakeKafka, flushes: bool
) -> None:
    """They belong to another session: the unit's records would be committed without the change."""
    there, before = loaded(scoped, sqlite_engine), scoped()

    def change(tx: Transaction) -> None:
        there.value = "one"
        if flushes:
            with pytest.raises(InvalidTransactionStateError, match="loaded before this unit of work"):
                before.flush()

    with pytest.raises(InvalidTransactionStateError, match="loaded before this unit of work were changed inside"):
        run_unit(dual_write, change)
    assert (stored_values(sqlite_engine), kafka.committed) == (["there"], [])
    assert scoped() is before
    before.commit()  # outside a unit it is the application's again
    assert stored_values(sqlite_engine) == ["one"]
    scoped.remove()


def test_objects_from_before_can_be_read_inside(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    there = loaded(scoped, sqlite_engine)
    run_unit(dual_write, lambda tx: put(scoped, f"after {there.value}"))
    assert stored_values(sqlite_engine) == ["there", "after there"]
    assert kafka.committed == ["one"]
    scoped.remove()


def test_its_removal_inside_dooms_the_unit(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """The next session of the scope would be no part of the unit."""

    def remove(tx: Transaction) -> None:
        put(scoped, "one")
        scoped.remove()

    with pytest.raises(InvalidTransactionStateError, match="removed or replaced inside a unit of work"):
        run_unit(dual_write, remove)
    assert in_both(sqlite_engine, kafka)


def test_after_a_removal_the_scope_has_its_former_session(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine
) -> None:
    before = scoped()

    def remove(tx: Transaction) -> None:
        scoped.remove()
        scoped.scalars(select(EventModel)).all()

    with pytest.raises(InvalidTransactionStateError, match="removed or replaced"):
        run_unit(dual_write, remove)
    assert scoped() is before
    assert sqlite_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "statement", [insert(EventModel).values(value="one"), update(EventModel).values(value="one"), delete(EventModel)]
)
def test_a_statement_of_the_session_from_before_dooms_the_unit(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine, kafka: FakeKafka, statement: Any
) -> None:
    before = scoped()

    def write(tx: Transaction) -> None:
        with pytest.raises(InvalidTransactionStateError, match="changed inside it"):
            before.execute(statement)

    with pytest.raises(InvalidTransactionStateError, match="changed inside it"):
        run_unit(dual_write, write)
    assert in_both(sqlite_engine, kafka)
    scoped.remove()


@pytest.mark.postgresql
def test_units_of_two_dual_writes_have_the_session_in_turn(make_dual_write: Make, postgresql_url: str) -> None:
    """The outer unit's rows are not committed yet, and the inner one's begin does not refuse them."""
    engine = ready_engine(postgresql_url)
    scoped, orders, payments = scoped_session(sessionmaker(engine)), FakeKafka(), FakeKafka()
    outer = make_dual_write(engine, session_factory=scoped, participant=orders.participant)
    inner = make_dual_write(engine, "payments", session_factory=scoped, participant=payments.participant)
    with outer.transaction() as tx:
        put(scoped, "an order")
        scoped.flush()
        tx.produce("events", value="an order")
        with inner.transaction() as within:
            assert scoped() is within.session
            put(scoped, "a payment")
            within.produce("events", value="a payment")
        assert scoped() is tx.session
        assert stored_values(engine) == payments.committed == ["a payment"]
    assert sorted(stored_values(engine)) == ["a payment", "an order"]
    assert orders.committed == ["an order"]
    engine.dispose()


def test_other_scopes_keep_their_sessions(dual_write: DualWrite, scoped: scoped_session[Session]) -> None:
    seen: list[Session] = []

    def look() -> None:
        seen.append(scoped())
        scoped.remove()

    with dual_write.transaction() as tx:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert seen != [tx.session]
        assert type(seen[0]) is not type(tx.session)


def end_in_another_thread(
    dual_write: DualWrite, before: Callable[[], object], after: Callable[[], object] = lambda: None
) -> None:
    """A unit whose block is never left here: another thread ends it, as the heartbeat does."""

    def abandon(blocks: list[Any]) -> None:
        block = dual_write.transaction()
        block.__enter__()
        blocks.append(block)

    def end(blocks: list[Any]) -> None:
        before()
        blocks.clear()
        manager_of(dual_write).process.pool.beat()
        after()

    blocks: list[Any] = []
    abandon(blocks)
    thread = threading.Thread(target=end, args=[blocks])
    thread.start()
    thread.join()


def test_a_block_that_is_never_left_does_not_keep_the_scope(
    dual_write: DualWrite, scoped: scoped_session[Session], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """The heartbeat has ended it; the scope still has its session, which is over."""

    end_in_another_thread(dual_write, lambda: None)
    assert scoped.registry.has()
    with dual_write.transaction() as tx:
        assert scoped() is tx.session
        put(scoped, "one")
        tx.produce("events", value="one")
    assert not scoped.registry.has()
    assert in_both(sqlite_engine, kafka, "one")


def test_the_thread_that_ends_the_unit_of_another_scope_keeps_its_session(
    dual_write: DualWrite, scoped: scoped_session[Session]
) -> None:
    sessions: list[Session] = []
    pending: list[EventModel] = []

    def use() -> None:
        put(scoped, "its own")
        sessions.append(scoped())

    def look() -> None:
        sessions.append(scoped())
        pending.extend(scoped.new)
        scoped.remove()

    end_in_another_thread(dual_write, use, look)
    assert sessions[0] is sessions[1]
    assert [each.value for each in pending] == ["its own"]


def test_flask_sqlalchemys_session_joins(sqlite_url: str, make_dual_write: Make, kafka: FakeKafka) -> None:
    app, db = Flask(__name__), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = sqlite_url
    db.init_app(app)

    class FlaskEvent(db.Model):  # type: ignore[name-defined, misc]
        __tablename__ = "events"
        id = db.Column(db.Integer, primary_key=True)
        value = db.Column(db.String(100))

    engine = ready_engine(sqlite_url)
    with app.app_context():
        dual_write = make_dual_write(db.engine, session_factory=db.session)

    @app.post("/events/<value>")
    def post(value: str) -> str:
        with dual_write.transaction() as tx:
            db.session.add(FlaskEvent(value=value))
            assert db.session.scalar(db.select(db.func.count()).select_from(FlaskEvent)) == 1
            tx.produce("events", value=value)
        return str(db.session.scalar(db.select(FlaskEvent.value)))

    assert app.test_client().post("/events/one").text == "one"
    assert in_both(engine, kafka, "one")
    with app.app_context():
        db.engine.dispose()
    engine.dispose()


def test_a_unit_that_is_ended_outside_of_its_application_context_lets_go_of_everything(
    sqlite_url: str, make_dual_write: Make, kafka: FakeKafka
) -> None:
    app, db = Flask(__name__), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = sqlite_url
    db.init_app(app)
    engine = ready_engine(sqlite_url)
    with app.app_context():
        dual_write = make_dual_write(db.engine, session_factory=db.session)
        block = dual_write.transaction()
        block.__enter__().produce("events", value="lost")
    del block  # outside of the context the scope is not known any more
    manager_of(dual_write).process.pool.beat()
    assert (dual_write.usage.used, dual_write.counters.rolled_back) == (0, 1)
    with app.app_context():
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            tx.produce("events", value="one")
        db.engine.dispose()
    assert in_both(engine, kafka, "one")
    engine.dispose()
