"""Making and inspecting the tables, by function; and that the migrations make what the code expects."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from traceback import format_exception

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, inspect, text

from dualwrite import schema
from dualwrite.cli import db
from dualwrite.coordinator.sql.tables import (
    VERSION_TABLE,
    kafka_transaction_state,
    load_position,
    metadata,
    spark_batch,
    spark_progress,
    spark_run,
)
from dualwrite.errors import ConfigurationError
from tests.support.coordinator.event_table import HEAD, statements_of_upgrade

OURS = {*metadata.tables, VERSION_TABLE}


def tables(url: str) -> set[str]:
    engine = create_engine(url)
    names = set(inspect(engine).get_table_names())
    engine.dispose()
    return names


def test_upgrade_makes_the_tables_and_again_changes_nothing(database_url: str) -> None:
    assert db.upgrade(database_url) == HEAD
    assert db.upgrade(database_url) == HEAD
    assert db.current(database_url) == HEAD
    assert tables(database_url) == OURS


def test_the_migrations_make_exactly_the_tables_of_the_code(database_url: str) -> None:
    db.upgrade(database_url)
    engine = create_engine(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_tables_that_most_tests_have_are_those_of_an_upgrade(database_url: str) -> None:
    engine = create_engine(database_url)
    statements = statements_of_upgrade(engine)
    with engine.begin() as connection:
        for name in OURS:
            connection.execute(text(f"DROP TABLE {name}"))
        for statement, parameters in statements:
            connection.exec_driver_sql(statement, parameters)
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert db.current(database_url) == HEAD
    engine.dispose()


@pytest.mark.postgresql
def test_an_empty_database_has_no_table_version(postgresql_url: str) -> None:
    assert db.current(postgresql_url) is None


def test_the_users_own_alembic_in_the_same_database_is_left_alone(database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))
    db.upgrade(database_url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "theirs"
    engine.dispose()
    assert tables(database_url) == OURS | {"alembic_version"}


def test_processes_that_upgrade_at_the_same_time_take_turns(database_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: db.upgrade(database_url), range(4))) == [HEAD] * 4


def test_an_upgrade_fails_on_a_foreign_table_of_the_same_name(database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE dualwrite_load_position (id INTEGER)"))
    with pytest.raises(ConfigurationError, match="already exists"):
        db.upgrade(database_url)
    engine.dispose()
    halfway = kafka_transaction_state.name in tables(database_url)
    assert halfway is database_url.startswith("mysql"), "where DDL is in a transaction, nothing is left"


def test_an_upgraded_engine_with_open_connections_blocks_no_other_upgrade(database_url: str) -> None:
    first, second = create_engine(database_url), create_engine(database_url)
    assert [schema.upgrade_engine(first), schema.upgrade_engine(second)] == [HEAD] * 2
    first.dispose()
    second.dispose()


def test_a_release_that_is_older_than_the_tables_leaves_them_alone(database_url: str) -> None:
    db.upgrade(database_url)
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9001'"))
    assert db.upgrade(database_url) == "9001"
    with pytest.raises(ConfigurationError, match=f"version 9001, and this release .* up to {HEAD}: downgrade them"):
        db.downgrade(database_url, "base")
    engine.dispose()


@pytest.mark.parametrize("act", [db.upgrade, db.downgrade])
def test_an_unknown_version_is_refused_before_anything_is_done(
    act: Callable[[str, str], object], sqlite_url: str
) -> None:
    db.upgrade(sqlite_url, "0001")
    with pytest.raises(ConfigurationError, match="there is no version '0815' of the tables: use base, 0001, 0002, "):
        act(sqlite_url, "0815")
    assert db.current(sqlite_url) == "0001"


@pytest.mark.parametrize("act", [schema.upgrade_engine, schema.downgrade_engine])
def test_a_missing_directory_is_named_without_the_drivers_traceback(
    act: Callable[[Engine, str], object], tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'missing' / 'app.db'}")
    with pytest.raises(ConfigurationError) as raised:
        act(engine, "base")
    assert str(raised.value).endswith(f"unable to open database file: there is no directory {tmp_path / 'missing'}")
    assert "sqlite3" not in "".join(format_exception(raised.value))


@pytest.mark.mariadb
def test_an_upgrade_that_died_halfway_goes_on_from_there_on_mariadb(mariadb_url: str) -> None:
    db.upgrade(mariadb_url)
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:  # as if it had died after the first table
        connection.execute(text(f"DROP TABLE {load_position.name}"))
        connection.execute(text(f"ALTER TABLE {kafka_transaction_state.name} DROP COLUMN first_record"))
        for column in ("lease_version", "cluster_id", "database_id"):
            connection.execute(text(f"ALTER TABLE {kafka_transaction_state.name} DROP COLUMN {column}"))
        drop_columns_of_known_batches(connection)
        connection.execute(text(f"DELETE FROM {VERSION_TABLE}"))
        connection.execute(
            text(f"INSERT INTO {kafka_transaction_state.name} VALUES ('a-0','','',1,'',NULL,now(),NULL)")
        )
    assert db.upgrade(mariadb_url) == HEAD
    assert tables(mariadb_url) == OURS
    with engine.connect() as connection:
        assert connection.scalar(text(f"SELECT count(*) FROM {kafka_transaction_state.name}")) == 1
    engine.dispose()


def drop_columns_of_known_batches(connection: Connection) -> None:
    """As before version 0006."""
    drop_columns_of_progress(connection)
    connection.execute(text("ALTER TABLE dualwrite_spark_run DROP COLUMN forgotten_to"))
    for column in ("digest", "table_name", "table_id", "topic"):
        connection.execute(text(f"ALTER TABLE dualwrite_spark_batch DROP COLUMN {column}"))


def drop_columns_of_progress(connection: Connection) -> None:
    """As before version 0007."""
    drop_cluster_of_offsets(connection)
    for column in ("table_name", "table_id", "topic", "forgotten_to"):
        connection.execute(text(f"ALTER TABLE dualwrite_spark_progress DROP COLUMN {column}"))


def drop_cluster_of_offsets(connection: Connection) -> None:
    """As before version 0008."""
    connection.execute(text("ALTER TABLE kafka_consumer_offset DROP COLUMN cluster_id"))


@pytest.mark.mariadb
def test_the_sixth_upgrade_goes_on_where_it_died_on_mariadb(mariadb_url: str) -> None:
    db.upgrade(mariadb_url)
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:  # as if it had died after two columns
        connection.execute(text("ALTER TABLE dualwrite_spark_run DROP COLUMN forgotten_to"))
        for column in ("table_id", "topic"):
            connection.execute(text(f"ALTER TABLE dualwrite_spark_batch DROP COLUMN {column}"))
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0005'"))
    assert db.upgrade(mariadb_url) == HEAD
    with engine.connect() as connection:
        connection.execute(spark_batch.select())
        connection.execute(spark_run.select())
    engine.dispose()


@pytest.mark.mariadb
def test_the_seventh_upgrade_goes_on_where_it_died_on_mariadb(mariadb_url: str) -> None:
    db.upgrade(mariadb_url)
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:  # as if it had died after two columns
        for column in ("topic", "forgotten_to"):
            connection.execute(text(f"ALTER TABLE dualwrite_spark_progress DROP COLUMN {column}"))
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0006'"))
    assert db.upgrade(mariadb_url) == HEAD
    with engine.connect() as connection:
        connection.execute(spark_progress.select())
    engine.dispose()


@pytest.mark.mariadb
def test_the_second_upgrade_goes_on_where_it_died_on_mariadb(mariadb_url: str) -> None:
    db.upgrade(mariadb_url)
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:  # as if it had died after the column and the first table
        drop_columns_of_known_batches(connection)
        connection.execute(text("DROP TABLE kafka_consumer_offset"))
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    assert db.upgrade(mariadb_url) == HEAD
    assert tables(mariadb_url) == OURS
    engine.dispose()


@pytest.mark.mariadb
def test_the_tables_have_transactions_and_tell_letters_apart_whatever_mariadbs_defaults(mariadb_url: str) -> None:
    engine = create_engine(mariadb_url)
    with engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {engine.url.database} CHARACTER SET latin1 COLLATE latin1_general_ci"))
    engine.dispose()
    url = engine.url.update_query_dict({"init_command": "SET default_storage_engine = MyISAM"})
    db.upgrade(url.render_as_string(hide_password=False))
    with engine.connect() as connection:
        for table in (kafka_transaction_state, load_position):
            made = str(connection.execute(text(f"SHOW CREATE TABLE {table.name}")).one()[1])
            assert "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin" in made
    engine.dispose()


@pytest.mark.parametrize("url", ["nonsense", "nosuchdatabase://x", "sqlite:////no/such/directory/app.db"])
def test_a_bad_url_is_one_clear_line(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        db.upgrade(url)
    assert "\n" not in str(raised.value)


def test_the_scripts_are_found_in_a_checkout_and_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list((schema.migrations_directory() / "versions").glob("0001_*.py"))
    installed = tmp_path / "dualwrite"
    (installed / "migrations").mkdir(parents=True)
    monkeypatch.setattr(schema, "__file__", str(installed / "schema.py"))
    assert schema.migrations_directory() == installed / "migrations"


@pytest.mark.slow_cases
def test_a_table_that_was_dropped_by_hand_is_named_with_the_way_out(database_url: str) -> None:
    db.upgrade(database_url)
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {kafka_transaction_state.name}"))
    with pytest.raises(ConfigurationError, match="the table 'kafka_transaction_state' is missing, although"):
        db.upgrade(database_url)
    assert db.downgrade(database_url, "base", lose_rows=True) is None
    assert db.upgrade(database_url) == HEAD
    assert tables(database_url) == OURS
    engine.dispose()
