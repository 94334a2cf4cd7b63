"""ORM sessions in a unit of work: no row is lost whose record is kept."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.exc import IntegrityError, InvalidRequestError, SAWarning
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka

Act = Callable[[Transaction], object]


class SessionsBase(DeclarativeBase):
    pass


class SessionEvent(SessionsBase):
    __table__ = events


@pytest.fixture
def unit(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> Iterator[Callable[..., list[str]]]:
    """Run a unit of work that also produces; what is in the database if both sides are committed."""
    with sqlite_engine.begin() as connection:
        connection.execute(insert(events).values(id=1, value="there"))

    def run_unit(*acts: Act) -> list[str]:
        before = len(kafka.committed)
        with dual_write.transaction() as tx:
            tx.produce("events", value="one")
            for act in acts:
                act(tx)
        assert kafka.committed[before:] == ["one"]
        return stored_values(sqlite_engine)

    yield run_unit
    assert dual_write.outcomes() == []


def in_neither(engine: Engine, kafka: FakeKafka) -> bool:
    return (stored_values(engine), kafka.committed, kafka.ongoing) == (["there"], [], None)


def fail_in(block: Any, session: Session | None = None) -> None:
    with block as entered:
        (session or entered).add(SessionEvent(value="of a block that fails"))
        raise ValueError("no")


def in_a_block(tx: Transaction) -> None:
    with tx.session as session:
        session.add(SessionEvent(value="one"))


def closed(tx: Transaction) -> None:
    tx.session.add(SessionEvent(value="one"))
    tx.session.close()


def reset(tx: Transaction) -> None:
    tx.session.add(SessionEvent(value="one"))
    tx.session.reset()


def closed_and_used_again(tx: Transaction) -> None:
    tx.session.close()
    tx.session.add(SessionEvent(value="one"))


@pytest.mark.parametrize("act", [in_a_block, closed, reset, closed_and_used_again])
def test_pending_objects_are_flushed_when_the_units_session_is_closed(unit: Callable[..., list[str]], act: Act) -> None:
    assert unit(act) == ["there", "one"]


def test_an_error_out_of_the_sessions_block_dooms_the_unit_though_it_is_caught(
    unit: Callable[..., list[str]], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def fail(tx: Transaction) -> None:
        with pytest.raises(ValueError, match="no"):
            fail_in(tx.session)

    with pytest.raises(InvalidTransactionStateError, match=r"session raised ValueError\('no'\)"):
        unit(fail)
    assert in_neither(sqlite_engine, kafka)


def test_a_flush_that_fails_as_the_session_is_closed_dooms_the_unit(
    unit: Callable[..., list[str]], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def fail(tx: Transaction) -> None:
        tx.session.add(SessionEvent(value="there"))
        with pytest.raises(IntegrityError):
            tx.session.close()

    with pytest.raises(InvalidTransactionStateError):
        unit(fail)
    assert in_neither(sqlite_engine, kafka)


def own(tx: Transaction) -> Session:
    return Session(tx.connection)


def own_of_a_sessionmaker(tx: Transaction) -> Session:
    return sessionmaker(tx.connection)()


def own_of_a_scope(tx: Transaction) -> Any:
    return scoped_session(sessionmaker(tx.connection))


def own_by_binds(tx: Transaction) -> Session:
    return Session(binds={SessionEvent: tx.connection})


def own_by_get_bind(tx: Transaction) -> Session:
    class Routing(Session):
        def get_bind(self, *_: Any, **__: Any) -> Any:
            return tx.connection

    return Routing()


MADE = [own, own_of_a_sessionmaker, own_of_a_scope, own_by_binds, own_by_get_bind]


@pytest.mark.parametrize("made", MADE)
def test_an_applications_own_session_is_flushed_at_the_blocks_end(
    unit: Callable[..., list[str]], made: Callable[[Transaction], Any]
) -> None:
    """Even if nothing holds it any more: the object that is pending does not."""
    assert unit(lambda tx: made(tx).add(SessionEvent(value="one"))) == ["there", "one"]


@pytest.mark.parametrize("made", MADE)
def test_changes_and_deletions_of_an_applications_own_session_are_flushed(
    unit: Callable[..., list[str]], made: Callable[[Transaction], Any], sqlite_engine: Engine
) -> None:
    with sqlite_engine.begin() as connection:
        connection.execute(insert(events).values(id=2, value="old"))

    def change(tx: Transaction) -> None:
        session = made(tx)
        session.scalars(select(SessionEvent).where(SessionEvent.__table__.c.id == 2)).one().value = "new"
        session.delete(session.get(SessionEvent, 1))

    assert unit(change) == ["new"]


@pytest.mark.parametrize("made", MADE)
def test_an_applications_own_session_that_is_closed_is_flushed_before(
    unit: Callable[..., list[str]], made: Callable[[Transaction], Any]
) -> None:
    def close(tx: Transaction) -> None:
        session = made(tx)
        session.add(SessionEvent(value="one"))
        session.remove() if isinstance(session, scoped_session) else session.close()

    assert unit(close) == ["there", "one"]


def test_a_session_that_commits_by_itself_goes_on_as_before(unit: Callable[..., list[str]]) -> None:
    def commit(tx: Transaction) -> None:
        with Session(tx.connection) as session:
            session.add(SessionEvent(value="one"))
            session.commit()
        with Session(tx.connection) as session, session.begin():
            session.add(SessionEvent(value="two"))

    assert unit(commit) == ["there", "one", "two"]


def test_a_session_that_is_closed_by_an_error_with_something_pending_dooms_the_unit(
    unit: Callable[..., list[str]], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def fail(tx: Transaction) -> None:
        with pytest.raises(ValueError, match="no"):
            fail_in(Session(tx.connection))

    with pytest.raises(InvalidTransactionStateError, match="objects that were never flushed"):
        unit(fail)
    assert in_neither(sqlite_engine, kafka)


def test_a_session_that_is_closed_in_a_savepoint_with_something_pending_dooms_the_unit(
    unit: Callable[..., list[str]], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def lose(tx: Transaction) -> None:
        with tx.connection.begin_nested(), Session(tx.connection) as session:
            session.add(SessionEvent(value="one"))

    with pytest.raises(InvalidTransactionStateError, match="closed inside a savepoint"):
        unit(lose)
    assert in_neither(sqlite_engine, kafka)


def test_expunged_and_rolled_back_objects_are_not_flushed(unit: Callable[..., list[str]]) -> None:
    def discard(tx: Transaction) -> None:
        session = Session(tx.connection)
        expunged = SessionEvent(value="expunged")
        session.add(expunged)
        session.expunge(expunged)
        with pytest.raises(ValueError, match="no"):
            fail_in(session.begin_nested(), session)
        session.add(SessionEvent(value="one"))
        session.close()

    assert unit(discard) == ["there", "one"]


def test_objects_added_during_a_flush_are_flushed_too(unit: Callable[..., list[str]]) -> None:
    def audit(tx: Transaction) -> None:
        session = Session(tx.connection)

        @event.listens_for(session, "after_flush_postexec")
        def note(*_: Any) -> None:
            if not session.info.get("noted"):
                session.info["noted"] = True
                session.add(SessionEvent(value="noted"))

        session.add(SessionEvent(value="one"))

    assert unit(audit) == ["there", "one", "noted"]


def test_a_session_that_a_flush_makes_is_flushed(unit: Callable[..., list[str]]) -> None:
    def audit(tx: Transaction) -> None:
        @event.listens_for(tx.session, "after_flush", once=True)
        def note(session: Session, _: Any) -> None:
            Session(session.connection()).add(SessionEvent(value="noted"))

        tx.session.add(SessionEvent(value="one"))

    assert unit(audit) == ["there", "one", "noted"]


def test_a_listener_that_fails_as_the_session_ends_keeps_no_connection(
    dual_write: DualWrite, sqlite_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise InvalidRequestError("a listener's own error")

    one = SessionEvent(value="one")  # held: the session holds it weakly
    with dual_write.transaction() as tx:
        event.listen(tx.session, "persistent_to_detached", fail)
        tx.session.add(one)
    assert "releasing the connection failed" in caplog.text
    assert sqlite_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert stored_values(sqlite_engine) == ["one"]


def test_a_session_of_an_error_handler_is_flushed(unit: Callable[..., list[str]]) -> None:
    def handle(tx: Transaction) -> None:
        try:
            raise ValueError("handled")
        except ValueError:
            with Session(tx.connection) as session:
                session.add(SessionEvent(value="one"))

    assert unit(handle) == ["there", "one"]


def test_a_session_outlives_its_unit_unchanged(unit: Callable[..., list[str]], sqlite_engine: Engine) -> None:
    sessions: list[Session] = []

    def keep(tx: Transaction) -> None:
        sessions.append(own(tx))
        sessions[0].add(SessionEvent(value="one"))

    unit(keep)
    assert not {"close", "reset", "invalidate"} & set(vars(sessions[0]))
    listened = ("before_flush", "pending_to_persistent", "persistent_to_detached", "after_rollback")
    assert not any(list(getattr(sessions[0].dispatch, name)) for name in listened)
    sessions[0].close()


class TenantSession(Session):
    def get_bind(self, *_: Any, **__: Any) -> Any:
        raise LookupError("no such tenant")


def test_a_session_that_finds_no_bind_says_so_in_its_own_flush(unit: Callable[..., list[str]]) -> None:
    def add(tx: Transaction) -> None:
        session = TenantSession(tx.connection)
        session.add(SessionEvent(value="of no tenant"))
        with pytest.raises(LookupError, match="no such tenant"):
            session.flush()
        session.expunge_all()

    assert unit(add) == ["there"]


def test_sessions_of_other_threads_do_not_affect_the_unit(
    unit: Callable[..., list[str]], sqlite_engine: Engine
) -> None:
    """Made in other threads all the time, and full of what is never flushed."""
    stop = threading.Event()

    def other() -> None:
        while not stop.is_set():
            for _ in range(10):
                Session(sqlite_engine).add(SessionEvent(value="elsewhere"))

    threads = [threading.Thread(target=other) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        found = unit(lambda tx: own(tx).add(SessionEvent(value="one")))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert found == ["there", "one"]


def run_async(place: AsyncPlace, act: Callable[[AsyncTransaction], Any]) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write, dual_write.transaction() as tx:
            await tx.produce("events", "one")
            await act(tx)

    run(main())


async def in_an_async_block(tx: AsyncTransaction) -> None:
    async with tx.session as session:
        session.add(SessionEvent(value="one"))


async def async_closed(tx: AsyncTransaction) -> None:
    tx.session.add(SessionEvent(value="one"))
    await tx.session.close()


async def async_own(tx: AsyncTransaction) -> None:
    AsyncSession(tx.connection).add(SessionEvent(value="one"))


async def async_own_closed(tx: AsyncTransaction) -> None:
    async with AsyncSession(tx.connection) as session:
        session.add(SessionEvent(value="one"))


@pytest.mark.parametrize("act", [in_an_async_block, async_closed, async_own, async_own_closed])
def test_async_sessions_are_flushed(sqlite_place: AsyncPlace, act: Callable[[AsyncTransaction], Any]) -> None:
    run_async(sqlite_place, act)
    assert sqlite_place.in_both("one")


def test_an_error_out_of_the_async_sessions_block_dooms_the_unit_though_it_is_caught(sqlite_place: AsyncPlace) -> None:
    async def fail_inside(tx: AsyncTransaction) -> None:
        async with tx.session as session:
            session.add(SessionEvent(value="one"))
            raise ValueError("no")

    async def fail(tx: AsyncTransaction) -> None:
        with pytest.raises(ValueError, match="no"):
            await fail_inside(tx)

    with pytest.raises(InvalidTransactionStateError, match=r"session raised ValueError\('no'\)"):
        run_async(sqlite_place, fail)
    assert sqlite_place.in_both()


@pytest.mark.parametrize("made", ["unit", "rollback_only"])
def test_a_flush_that_failed_after_its_savepoint_has_ended_dooms_the_unit_though_it_is_caught(
    unit: Callable[..., list[str]], sqlite_engine: Engine, kafka: FakeKafka, made: str
) -> None:
    """The session has joined the savepoint, so its own rollback rolls nothing back."""

    def fail(tx: Transaction) -> None:
        session = tx.session if made == "unit" else Session(tx.connection, join_transaction_mode="rollback_only")
        with tx.connection.begin_nested():
            session.add(SessionEvent(value="one"))
            session.flush()
        session.add(SessionEvent(value="there"))
        with pytest.raises(IntegrityError), pytest.warns(SAWarning, match="already deassociated"):
            session.flush()

    with pytest.raises(InvalidTransactionStateError, match="was rolled back, perhaps by a flush that failed"):
        unit(fail)
    assert in_neither(sqlite_engine, kafka)


def test_a_savepoint_of_a_session_can_be_rolled_back_alone(unit: Callable[..., list[str]]) -> None:
    def try_out(tx: Transaction) -> None:
        tx.session.add(SessionEvent(value="one"))
        with pytest.raises(IntegrityError), tx.session.begin_nested():
            tx.session.add(SessionEvent(value="there"))
        own_session = own(tx)
        own_session.add(SessionEvent(value="there"))
        with pytest.raises(IntegrityError), tx.connection.begin_nested():
            own_session.flush()
        own_session.rollback()
        with own(tx) as joined:
            joined.add(SessionEvent(value="two"))
            with pytest.raises(IntegrityError), joined.begin_nested():
                joined.add(SessionEvent(value="there"))

    assert unit(try_out) == ["there", "one", "two"]


def test_the_units_session_writes_no_other_database(
    unit: Callable[..., list[str]], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    other = create_engine("sqlite://")

    def write_elsewhere(tx: Transaction) -> None:
        tx.session.execute(insert(events).values(value="one"), bind_arguments={"bind": other})

    with pytest.raises(InvalidTransactionStateError, match="writes through the engine of its DualWrite alone"):
        unit(write_elsewhere)
    assert in_neither(sqlite_engine, kafka)


def test_the_engine_of_the_dual_write_stands_for_the_units_connection(
    unit: Callable[..., list[str]], sqlite_engine: Engine
) -> None:
    def write(tx: Transaction) -> None:
        tx.session.execute(insert(events).values(value="one"), bind_arguments={"bind": sqlite_engine})

    assert unit(write) == ["there", "one"]


def test_a_commit_after_the_block_is_told_that_the_unit_is_over(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        session = tx.session
        with pytest.raises(InvalidTransactionStateError, match="is refused inside a unit of work"):
            session.commit()
    with pytest.raises(InvalidTransactionStateError, match="its unit of work is over"):
        session.commit()
