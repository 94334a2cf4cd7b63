"""The state table on MariaDB: what InnoDB, its sessions and its defaults do in a way of their own."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, make_url, select, text
from sqlalchemy.exc import DBAPIError

from dualwrite.cli.db import upgrade
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.mysql.database import Mysql
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.sql.unit_bounds import begin_unit, begin_writing, require_unit
from dualwrite.errors import ConfigurationError, DatabaseBusyError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import TakingStore, events, ready_engine, stored_values
from tests.support.servers.mariadb import MariaDB

pytestmark = pytest.mark.mariadb

ID = "orders-0"
STATE = PreparedTxnState(ProducerIdentity(42, 7))
TIMEOUTS = "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@wait_timeout"


@pytest.fixture
def engine(mariadb_url: str) -> Iterator[Engine]:
    engine = ready_engine(mariadb_url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> TakingStore:
    return TakingStore(engine)


@pytest.fixture
def set_global(engine: Engine) -> Iterator[Any]:
    """Changes a setting of the server, for the length of the test."""
    before: dict[str, Any] = {}

    def change(name: str, value: object) -> None:
        with engine.connect() as connection:
            before.setdefault(name, connection.scalar(text(f"SELECT @@GLOBAL.{name}")))
            connection.execute(text(f"SET GLOBAL {name} = :value"), {"value": value})

    yield change
    for name, value in before.items():
        change(name, value)


def test_ids_that_differ_in_case_or_accent_are_two(store: TakingStore) -> None:
    ids = ["orders-0", "Orders-0", "órders-0"]
    assert [store.take_over(name, "a") for name in ids] == [Lease(name, 1) for name in ids]


@pytest.mark.parametrize("scheme", ["mysql+pymysql", "mariadb+pymysql"])
def test_both_of_sqlalchemys_names_work(mariadb_url: str, scheme: str) -> None:
    url = mariadb_url.replace("mysql+pymysql", scheme)
    engine = ready_engine(url)
    store = TakingStore(engine)
    lease = store.take_over(ID, "a")
    with engine.begin() as connection:
        store.store(connection, lease, STATE)
    with store.locked(lease) as held:
        assert held.state == STATE
    engine.dispose()


def test_mysqlclient_works_where_it_is_installed(mariadb_url: str) -> None:
    pytest.importorskip("MySQLdb")
    engine = ready_engine(mariadb_url.replace("pymysql", "mysqldb"))
    store = TakingStore(engine, lock_timeout=0, patience=0)
    lease = store.take_over(ID, "a")
    with engine.connect() as connection:
        connection.begin()
        begin_unit(connection, lease)
        store.store(connection, lease, STATE)
        require_unit(connection, "", storing=True)
        with pytest.raises(DatabaseBusyError):
            store.take_over(ID, "b")
        connection.commit()
    with store.locked(lease) as held:
        assert held.state == STATE
    engine.dispose()
    engine = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.begin()
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            begin_writing(connection)
    engine.dispose()


def test_the_sessions_own_timeouts_come_back(engine: Engine) -> None:
    event.listen(engine, "connect", lambda driver, _: driver.query("SET innodb_lock_wait_timeout = 7"))
    engine.dispose()  # the connections from before the listener
    store = TakingStore(engine, lock_timeout=3)
    with store.locked(store.take_over(ID, "a")) as held:
        assert held.connection.execute(text(TIMEOUTS)).one() == (3, 3, 300)
    with engine.connect() as connection:
        assert connection.execute(text(TIMEOUTS)).one() == (7, 86400, 28800)
        assert connection.get_isolation_level() == "REPEATABLE READ"
    assert engine.pool.checkedin() == 1, "it was another connection"


def test_a_locked_table_is_waited_for_no_longer_than_a_locked_row(engine: Engine) -> None:
    store = TakingStore(engine, lock_timeout=0, patience=0)
    with engine.connect() as connection:
        connection.execute(text(f"LOCK TABLES {table.name} READ"))
        with pytest.raises(DatabaseBusyError):
            store.take_over(ID, "a")
        connection.execute(text("UNLOCK TABLES"))


def test_a_row_is_flushed_to_disk_before_it_is_read_under_the_lock(engine: Engine, store: TakingStore) -> None:
    """InnoDB shows a commit before its log is written; a later commit writes the log up to itself."""
    lease = store.take_over(ID, "a")
    seen: list[str] = []
    event.listen(engine, "commit", lambda connection: seen.append("COMMIT"))
    event.listen(engine, "before_cursor_execute", lambda *given: seen.append(str(given[2]).split()[0]))
    with store.locked(lease):
        pass
    assert seen.index("UPDATE") < seen.index("COMMIT") < seen.index("SELECT")


def test_a_state_table_without_transactions_is_refused(mariadb_url: str) -> None:
    upgrade(mariadb_url)
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table.name} ENGINE = Aria"))
    with pytest.raises(ConfigurationError, match="Aria, which has no transactions: ALTER TABLE"):
        TakingStore(engine).take_over(ID, "a")
    engine.dispose()


@pytest.mark.slow
def test_a_server_that_rolls_a_transaction_back_where_a_row_is_locked_is_refused(own_mariadb: MariaDB) -> None:
    """A transaction that renews several leases would lose what it has written, and go on with the next row."""
    own_mariadb.kill()
    own_mariadb.start("--innodb-rollback-on-timeout=ON")
    server = create_engine(own_mariadb.url)
    with server.begin() as connection:
        connection.exec_driver_sql("CREATE DATABASE shop")
    server.dispose()
    engine = ready_engine(str(server.url.set(database="shop")))
    with pytest.raises(ConfigurationError, match="innodb_rollback_on_timeout = ON: if a row is locked"):
        TakingStore(engine).take_over(ID, "a")
    engine.dispose()


def test_no_warning_is_written_where_every_commit_is_durable(
    store: TakingStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.take_over(ID, "a")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("value", [0, 2])
def test_commits_that_a_crash_can_undo_are_warned_of_once(
    engine: Engine, set_global: Any, caplog: pytest.LogCaptureFixture, value: int
) -> None:
    set_global("innodb_flush_log_at_trx_commit", value)
    store = TakingStore(engine)
    for owner in ("a", "b"):
        store.take_over(ID, owner)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert f"innodb_flush_log_at_trx_commit = {value}" in warned[0]


def test_a_binary_log_that_is_not_synced_is_warned_of(
    store: TakingStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "0"}
    monkeypatch.setattr(
        "dualwrite.coordinator.sql.dialects.mysql.database.server_settings", lambda connection: settings
    )
    store.take_over(ID, "a")
    assert "sync_binlog = 0" in caplog.text


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("SET sql_mode = 'EMPTY_STRING_IS_NULL'", "sql_mode has EMPTY_STRING_IS_NULL: the library's tables"),
        ("SET completion_type = CHAIN", "completion_type = CHAIN, by which each COMMIT begins another"),
    ],
)
def test_a_setting_with_which_no_dual_write_works_is_refused_by_name(
    mariadb_url: str, statement: str, refusal: str
) -> None:
    ready_engine(mariadb_url).dispose()
    engine = create_engine(mariadb_url, connect_args={"init_command": statement})
    with pytest.raises(ConfigurationError, match=refusal):
        TakingStore(engine).take_over(ID, "a")
    engine.dispose()


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_binary_log_of_statements_is_refused_unless_it_leaves_the_database_out(
    engine: Engine, is_logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --binlog-ignore-db, for example, or SET sql_log_bin = 0. The tests' server has no binary log."""
    monkeypatch.setattr(
        "dualwrite.coordinator.sql.dialects.mysql.database.server_settings",
        lambda connection: {"log_bin": "ON", "binlog_format": "STATEMENT"},
    )

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def refuse(_: object, __: object, statement: str, parameters: object, *___: object) -> tuple[str, object]:
        if is_logged and statement.startswith(("UPDATE", "INSERT")):
            return "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1665", ()
        return statement, parameters

    store = TakingStore(engine)
    if is_logged:
        with pytest.raises(ConfigurationError, match="binlog_format = STATEMENT: the server refuses every"):
            store.take_over(ID, "a")
    else:
        assert store.take_over(ID, "a").transactional_id == ID


def test_an_autocommitting_engine_is_refused_before_anything_is_written(mariadb_url: str) -> None:
    engine = ready_engine(mariadb_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.begin()
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            begin_writing(connection)
    engine.dispose()


ENDS = [
    "CREATE TABLE other (id INTEGER)",
    "ALTER TABLE events ADD other INTEGER",
    "TRUNCATE TABLE events",
    "COMMIT",
    "ROLLBACK",
    "START TRANSACTION",
    "LOCK TABLES events WRITE, kafka_transaction_state WRITE",
    "SET autocommit = 1",
]


@pytest.mark.slow_cases
@pytest.mark.parametrize("statement", ENDS)
def test_a_statement_that_ends_the_transaction_is_noticed_though_another_has_begun(
    engine: Engine, store: TakingStore, statement: str
) -> None:
    lease = store.take_over(ID, "a")
    with engine.connect() as connection:
        connection.begin()
        begin_unit(connection, lease)
        connection.execute(insert(events).values(value="one"))
        connection.execute(text(statement))
        connection.execute(insert(events).values(value="two"))
        with pytest.raises(InvalidTransactionStateError, match="the server ended the transaction"):
            require_unit(connection, "", storing=True)
        connection.invalidate()


HARMLESS = ["CREATE TEMPORARY TABLE other (id INTEGER)", "SAVEPOINT other", "SELECT 1", "SET @other = 1"]


@pytest.mark.slow
@pytest.mark.parametrize("statement", HARMLESS)
def test_a_statement_that_does_not_end_the_transaction_is_fine(
    engine: Engine, store: TakingStore, statement: str
) -> None:
    lease = store.take_over(ID, "a")
    with engine.connect() as connection:
        connection.begin()
        begin_unit(connection, lease)
        connection.execute(text(statement))
        connection.execute(insert(events).values(value="one"))
        require_unit(connection, "", storing=True)
        connection.commit()
    assert stored_values(engine) == ["one"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_users_isolation_level_stays_and_the_stores_own_does_not_depend_on_it(mariadb_url: str, level: Any) -> None:
    engine = ready_engine(mariadb_url, isolation_level=level)
    store = TakingStore(engine, lock_timeout=0, patience=0)
    lease = store.take_over(ID, "a")
    with store.locked(lease) as held:
        assert held.connection.get_isolation_level() == "READ COMMITTED"
        with pytest.raises(DatabaseBusyError):
            store.take_over(ID, "b")
    with engine.connect() as connection:
        assert connection.get_isolation_level() == level
        connection.execute(select(events)).all()
        store.store(connection, lease, STATE)
        connection.commit()
    with store.locked(lease) as held:
        assert held.state == STATE
    engine.dispose()


def test_looking_for_a_slot_waits_for_no_row_at_serializable(mariadb_url: str) -> None:
    url = make_url(mariadb_url).update_query_dict({"init_command": "SET innodb_lock_wait_timeout = 1"})
    engine = ready_engine(url.render_as_string(hide_password=False), isolation_level="SERIALIZABLE")
    store = TakingStore(engine)
    lease = store.take_over(ID, "a")
    with store.locked(lease):
        assert [row.transactional_id for row in store.leases.rows("orders")] == [ID]
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "trouble", "rolls_back"),
    [
        ("SELECT * FROM nowhere", ErrorMeaning.NOT_READY, False),
        ("SELECT nothing FROM events", ErrorMeaning.NOT_READY, False),
        ("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213", ErrorMeaning.CONFLICT, True),
        # It rolls back its statement only, by default: the unit's transaction may have been committed before.
        ("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205", ErrorMeaning.BUSY, False),
        ("SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1969", ErrorMeaning.TOO_LONG, False),
        ("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 3024", ErrorMeaning.TOO_LONG, False),
        ("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1020", ErrorMeaning.CONFLICT, True),
        ("SELEC", None, False),
    ],
)
def test_errors_are_classified_by_their_number(
    engine: Engine, statement: str, trouble: ErrorMeaning | None, rolls_back: bool
) -> None:
    with engine.connect() as connection:
        with pytest.raises(DBAPIError, match=r"\(pymysql") as raised:
            connection.execute(text(statement))
        assert raised.value.orig is not None
        assert Mysql().rolls_back(connection, raised.value.orig) is rolls_back
    assert Mysql().meaning_of(raised.value) is trouble


def test_a_url_without_a_database_is_one_clear_line(mariadb_server: str) -> None:
    engine = create_engine(mariadb_server)
    with pytest.raises(ConfigurationError, match=r"the URL names no database: mysql\+pymysql://.*/NAME"):
        TakingStore(engine).take_over(ID, "a")
    engine.dispose()


def test_a_connection_that_the_server_closed_while_it_was_idle_is_replaced_by_pre_ping(mariadb_url: str) -> None:
    engine = ready_engine(mariadb_url, pool_pre_ping=True)
    store = TakingStore(engine)
    store.take_over(ID, "a")
    killer = create_engine(mariadb_url)
    with killer.connect() as connection:
        for (other,) in connection.execute(
            text("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        ).all():
            connection.execute(text(f"KILL {other}"))
    assert store.take_over(ID, "b").fencing_token == 2
    killer.dispose()
    engine.dispose()
