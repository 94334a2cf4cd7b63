"""Units of work on database servers: isolation levels, savepoints, connections that die around COMMIT."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, insert, inspect, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.engine import connecting
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.sql.unit_bounds import begin_unit
from dualwrite.errors import DatabaseUnavailableError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState, ProducerIdentity, TopicPartition
from tests.support.coordinator.event_table import TakingStore, events, is_closed, ready_engine, slot_rows, stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import write, write_unit
from tests.support.servers.sessions import kill_session, session_of

Make = Callable[..., DualWrite]
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def in_both(engine: Engine, kafka: FakeKafka, *values: str) -> bool:
    return stored_values(engine) == kafka.committed == list(values) and kafka.ongoing is None


def renew_leases(engine: Engine) -> int:
    """What another connection does to the rows of leases that nobody has locked; how many it has changed."""
    with engine.begin() as connection:
        free = connection.scalars(select(table.c.transactional_id).with_for_update(skip_locked=True)).all()
        for name in free:
            connection.execute(update(table).where(table.c.transactional_id == name).values(owner="renewed"))
        return len(free)


def test_a_unit_of_work_is_in_both(make_dual_write: Make, engine: Engine, kafka: FakeKafka) -> None:
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    write_unit(dual_write, "two")
    assert in_both(engine, kafka, "one", "two")


@pytest.mark.slow_cases
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_dies_around_commit_settles_the_unit_by_the_row(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dual_write = make_dual_write(engine)
    dual_write.recover()
    plain = engine.dialect.do_commit

    def kill_and_commit(connection: Any) -> None:
        monkeypatch.setattr(engine.dialect, "do_commit", plain)
        if when == "after":
            plain(connection)
        kill_session(engine, session_of(connection.dbapi_connection))
        cursor = connection.dbapi_connection.cursor()
        try:
            cursor.execute("SELECT 1")
        finally:
            cursor.close()

    monkeypatch.setattr(engine.dialect, "do_commit", kill_and_commit)
    if when == "after":
        write_unit(dual_write, "one")
        assert in_both(engine, kafka, "one")
    else:
        with pytest.raises(DatabaseUnavailableError):
            write_unit(dual_write, "one")
        assert in_both(engine, kafka)
    write_unit(dual_write, "two")
    assert stored_values(engine)[-1] == "two"


@pytest.mark.slow_cases
@pytest.mark.parametrize("level", LEVELS)
def test_the_users_isolation_level_holds_inside_a_unit(
    make_dual_write: Make, database_url: str, kafka: FakeKafka, level: Any
) -> None:
    engine, other = ready_engine(database_url, isolation_level=level), create_engine(database_url)
    with make_dual_write(engine) as dual_write, dual_write.transaction() as tx:
        assert tx.connection.get_isolation_level() == level
        seen = [tx.scalars(select(events.c.value)).all()]
        if level != "SERIALIZABLE" or engine.dialect.name == "postgresql":  # where reading does not lock
            with other.begin() as connection:
                connection.execute(insert(events).values(value="other's"))
        seen.append(tx.scalars(select(events.c.value)).all())
        tx.produce("events", value="one")
    assert seen == [[], ["other's"] if level == "READ COMMITTED" else []]
    assert kafka.committed == ["one"]
    engine.dispose()
    other.dispose()


@pytest.mark.slow_cases
@pytest.mark.parametrize("level", LEVELS)
def test_a_lease_that_is_renewed_during_a_unit_does_not_fail_it(
    make_dual_write: Make, database_url: str, kafka: FakeKafka, level: Any
) -> None:
    """Where a snapshot would forbid to write a row that has changed since, the row is locked before that."""
    engine = ready_engine(database_url, isolation_level=level)
    with make_dual_write(engine) as dual_write:
        with dual_write.transaction() as tx:
            tx.execute(select(events)).all()
            renewed = renew_leases(engine)
            write(tx, "one")
        assert renewed == (0 if engine.dialect.name == "postgresql" and level != "READ COMMITTED" else 1)
        assert in_both(engine, kafka, "one")
    engine.dispose()


@pytest.mark.postgresql
def test_units_with_rows_of_their_own_do_not_fail_each_other_at_serializable(postgresql_url: str) -> None:
    """A scan of the small table, which PostgreSQL prefers once it knows its size, would have read all rows."""
    engine = ready_engine(postgresql_url, isolation_level="SERIALIZABLE")
    store = TakingStore(engine)
    leases = [store.take_over(f"orders-{slot}", "me") for slot in range(2)]
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(
            text("VACUUM ANALYZE kafka_transaction_state")
        )
    with engine.connect() as one, engine.connect() as two:
        pairs = list(zip((one, two), leases, strict=True))
        for connection, lease in pairs:
            connection.begin()
            begin_unit(connection, lease)
            assert connection.scalar(text("SHOW enable_seqscan")) == "on", "the user's statements are planned as ever"
        for epoch, (connection, lease) in enumerate(pairs):
            store.store(connection, lease, PreparedTxnState(ProducerIdentity(1, epoch)))
        for connection, _ in pairs:
            connection.commit()
    engine.dispose()


@pytest.mark.mariadb
def test_a_lease_renewal_does_not_fail_a_unit_under_mariadbs_snapshot_isolation(
    make_dual_write: Make, mariadb_url: str, kafka: FakeKafka
) -> None:
    options = {"connect_args": {"init_command": "SET innodb_snapshot_isolation = ON"}}
    engine = ready_engine(mariadb_url, **options)
    with make_dual_write(engine) as dual_write:
        with dual_write.transaction() as tx:
            tx.execute(select(events)).all()
            assert renew_leases(engine) == 0
            write(tx, "one")
        assert in_both(engine, kafka, "one")
    engine.dispose()


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 10}], ids=str)
def test_a_block_may_read_large_results_by_its_connection(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka, options: dict[str, Any]
) -> None:
    dual_write, consumer, partition = make_dual_write(engine), FakeConsumer(FakeGroup()), TopicPartition("in", 0)
    dual_write.seek_to_stored(consumer, positions(partition))
    consumer.poll(partition, 1)
    with dual_write.transaction() as tx:
        write(tx, "one")
        reading = tx.connection.execution_options(**options)  # the same connection, with the options from now on
        assert reading.scalars(select(events.c.value)).all() == ["one"]
        tx.store_offsets(consumer)
    assert stored_values(engine) == kafka.committed == ["one"]


def test_savepoints_work_inside_a_unit(make_dual_write: Make, engine: Engine, kafka: FakeKafka) -> None:
    dual_write = make_dual_write(engine)
    with dual_write.transaction() as tx:
        write(tx, "one")
        with pytest.raises(IntegrityError), tx.connection.begin_nested():
            tx.execute(insert(events).values(value="one"))
        with tx.connection.begin_nested():
            write(tx, "two")
        tx.connection.begin_nested().rollback()
        tx.connection.begin_nested()  # left open: released with the unit
        write(tx, "three")
    assert in_both(engine, kafka, "one", "two", "three")


def test_a_connection_of_a_unit_in_which_the_engine_is_disposed_of_is_closed_in_the_end(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(engine=engine)
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="one"))
        tx.produce("events", "one")
        driver = tx.connection.connection.driver_connection
        engine.dispose()
    assert is_closed(driver, engine)
    assert (stored_values(engine), kafka.committed) == (["one"], ["one"])


def test_a_close_in_a_process_that_starts_no_more_threads_gives_the_slots_back(
    make_dual_write: Make, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a handler of atexit from Python 3.12 on."""

    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    engine = ready_engine(database_url, poolclass=NullPool)
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    with monkeypatch.context() as patch:
        patch.setattr(connecting, "start_thread", refuse)
        dual_write.close()
    assert slot_rows(engine)["orders-0"].owner == ""


def test_an_error_that_leaves_the_block_rolls_both_back(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    with pytest.raises(IntegrityError):
        write_unit(dual_write, "one")
    write_unit(dual_write, "two")
    assert in_both(engine, kafka, "one", "two")


@pytest.mark.mariadb
@pytest.mark.parametrize("produces", [False, True])
def test_a_statement_that_commits_by_itself_is_refused_on_mariadb(
    make_dual_write: Make, mariadb_engine: Engine, kafka: FakeKafka, produces: bool
) -> None:
    dual_write = make_dual_write(mariadb_engine)

    def run() -> None:
        with dual_write.transaction() as tx:
            if produces:
                tx.produce("events", value="one")
            tx.execute(text("CREATE TABLE other (id INTEGER)"))
            tx.execute(insert(events).values(value="one"))

    with pytest.raises(InvalidTransactionStateError, match="CREATE TABLE other"):
        run()
    assert in_both(mariadb_engine, kafka)
    assert not inspect(mariadb_engine).has_table("other")
    assert (dual_write.counters.rolled_back, dual_write.outcomes()) == (1, [])


@contextmanager
def a_rival(engine: Engine) -> Iterator[Callable[[Connection], None]]:
    """Makes a connection the victim of a deadlock: the rival has written more."""
    with engine.connect() as rival, ThreadPoolExecutor(1) as thread:

        def collide(connection: Connection) -> None:
            connection.execute(update(events).where(events.c.id == 1).values(value="mine"))
            for number in range(2, 6):  # by key, one by one: a scan would wait for the row above
                rival.execute(update(events).where(events.c.id == number).values(value=f"{number}'"))
            waiting = thread.submit(rival.execute, update(events).where(events.c.id == 1).values(value="theirs"))
            try:
                connection.execute(update(events).where(events.c.id == 2).values(value="mine"))
            finally:
                waiting.result(timeout=20)

        try:
            yield collide
        finally:
            rival.rollback()


@pytest.mark.mariadb
def test_a_deadlock_whose_error_was_caught_dooms_the_unit_on_mariadb(
    make_dual_write: Make, mariadb_engine: Engine, kafka: FakeKafka
) -> None:
    with mariadb_engine.begin() as connection:
        connection.execute(insert(events), [{"value": str(number)} for number in range(1, 10)])
    dual_write = make_dual_write(mariadb_engine)

    def run(collide: Callable[[Connection], None]) -> None:
        with dual_write.transaction() as tx:
            write(tx, "before")
            with pytest.raises(OperationalError, match="Deadlock"):
                collide(tx.connection)
            write(tx, "after")

    with a_rival(mariadb_engine) as collide, pytest.raises(InvalidTransactionStateError, match="a deadlock whose"):
        run(collide)
    assert kafka.committed == []
    assert stored_values(mariadb_engine) == [str(number) for number in range(1, 10)]
    assert dual_write.outcomes() == []


@pytest.mark.mariadb
def test_a_connection_that_is_lost_after_a_deadlock_is_the_librarys_error_on_mariadb(
    make_dual_write: Make, mariadb_engine: Engine, kafka: FakeKafka
) -> None:
    with mariadb_engine.begin() as connection:
        connection.execute(insert(events), [{"value": str(number)} for number in range(1, 10)])
    dual_write = make_dual_write(mariadb_engine)

    def run(collide: Callable[[Connection], None]) -> None:
        with dual_write.transaction() as tx:
            tx.produce("events", value="before")
            with pytest.raises(OperationalError, match="Deadlock"):
                collide(tx.connection)
            kill_session(mariadb_engine, session_of(tx.connection.connection.dbapi_connection))
            write(tx, "after")

    with a_rival(mariadb_engine) as collide, pytest.raises(DatabaseUnavailableError, match="lost"):
        run(collide)
    assert kafka.committed == []
    assert stored_values(mariadb_engine) == [str(number) for number in range(1, 10)]
    assert dual_write.outcomes() == []
