"""Downgrading the tables: what stays, what is refused, and that no process uses them meanwhile."""

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, Table, create_engine, func, insert, inspect, select, text, update

from dualwrite import schema
from dualwrite.cli import db
from dualwrite.coordinator.sql.tables import (
    VERSION_TABLE,
    kafka_consumer_offset,
    kafka_transaction_outcome,
    kafka_transaction_record,
    kafka_transaction_state,
    load_position,
    metadata,
    spark_progress,
    spark_run,
)
from dualwrite.errors import ConfigurationError, DatabaseBusyError
from tests.support.coordinator.event_table import FREE, HEAD, NOW
from tests.support.servers.databases import SERVERS

pytestmark = pytest.mark.slow_cases("mariadb")

SOME: Mapping[type, Any] = {str: "x", int: 1, datetime: NOW, bytes: b"x"}


def some_row(table: Table) -> Mapping[str, Any]:
    """What an INSERT must give, whatever it is."""
    must = [column for column in table.columns if not column.nullable and column.server_default is None]
    return {column.name: SOME[column.type.python_type] for column in must if column.autoincrement is not True}


NEEDED = [
    (kafka_transaction_outcome, "0001", r"outcomes that nobody has acknowledged \(1\)"),
    (kafka_consumer_offset, "0001", r"offsets of consumers, which would read again \(1\)"),
    (spark_progress, "0002", r"partitions of Spark jobs, which may be written again \(1\)"),
    (load_position, "base", r"the positions of loads, which would begin again \(1\)"),
]


@pytest.fixture
def engine(database_url: str) -> Any:
    engine = create_engine(database_url)
    schema.upgrade_engine(engine)
    yield engine
    engine.dispose()


def put(engine: Engine, table: Table, row: Mapping[str, Any]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(table).values(**row))


ADDED = ("first_record", "lease_version", "cluster_id", "database_id")
"""Columns of the state table that 0001 did not have."""


def rows(engine: Engine, table: Table) -> list[Any]:
    with engine.connect() as connection:
        return [
            tuple(row)
            for row in connection.execute(select(*(column for column in table.c if column.name not in ADDED)))
        ]


def there(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_one_version_back_and_forth_keeps_every_decision_and_position(engine: Engine) -> None:
    put(engine, kafka_transaction_state, FREE)
    put(engine, load_position, some_row(load_position))
    before = rows(engine, kafka_transaction_state), rows(engine, load_position)
    assert schema.downgrade_engine(engine, "0001") == "0001"
    assert there(engine) == {kafka_transaction_state.name, load_position.name, VERSION_TABLE}
    assert (rows(engine, kafka_transaction_state), rows(engine, load_position)) == before
    assert schema.upgrade_engine(engine) == HEAD
    assert there(engine) == {*metadata.tables, VERSION_TABLE}
    assert (rows(engine, kafka_transaction_state), rows(engine, load_position)) == before


def test_base_leaves_nothing_but_an_empty_version_table(engine: Engine) -> None:
    put(engine, kafka_transaction_state, FREE)
    assert schema.downgrade_engine(engine, "base") is None
    assert there(engine) == {VERSION_TABLE}
    assert schema.upgrade_engine(engine) == HEAD


def test_a_downgrade_leaves_tables_of_that_version_or_an_older_one_unchanged(database_url: str) -> None:
    engine = create_engine(database_url)
    assert schema.downgrade_engine(engine, "base") is None
    assert schema.upgrade_engine(engine, "0001") == "0001"
    put(engine, kafka_transaction_state, {**FREE, "owner": "somebody"})
    assert schema.downgrade_engine(engine, HEAD) == "0001"
    assert len(rows(engine, kafka_transaction_state)) == 1
    engine.dispose()


@pytest.mark.slow_cases("mariadb", "postgresql")
@pytest.mark.parametrize(("table", "revision", "words"), NEEDED, ids=lambda value: str(value)[:30])
def test_needed_rows_are_dropped_only_with_lose_rows(engine: Engine, table: Table, revision: str, words: str) -> None:
    put(engine, table, some_row(table))
    with pytest.raises(ConfigurationError, match=words) as refused:
        schema.downgrade_engine(engine, revision)
    assert "\n" not in str(refused.value)
    assert len(rows(engine, table)) == 1
    with engine.connect() as connection:
        assert schema.current(connection) == HEAD
    schema.downgrade_engine(engine, revision, lose_rows=True)
    assert table.name not in there(engine)


def test_acknowledged_outcomes_and_mere_records_do_not_block_a_downgrade(engine: Engine) -> None:
    put(engine, kafka_transaction_record, some_row(kafka_transaction_record))
    put(
        engine,
        kafka_transaction_outcome,
        {**some_row(kafka_transaction_outcome), "acknowledged_at": NOW, "acknowledged_by": "me"},
    )
    assert schema.downgrade_engine(engine, "0001") == "0001"


@pytest.mark.parametrize("revision", ["0001", "base"])
def test_a_leased_slot_forbids_a_downgrade_even_with_lose_rows(engine: Engine, revision: str) -> None:
    for number in range(3):
        put(engine, kafka_transaction_state, {**FREE, "transactional_id": f"orders-{number}", "owner": "x" * number})
    with pytest.raises(ConfigurationError, match=r"slot orders-1 and 1 more was not given back: stop the programs"):
        schema.downgrade_engine(engine, revision, lose_rows=True)
    assert there(engine) == {*metadata.tables, VERSION_TABLE}


def waits(engine: Engine) -> bool:
    """True if somebody waits for a lock in the database."""
    asked = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database() "
        "AND state LIKE '%metadata lock%'",
    }[engine.dialect.name]
    with engine.connect() as connection:
        return bool(connection.scalar(text(asked)))


@pytest.mark.parametrize(
    "database_url",
    SERVERS,
    indirect=True,
)
def test_a_slot_leased_during_the_check_blocks_the_downgrade(engine: Engine, database_url: str) -> None:
    put(engine, kafka_transaction_state, FREE)
    refused: list[str] = []

    def take_back() -> None:
        try:
            db.downgrade(database_url, "base")
        except ConfigurationError as error:
            refused.append(str(error))

    with engine.begin() as connection:
        connection.execute(update(kafka_transaction_state).values(owner="somebody"))
        thread = threading.Thread(target=take_back)
        thread.start()
        while thread.is_alive() and not waits(engine):
            pass
    thread.join()
    assert "slot orders-0 was not given back" in refused[0]
    assert len(rows(engine, kafka_transaction_state)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "database_url",
    SERVERS,
    indirect=True,
)
def test_a_downgrade_gives_up_on_a_transaction_that_stays_open(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(engine, kafka_transaction_state, FREE)
    monkeypatch.setattr(schema, "LOCK_TIMEOUT", 1.0)
    with engine.begin() as connection:
        connection.execute(select(func.count()).select_from(kafka_transaction_state))
        with pytest.raises(DatabaseBusyError):
            schema.downgrade_engine(engine, "0001")
    assert schema.downgrade_engine(engine, "0001") == "0001"


@pytest.mark.mariadb
def test_a_downgrade_that_died_halfway_goes_on_from_there_on_mariadb(mariadb_url: str) -> None:
    db.upgrade(mariadb_url)
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:  # as if it had died after the first table
        connection.execute(text(f"DROP TABLE {kafka_consumer_offset.name}"))
    assert db.downgrade(mariadb_url, "0001") == "0001"
    assert there(engine) == {kafka_transaction_state.name, load_position.name, VERSION_TABLE}
    engine.dispose()


@pytest.mark.mariadb
def test_a_refused_downgrade_leaves_no_table_locked_on_mariadb(mariadb_url: str) -> None:
    engine = create_engine(mariadb_url)
    schema.upgrade_engine(engine)
    put(engine, kafka_transaction_state, {**FREE, "owner": "somebody"})
    with pytest.raises(ConfigurationError):
        schema.downgrade_engine(engine, "0001")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT @@SESSION.wait_timeout = @@GLOBAL.wait_timeout")), "the user's"
    assert db.upgrade(mariadb_url) == HEAD
    put(engine, kafka_transaction_state, {**FREE, "transactional_id": "orders-1"})
    engine.dispose()


@pytest.mark.parametrize(
    ("table", "before", "said"),
    [
        (spark_run, "0005", "forgotten batches, which"),
        (spark_progress, "0006", "forgotten batches of partitions, which"),
    ],
)
def test_the_number_of_a_forgotten_batch_is_lost_only_with_lose_rows(
    engine: Engine, table: Table, before: str, said: str
) -> None:
    put(engine, table, some_row(table))
    assert schema.downgrade_engine(engine, before) == before
    assert schema.upgrade_engine(engine) == HEAD
    with engine.begin() as connection:
        connection.execute(table.update().values(forgotten_to=7))
    with pytest.raises(ConfigurationError, match=rf"would drop {said} may be written again \(1\):"):
        schema.downgrade_engine(engine, before)
    assert schema.downgrade_engine(engine, before, lose_rows=True) == before
