"""A database that is down, or that loses a unit's connection: the error is the library's, and says whether to run the
unit again."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import (
    ConfigurationError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    InDoubtError,
    InvalidTransactionStateError,
)
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, run_unit, write, write_unit, writing
from tests.support.servers.sessions import kill_session, session_of

Make = Callable[..., DualWrite]


@pytest.fixture
def other(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


def killing(other: Engine) -> Callable[[Transaction], None]:
    """Let the server end the session of the unit."""
    return lambda tx: kill_session(other, session_of(tx.connection.connection.dbapi_connection))


def kill_pooled(engine: Engine, other: Engine) -> None:
    """Let the server end the session of the connection in the pool of ``engine``, as after a restart of the server."""
    with engine.connect() as connection:
        pooled = connection.connection.dbapi_connection
    kill_session(other, session_of(pooled))


def insert_two(tx: Transaction) -> None:
    tx.execute(insert(events).values(value="two"))


def require_retriable(error: DatabaseUnavailableError | DatabaseBusyError) -> None:
    """What a web service looks at."""
    assert error.retriable
    assert isinstance(error.__cause__, DBAPIError | PoolTimeoutError)
    assert "\n" not in str(error)


def in_neither(other: Engine, kafka: FakeKafka) -> bool:
    return stored_values(other) == kafka.committed == [] and kafka.ongoing is None


def test_a_connection_that_is_lost_in_the_block_is_the_librarys_error(
    make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(engine)
    with pytest.raises(DatabaseUnavailableError, match="lost") as caught:
        run_unit(dual_write, writing("one"), killing(other), insert_two)
    require_retriable(caught.value)
    assert in_neither(other, kafka)
    write_unit(dual_write, "three")
    assert stored_values(other) == kafka.committed == ["three"]


def test_a_connection_that_is_lost_before_the_state_is_stored_is_the_librarys_error(
    make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(engine)
    with pytest.raises(DatabaseUnavailableError, match="lost") as caught:
        run_unit(dual_write, writing("one"), killing(other))
    require_retriable(caught.value)
    assert in_neither(other, kafka)


def test_a_lost_connection_whose_error_is_caught_is_the_librarys_error(
    make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka
) -> None:
    def insert_in_vain(tx: Transaction) -> None:
        with pytest.raises(DBAPIError):
            insert_two(tx)

    dual_write = make_dual_write(engine)
    with pytest.raises(DatabaseUnavailableError, match="caught"):
        run_unit(dual_write, writing("one"), killing(other), insert_in_vain)
    assert in_neither(other, kafka)


def going_down(other: Engine, engine: Engine) -> Callable[[Transaction], None]:
    """Let the server end the session of the unit, and refuse all later ones of ``engine``."""

    def refuse(*_: object) -> None:
        raise engine.dialect.loaded_dbapi.OperationalError("Connection refused")

    def go_down(tx: Transaction) -> None:
        killing(other)(tx)
        event.listen(engine, "do_connect", refuse)

    return go_down


def add_to(session: Session) -> None:
    session.add(EventModel(value="two"))


def flush(tx: Transaction) -> None:
    add_to(tx.session)
    tx.session.flush()


def flush_twice(tx: Transaction) -> None:
    with pytest.raises(DBAPIError):
        flush(tx)
    flush(tx)


def insert_twice(tx: Transaction) -> None:
    with pytest.raises(DBAPIError):
        insert_two(tx)
    insert_two(tx)


def own_session(tx: Transaction) -> None:
    add_to(Session(tx.connection))


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "use", [lambda tx: add_to(tx.session), flush, flush_twice, own_session, insert_twice], ids=lambda use: use.__name__
)
@pytest.mark.parametrize("writes", [[writing("one")], []], ids=["with records", "without"])
def test_a_database_that_goes_down_in_the_block_is_the_librarys_error(
    make_dual_write: Make,
    engine: Engine,
    other: Engine,
    kafka: FakeKafka,
    writes: list[Callable[[Transaction], None]],
    use: Callable[[Transaction], None],
) -> None:
    dual_write = make_dual_write(engine)
    with pytest.raises(DatabaseUnavailableError, match="was lost") as caught:
        run_unit(dual_write, *writes, going_down(other, engine), use)
    assert caught.value.retriable
    assert in_neither(other, kafka)


def test_after_a_lost_connection_the_block_writes_nothing_on_another_one(
    make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka
) -> None:
    def go_on(tx: Transaction) -> None:
        with pytest.raises(DBAPIError):
            flush(tx)
        for call in (tx.session.rollback, lambda: insert_two(tx), tx.connection.rollback, tx.connection.commit):
            with suppress(SQLAlchemyError, InvalidTransactionStateError):
                call()

    dual_write = make_dual_write(engine)
    with pytest.raises(DatabaseUnavailableError, match="was lost"):
        run_unit(dual_write, writing("one"), killing(other), go_on)
    assert in_neither(other, kafka)
    write_unit(dual_write, "three")
    assert stored_values(other) == kafka.committed == ["three"]


def test_the_users_own_exception_passes_even_if_the_connection_is_lost(
    make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka
) -> None:
    def insert_or_raise(tx: Transaction) -> None:
        try:
            insert_two(tx)
        except DBAPIError as error:
            raise ValueError("the user's") from error

    dual_write = make_dual_write(engine)
    with pytest.raises(ValueError, match="the user's"):
        run_unit(dual_write, writing("one"), killing(other), insert_or_raise)
    assert in_neither(other, kafka)


def test_a_lost_connection_of_the_users_own_is_the_users(make_dual_write: Make, engine: Engine, other: Engine) -> None:
    def lose_mine(tx: Transaction) -> None:
        with mine.connect() as connection:
            kill_session(other, session_of(connection.connection.dbapi_connection))
            connection.execute(text("SELECT 1"))

    dual_write = make_dual_write(engine)
    mine = create_engine(other.url)
    with pytest.raises(DBAPIError) as caught:
        run_unit(dual_write, writing("one"), lose_mine)
    assert caught.value.connection_invalidated
    mine.dispose()


def test_a_constraint_that_is_violated_is_the_users(make_dual_write: Make, engine: Engine, other: Engine) -> None:
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    with pytest.raises(IntegrityError):
        write_unit(dual_write, "one")
    assert stored_values(other) == ["one"]


def require_error_of_closed_connection(make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka) -> None:
    """As after a restart of the server, without pool_pre_ping."""
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    kill_pooled(engine, other)
    with pytest.raises(DatabaseUnavailableError) as caught:
        write_unit(dual_write, "two")
    require_retriable(caught.value)
    write_unit(dual_write, "three")
    assert stored_values(other) == kafka.committed == ["one", "three"]


def test_a_pooled_connection_that_the_server_has_closed_is_the_librarys_error(
    make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka
) -> None:
    require_error_of_closed_connection(make_dual_write, engine, other, kafka)


@pytest.mark.postgresql
def test_a_pooled_connection_of_psycopg2_that_the_server_has_closed_is_the_librarys_error(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka
) -> None:
    """A statement on it may not be tried again: SQLAlchemy would only say that the transaction must be rolled back."""
    pytest.importorskip("psycopg2")
    other = ready_engine(postgresql_url)
    engine = create_engine(make_url(postgresql_url).set(drivername="postgresql+psycopg2"))
    require_error_of_closed_connection(make_dual_write, engine, other, kafka)
    for each in (engine, other):
        each.dispose()


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "ask",
    [
        lambda dual_write: dual_write.seek_to_stored(FakeConsumer(FakeGroup())),
        lambda dual_write: dual_write.outcomes(),
        lambda dual_write: dual_write.acknowledge(1, by="Ada"),
        lambda dual_write: dual_write.recover(),
    ],
    ids=["seek_to_stored", "outcomes", "acknowledge", "recover"],
)
def test_every_question_that_meets_a_lost_connection_gets_the_librarys_error(
    make_dual_write: Make, engine: Engine, other: Engine, ask: Callable[[DualWrite], object]
) -> None:
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    kill_pooled(engine, other)
    with pytest.raises(DatabaseUnavailableError) as caught:
        ask(dual_write)
    require_retriable(caught.value)


def test_a_decorated_function_runs_again_on_a_new_connection(
    make_dual_write: Make, engine: Engine, other: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(engine)
    attempts: list[int] = []

    @dual_write.transactional(retries=1)
    def unit(tx: Transaction) -> None:
        write(tx, "one")
        attempts.append(len(attempts))
        if len(attempts) == 1:
            killing(other)(tx)
            tx.execute(text("SELECT 1"))

    unit()
    assert attempts == [0, 1]
    assert stored_values(other) == kafka.committed == ["one"]


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_unit_without_records_whose_commit_loses_its_connection_is_in_doubt(
    make_dual_write: Make, engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """Nobody can say whether the server has carried it out, so it must not be run again."""
    dual_write = make_dual_write(engine)
    dual_write.recover()
    plain = engine.dialect.do_commit

    def commit_and_kill(connection: Any) -> None:
        if has_ended:
            plain(connection)
        kill_session(other, session_of(connection.dbapi_connection))
        connection.dbapi_connection.cursor().execute("SELECT 1")

    def break_commit(tx: Transaction) -> None:
        monkeypatch.setattr(engine.dialect, "do_commit", commit_and_kill)

    with pytest.raises(InDoubtError, match="may be in the database or not") as caught:
        run_unit(dual_write, insert_two, break_commit)
    monkeypatch.undo()
    assert not caught.value.retriable
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert stored_values(other) == (["two"] if has_ended else [])


def test_a_pool_without_a_free_connection_is_the_librarys_error(
    make_dual_write: Make, database_url: str, other: Engine, kafka: FakeKafka
) -> None:
    ready_engine(database_url).dispose()
    engine = create_engine(database_url, pool_size=2, max_overflow=0, pool_timeout=0.05)
    dual_write = make_dual_write(engine)
    dual_write.recover()
    with engine.connect(), engine.connect():
        with pytest.raises(DatabaseUnavailableError, match="pool_size") as caught:
            write_unit(dual_write, "one")
        require_retriable(caught.value)
    write_unit(dual_write, "two")
    assert stored_values(other) == kafka.committed == ["two"]
    dual_write.close()
    engine.dispose()


def make_read_only(engine: Engine) -> None:
    """The connections of ``engine`` are to a standby, which would refuse writes in the same way."""
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
            if engine.dialect.name == "postgresql"
            else "SET SESSION TRANSACTION READ ONLY"
        )
        connection.commit()


def produce_two(tx: Transaction) -> None:
    tx.produce("events", value="two")


@pytest.mark.parametrize(
    ("act", "error"), [(produce_two, DatabaseUnavailableError), (insert_two, DBAPIError)], ids=["state", "own"]
)
def test_a_server_that_accepts_no_writes_is_left_for_another(
    make_dual_write: Make,
    database_url: str,
    kafka: FakeKafka,
    act: Callable[[Transaction], None],
    error: type[Exception],
) -> None:
    """After a failover the pool may have connections to a server that is a standby now."""
    engine = ready_engine(database_url, pool_size=1)
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    make_read_only(engine)
    with pytest.raises(error) as raised:
        run_unit(dual_write, act)
    if isinstance(raised.value, DatabaseUnavailableError):
        require_retriable(raised.value)
        assert "accepts no writes" in str(raised.value)
        assert str(raised.value).endswith(
            "unless a setting of the session, the engine or the block makes the transaction read-only"
        )
    write_unit(dual_write, "two")
    assert stored_values(engine) == kafka.committed == ["one", "two"]
    engine.dispose()


def test_a_standby_is_unavailable_from_the_start(make_dual_write: Make, database_url: str) -> None:
    ready_engine(database_url).dispose()
    standby = create_engine(database_url)

    def connected(driver: Any, _: object) -> None:
        with driver.cursor() as cursor:
            level = "CHARACTERISTICS AS " if standby.dialect.name == "postgresql" else ""
            cursor.execute(f"SET SESSION {level}TRANSACTION READ ONLY")
        driver.commit()

    event.listen(standby, "connect", connected)
    with pytest.raises(DatabaseUnavailableError, match="accepts no writes") as raised:
        write_unit(make_dual_write(standby), "one")
    require_retriable(raised.value)
    standby.dispose()


@pytest.fixture
def refusing(database_url: str) -> Iterator[Engine]:
    """An engine of a server that is down: nobody listens on its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = create_engine(make_url(database_url).set(host="127.0.0.1", port=port, query={}))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("call", [lambda it: write_unit(it, "one"), DualWrite.recover, DualWrite.outcomes])
def test_a_server_that_is_down_is_the_librarys_error(
    make_dual_write: Make, refusing: Engine, call: Callable[[DualWrite], object]
) -> None:
    dual_write = make_dual_write(refusing)
    with pytest.raises(DatabaseUnavailableError, match="no connection to") as caught:
        call(dual_write)
    require_retriable(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_a_database_that_does_not_exist_is_a_wrong_setting(make_dual_write: Make, database_url: str) -> None:
    engine = create_engine(make_url(database_url).set(database="never_made"))
    with pytest.raises(ConfigurationError, match="never_made") as caught:
        write_unit(make_dual_write(engine), "one")
    assert not caught.value.retriable
    engine.dispose()


@pytest.mark.postgresql
def test_a_serialization_failure_at_the_commit_is_the_librarys_error(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(postgresql_url, isolation_level="SERIALIZABLE")
    other = create_engine(postgresql_url, isolation_level="SERIALIZABLE")
    dual_write = make_dual_write(engine)
    count = text("SELECT count(*) FROM events")

    def conflict(tx: Transaction) -> None:
        with other.begin() as connection:
            connection.execute(count)
            connection.execute(insert(events).values(value="other's"))

    with pytest.raises(DatabaseBusyError, match="conflicted") as caught:
        run_unit(dual_write, lambda tx: tx.execute(count), writing("one"), conflict)
    require_retriable(caught.value)
    assert kafka.committed == []
    engine.dispose()
    other.dispose()


def test_misuse_is_not_mistaken_for_a_lost_connection(make_dual_write: Make, engine: Engine) -> None:
    dual_write = make_dual_write(engine)
    with pytest.raises(InvalidTransactionStateError):
        run_unit(dual_write, writing("one"), lambda tx: tx.connection.rollback())
