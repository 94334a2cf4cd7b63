"""The state table as a DecisionStore, in each kind of database: leases, locks, zombies, clear errors."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, create_mock_engine, event, insert, select, text
from sqlalchemy.exc import OperationalError

from dualwrite.cli.db import upgrade
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.engine_checks import discard
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.sql.unit_bounds import begin_writing
from dualwrite.errors import ConfigurationError, DatabaseBusyError, DatabaseNotReadyError, FencedError
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from tests.support.coordinator.event_table import TakingStore, events, is_closed, ready_engine, stored_values

ID = "orders-0"
PRODUCER = ProducerIdentity(42, 7)
STATE = PreparedTxnState(PRODUCER, Anchor.of(TopicPartition("events", 3), 99))
LONGEST = PreparedTxnState(
    ProducerIdentity(2**63 - 1, 32767), Anchor.of(TopicPartition("t" * 249, 2**31 - 1), 2**63 - 1)
)


@pytest.fixture
def store(engine: Engine) -> TakingStore:
    return TakingStore(engine)


@pytest.fixture
def impatient(database_url: str, engine: Engine) -> Iterator[TakingStore]:
    """A second process that does not wait long for locks."""
    options: dict[str, Any] = {"connect_args": {"timeout": 0}} if engine.dialect.name == "sqlite" else {}
    other = create_engine(database_url, **options)
    yield TakingStore(other, lock_timeout=0.05, patience=0)
    other.dispose()


def store_committed(engine: Engine, store: TakingStore, lease: Lease, state: PreparedTxnState) -> None:
    with engine.begin() as connection:
        store.store(connection, lease, state)
    lease.memory.committed()


def read_row(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(select(table)).one()


def test_the_first_to_take_over_makes_the_row(engine: Engine, store: TakingStore) -> None:
    assert store.take_over(ID, "me") == Lease(ID, 1)
    row = read_row(engine)
    assert (row.prepared_txn_state, row.anchor, row.owner) == ("", None, "me")
    with store.locked(Lease(ID, 1)) as held:
        assert held.state == PreparedTxnState()


def test_each_take_over_raises_the_token_and_keeps_the_state(engine: Engine, store: TakingStore) -> None:
    store_committed(engine, store, store.take_over(ID, "a"), STATE)
    lease = store.take_over(ID, "b")
    assert lease == Lease(ID, 2)
    assert read_row(engine).owner == "b"
    with store.locked(lease) as held:
        assert held.state == STATE


def test_other_transactional_ids_are_left_alone(engine: Engine, store: TakingStore) -> None:
    lease, other = store.take_over(ID, "a"), store.take_over("other-0", "a")
    store_committed(engine, store, lease, STATE)
    with store.locked(other) as held:
        assert held.state == PreparedTxnState()
    assert store.take_over("other-0", "b").fencing_token == 2
    with store.locked(lease) as held:
        held.verify()


@pytest.mark.slow_cases
@pytest.mark.parametrize("state", [STATE, LONGEST, PreparedTxnState(PRODUCER), PreparedTxnState()])
def test_a_state_comes_back_as_it_was_stored(engine: Engine, store: TakingStore, state: PreparedTxnState) -> None:
    lease = store.take_over(ID, "a")
    store_committed(engine, store, lease, LONGEST)
    store_committed(engine, store, lease, state)
    with store.locked(lease) as held:
        assert held.state == state


def test_the_row_shows_the_kips_own_string(engine: Engine, store: TakingStore) -> None:
    store_committed(engine, store, store.take_over(ID, "a"), STATE)
    row = read_row(engine)
    assert (row.prepared_txn_state, row.anchor) == ("42:7", "events:3:99")


def test_a_state_rolled_back_was_never_stored(engine: Engine, store: TakingStore) -> None:
    lease = store.take_over(ID, "a")
    with engine.connect() as connection:
        store.store(connection, lease, STATE)
        connection.rollback()
    with store.locked(lease) as held:
        assert held.state == PreparedTxnState()


def test_a_zombie_can_neither_store_nor_lock(engine: Engine, store: TakingStore) -> None:
    zombie = store.take_over(ID, "zombie")
    store.take_over(ID, "successor")
    with engine.connect() as connection, pytest.raises(FencedError, match="another process has taken over 'orders-0'"):
        store.store(connection, zombie, STATE)
    with pytest.raises(FencedError), store.locked(zombie):
        pytest.fail("the zombie got the lock")


def test_a_deleted_row_fences_its_owner(engine: Engine, store: TakingStore) -> None:
    lease = store.take_over(ID, "a")
    with engine.begin() as connection:
        connection.execute(table.delete())
    with pytest.raises(FencedError), store.locked(lease):
        pytest.fail("there is no row to lock")


def test_concurrent_takeovers_of_a_missing_row_all_get_their_turn(store: TakingStore) -> None:
    together = threading.Barrier(8)

    def take_over(owner: int) -> int:
        together.wait()
        return store.take_over(ID, str(owner)).fencing_token

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(take_over, range(8))) == list(range(1, 9))


def test_no_process_takes_over_or_stores_while_the_row_is_locked(
    engine: Engine, store: TakingStore, impatient: TakingStore
) -> None:
    lease = store.take_over(ID, "a")
    with store.locked(lease) as held:
        with pytest.raises(DatabaseBusyError, match="locked"):
            impatient.take_over(ID, "b")
        with pytest.raises(DatabaseBusyError) as raised, impatient.locked(lease):
            pytest.fail("two hold the lock")
        advice = database_of(engine.dialect).lock_advice
        assert str(raised.value).endswith(f"try again, and if the error persists, {advice}")
        held.verify()
    assert impatient.take_over(ID, "b").fencing_token == 2


def test_take_over_waits_for_a_zombies_transaction_and_sees_what_it_committed(
    engine: Engine, store: TakingStore, impatient: TakingStore
) -> None:
    zombie = store.take_over(ID, "zombie")
    with engine.connect() as connection:
        transaction = connection.begin()
        begin_writing(connection)
        store.store(connection, zombie, STATE)
        with pytest.raises(DatabaseBusyError):
            impatient.take_over(ID, "successor")
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(store.take_over, ID, "successor")
            transaction.commit()
            lease = waiting.result(timeout=20)
    with store.locked(lease) as held:
        assert held.state == STATE
    with engine.connect() as connection, pytest.raises(FencedError):
        store.store(connection, zombie, PreparedTxnState(PRODUCER))


def test_a_zombie_whose_transaction_began_before_the_take_over_is_fenced(
    engine: Engine, database_url: str, store: TakingStore
) -> None:
    zombie = store.take_over(ID, "zombie")
    with engine.connect() as connection:
        connection.execute(select(table)).all()  # a snapshot, or at least a transaction, of the old time
        store.take_over(ID, "successor")
        with pytest.raises(FencedError):
            store.store(connection, zombie, STATE)


def test_verify_notices_that_the_lock_was_lost_and_taken(engine: Engine, store: TakingStore) -> None:
    lease = store.take_over(ID, "a")
    with store.locked(lease) as held:
        held.connection.connection.commit()  # behind SQLAlchemy's back, as a lost connection would
        store.take_over(ID, "b")
        with pytest.raises(FencedError):
            held.verify()


def test_an_error_inside_the_lock_releases_it(store: TakingStore, impatient: TakingStore) -> None:
    lease = store.take_over(ID, "a")
    with pytest.raises(ValueError, match="inside"), store.locked(lease):
        raise ValueError("inside")
    assert impatient.take_over(ID, "b").fencing_token == 2


def test_holding_the_lock_decides_nothing(engine: Engine, store: TakingStore) -> None:
    lease = store.take_over(ID, "a")
    before = read_row(engine)
    with store.locked(lease) as held:
        held.verify()
    after = read_row(engine)
    # On MariaDB the time moves: what was read under the lock is put on the disk by a write.
    moved = [name for name in after._fields if getattr(after, name) != getattr(before, name)]
    assert moved == (["updated_at"] if engine.dialect.name == "mysql" else [])


def test_a_connection_that_is_in_use_while_the_engine_is_disposed_of_is_closed_in_the_end(
    engine: Engine, store: TakingStore
) -> None:
    """As by a thread of the library's that goes on after a close() in time. Its pool would keep it open."""
    for block in (store.connection, lambda: store.transaction(commit=True), lambda: store.transaction(commit=False)):
        with block() as connection:
            driver = connection.connection.driver_connection
            engine.dispose()
        assert is_closed(driver, engine)
        with block() as connection:
            driver = connection.connection.driver_connection
        assert not is_closed(driver, engine), "it is in the pool"


def test_a_store_that_was_closed_leaves_no_connection_in_the_pool(engine: Engine, store: TakingStore) -> None:
    """A thread that goes on after a close() in time may connect when the engine has been disposed of."""
    with store.connection() as connection:
        store.close()
        driver = connection.connection.driver_connection
    assert is_closed(driver, engine)
    for commit in (True, False):
        with store.transaction(commit=commit) as connection:
            driver = connection.connection.driver_connection
        assert is_closed(driver, engine)


def test_a_missing_table_says_what_to_run(database_url: str) -> None:
    engine = create_engine(database_url)
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade --db"):
        TakingStore(engine).take_over(ID, "a")
    engine.dispose()


def test_a_table_of_another_version_says_what_to_run(database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kafka_transaction_state (transactional_id VARCHAR(255) PRIMARY KEY)"))
    with pytest.raises(DatabaseNotReadyError) as raised:
        TakingStore(engine).take_over(ID, "a")
    assert "\n" not in str(raised.value)
    engine.dispose()


@pytest.mark.postgresql
def test_the_error_does_not_print_the_password(postgresql_url: str) -> None:
    engine = create_engine(postgresql_url.replace("dualwrite@", "dualwrite:hunter2@"))
    with pytest.raises(DatabaseNotReadyError) as raised:
        TakingStore(engine).take_over(ID, "a")
    assert "hunter2" not in str(raised.value)
    engine.dispose()


def test_a_file_that_cannot_be_opened_is_a_wrong_setting(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'missing' / 'app.db'}")
    with pytest.raises(ConfigurationError, match=r"no connection to sqlite:.*unable to open") as raised:
        TakingStore(engine).take_over(ID, "a")
    assert str(raised.value).endswith(f": there is no directory {tmp_path / 'missing'}")
    assert "sqlite3" not in "".join(format_exception(raised.value)), "the driver's traceback hides the message"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="use a file"):
        SqlDecisionStore(create_engine(url))


def test_a_database_of_another_kind_is_refused() -> None:
    engine = create_mock_engine("mssql+pyodbc://", lambda statement: None)
    with pytest.raises(ConfigurationError, match="'mssql' is not supported"):
        SqlDecisionStore(engine)  # type: ignore[arg-type]


@pytest.mark.postgresql
def test_an_autocommitting_engine_is_refused_before_anything_is_written(postgresql_url: str) -> None:
    engine = ready_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.begin()
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            begin_writing(connection)
    engine.dispose()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Python 3.12")
def test_a_sqlite_driver_whose_commit_does_nothing_is_refused(sqlite_url: str) -> None:
    upgrade(sqlite_url)
    engine = create_engine(sqlite_url, connect_args={"autocommit": True})
    with engine.connect() as connection:
        connection.begin()
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            begin_writing(connection)
    engine.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_the_stores_own_transactions_do_not_depend_on_the_engines_isolation(postgresql_url: str, level: Any) -> None:
    engine = ready_engine(postgresql_url, isolation_level=level)
    store = TakingStore(engine, lock_timeout=0.05, patience=0)
    lease = store.take_over(ID, "a")
    with store.locked(lease), pytest.raises(DatabaseBusyError):
        store.take_over(ID, "b")
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        assert driver.autocommit is (level == "AUTOCOMMIT")
        assert level == "AUTOCOMMIT" or connection.get_isolation_level() == level
    engine.dispose()


# SQLite's several ways of beginning a transaction.


def autocommit_driver(url: str) -> Engine:
    return create_engine(url, isolation_level="AUTOCOMMIT")


def begin_by_listener(url: str) -> Engine:
    """SQLAlchemy's documented recipe for SAVEPOINT: the driver begins nothing, a listener does."""
    engine = create_engine(url)
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def pep_249_driver(url: str) -> Engine:
    """Python 3.12's autocommit=False: the driver is always in a transaction, begun deferred."""
    return create_engine(url, connect_args={"autocommit": False})


WAYS_TO_BEGIN = [
    create_engine,
    autocommit_driver,
    begin_by_listener,
    pytest.param(pep_249_driver, marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Python 3.12")),
]


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])  # with a WAL a reader alone would not keep a writer out
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("make", WAYS_TO_BEGIN)
def test_sqlites_write_lock_is_really_held_however_the_engine_begins(
    sqlite_url: str, make: Callable[[str], Engine], at_once: bool, journal: str
) -> None:
    upgrade(sqlite_url)
    engine, other = make(sqlite_url), create_engine(sqlite_url, connect_args={"timeout": 0})
    with other.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA journal_mode = {journal}")
    store = TakingStore(engine)
    lease = store.take_over(ID, "a")
    with store.locked_at_once([lease]) if at_once else store.locked(lease), pytest.raises(DatabaseBusyError):
        TakingStore(other, patience=0).take_over(ID, "b")
    assert TakingStore(other, patience=0).take_over(ID, "b").fencing_token == 2
    engine.dispose()
    other.dispose()


@pytest.mark.parametrize("make", WAYS_TO_BEGIN)
def test_a_savepoint_as_the_first_statement_commits_nothing_on_sqlite(
    sqlite_url: str, make: Callable[[str], Engine]
) -> None:
    ready_engine(sqlite_url).dispose()
    engine = make(sqlite_url)
    with engine.connect() as connection:
        connection.begin()
        begin_writing(connection)
        with connection.begin_nested():
            connection.execute(insert(events).values(value="one"))
        connection.rollback()
    assert stored_values(engine) == []
    engine.dispose()


def test_without_begin_writing_a_savepoint_would_commit_on_sqlite(sqlite_engine: Engine) -> None:
    with sqlite_engine.connect() as connection:
        connection.begin()
        with connection.begin_nested():
            connection.execute(insert(events).values(value="one"))
        connection.rollback()
    assert stored_values(sqlite_engine) == ["one"], "the driver begins transactions by itself now: simplify"


def test_a_unit_that_reads_before_it_writes_waits_for_its_turn_on_sqlite(sqlite_engine: Engine) -> None:
    store = TakingStore(sqlite_engine)
    lease = store.take_over(ID, "a")

    def read_then_write(value: str) -> None:
        with sqlite_engine.connect() as connection, connection.begin():
            begin_writing(connection)
            connection.execute(select(events)).all()
            connection.execute(insert(events).values(value=value))
            store.store(connection, Lease(ID, lease.fencing_token), STATE)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read_then_write, map(str, range(20))))
    assert len(stored_values(sqlite_engine)) == 20


def test_discard_ends_the_transaction_even_after_a_failed_commit(engine: Engine, store: TakingStore) -> None:
    lease = store.take_over(ID, "a")
    plain = engine.dialect.do_commit

    def fail(connection: Any) -> None:
        raise RuntimeError("COMMIT")

    with engine.connect() as connection:
        store.store(connection, lease, STATE)
        engine.dialect.do_commit = fail  # type: ignore[method-assign]
        with pytest.raises(RuntimeError):
            connection.commit()
        engine.dialect.do_commit = plain  # type: ignore[method-assign]
        discard(connection)
        discard(connection)
        with store.locked(lease) as held:
            assert held.state == PreparedTxnState()


def test_discard_does_nothing_on_a_closed_connection(engine: Engine) -> None:
    connection: Connection = engine.connect()
    connection.close()
    discard(connection)
    assert connection.closed


@pytest.mark.postgresql
def test_a_connection_killed_by_the_server_is_noticed_by_verify(postgresql_url: str) -> None:
    engine = ready_engine(postgresql_url)
    store = TakingStore(engine)
    lease = store.take_over(ID, "a")

    def lose_the_connection() -> None:
        with store.locked(lease) as held:
            backend = held.connection.scalar(text("SELECT pg_backend_pid()"))
            with engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend})
            held.verify()

    with pytest.raises(OperationalError):
        lose_the_connection()
    assert store.take_over(ID, "b").fencing_token == 2
    engine.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize(("given", "committed_with"), [("off", "on"), ("local", "local"), ("on", "on")])
def test_a_decision_is_never_committed_asynchronously(postgresql_url: str, given: str, committed_with: str) -> None:
    engine = ready_engine(postgresql_url, connect_args={"options": f"-c synchronous_commit={given}"})
    store = TakingStore(engine)
    lease = store.take_over(ID, "a")
    with engine.begin() as connection:
        assert connection.scalar(text("SHOW synchronous_commit")) == given
        store.store(connection, lease, STATE)
        assert connection.scalar(text("SHOW synchronous_commit")) == committed_with
    with engine.begin() as connection:
        assert connection.scalar(text("SHOW synchronous_commit")) == given, "it is the user's again"
    engine.dispose()


@pytest.mark.postgresql
def test_a_failed_statement_of_the_users_keeps_the_state_from_being_stored(postgresql_url: str) -> None:
    engine = ready_engine(postgresql_url)
    store = TakingStore(engine)
    lease = store.take_over(ID, "a")
    with engine.connect() as connection:
        connection.begin()
        with pytest.raises(Exception, match="nowhere"):
            connection.execute(text("SELECT * FROM nowhere"))
        with pytest.raises(Exception, match="a statement of this unit of work failed"):
            store.store(connection, lease, STATE)
    engine.dispose()
