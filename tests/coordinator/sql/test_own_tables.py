"""Where the library's tables are: chosen, or found once, whatever a connection's search_path or USE says later."""

from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select, text

from dualwrite import schema
from dualwrite.cli import db
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.coordinator.sql.tables import VERSION_TABLE, metadata
from dualwrite.errors import ConfigurationError, DatabaseNotReadyError
from tests.support.coordinator.event_table import CONFIG, HEAD, events, user_metadata
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka
from tests.support.servers.databases import SERVERS

pytestmark = pytest.mark.slow_cases("mariadb")

TENANTS = ("tenant_a", "tenant_b")
OURS = {*metadata.tables, VERSION_TABLE}
tenant: ContextVar[str] = ContextVar("tenant", default=TENANTS[0])


class SchemaServer:
    """A database with two schemas beside the one that a session begins with."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = create_engine(url)
        self.names = [*TENANTS]
        self.is_postgresql = self.engine.dialect.name == "postgresql"
        if not self.is_postgresql:  # a MariaDB's schemas are databases of the server
            self.names = [f"{self.engine.url.database}_{name}" for name in TENANTS]
        with self.engine.begin() as connection:
            for name in self.names:
                connection.exec_driver_sql(f"CREATE SCHEMA {name}")
                user_metadata.create_all(connection.execution_options(schema_translate_map={None: name}))

    def close(self) -> None:
        if not self.is_postgresql:
            with self.engine.begin() as connection:
                for name in self.names:
                    connection.exec_driver_sql(f"DROP DATABASE {name}")
        self.engine.dispose()

    def switch(self, connection: Connection, name: str) -> None:
        """What a listener does for a tenant."""
        if self.is_postgresql:
            connection.exec_driver_sql(f"SET LOCAL search_path TO {name}")
        else:
            connection.exec_driver_sql(f"USE {name}")

    def tables(self, name: str | None) -> set[str]:
        return set(inspect(self.engine).get_table_names(schema=name)) & OURS

    def tokens(self, name: str | None) -> list[tuple[int, str]]:
        state = f"{name + '.' if name else ''}kafka_transaction_state"
        with self.engine.connect() as connection:
            return [
                (row.fencing_token, row.prepared_txn_state)
                for row in connection.execute(text(f"SELECT * FROM {state} ORDER BY transactional_id"))
            ]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[SchemaServer]:
    made = SchemaServer(request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.close()


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka()


def dual_write(engine: Engine, kafka: FakeKafka, **options: Any) -> DualWrite:
    return DualWrite(engine, CONFIG, application="orders", pool_size=1, participant=kafka.participant, **options)


def write(made: DualWrite, value: str) -> None:
    with made.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value)


def values(server: SchemaServer, name: str) -> list[str]:
    options = {"schema_translate_map": {None: name}}
    with server.engine.connect() as connection:
        return list(connection.scalars(select(events.c.value).order_by(events.c.id), execution_options=options))


def test_tables_in_the_schema_of_every_tenant_are_not_mixed_up(server: SchemaServer, kafka: FakeKafka) -> None:
    """A listener chooses the tenant's schema in each transaction, and every schema has the state table."""
    for name in (None, *server.names):
        schema.upgrade_engine(server.engine, schema=name)
    engine = create_engine(server.url)
    chosen = iter([server.names[0], server.names[1], server.names[0]])

    with dual_write(engine, kafka) as made:
        made.recover()
        event.listen(engine, "begin", lambda connection: server.switch(connection, server.names[1]))
        for number in range(3):
            with made.transaction() as tx:
                name = next(chosen)
                server.switch(tx.connection, name)
                tx.execute(insert(events).values(value=str(number)))
                tx.produce("events", str(number))
        manager_of(made).process.pool.beat()
        assert made.outcomes() == []
    engine.dispose()
    assert (values(server, server.names[0]), values(server, server.names[1])) == (["0", "2"], ["1"])
    assert kafka.committed == ["0", "1", "2"]
    assert [server.tokens(name) for name in server.names] == [[], []], "the tenants' state tables are not touched"
    ((_, state),) = server.tokens(None)
    assert state


def test_tables_that_only_a_listener_finds_are_found_by_it(server: SchemaServer, kafka: FakeKafka) -> None:
    if not server.is_postgresql:
        pytest.skip("MariaDB: the database of the URL is where the tables are")
    schema.upgrade_engine(server.engine, schema=server.names[0])
    engine = create_engine(server.url)
    event.listen(engine, "begin", lambda connection: server.switch(connection, server.names[0]))
    with dual_write(engine, kafka) as made:
        write(made, "one")
    assert len(server.tokens(server.names[0])) == 1
    engine.dispose()


@pytest.mark.slow_cases("map")
@pytest.mark.parametrize("way", ["argument", "map"])
def test_a_schema_can_be_chosen(server: SchemaServer, kafka: FakeKafka, way: str) -> None:
    chosen = server.names[0]
    if way == "argument":
        engine, options = server.engine, {"schema": chosen}
        schema.upgrade_engine(engine, schema=chosen)
        user_metadata.create_all(engine)
    else:
        engine, options = server.engine.execution_options(schema_translate_map={None: chosen}), {}
        schema.upgrade_engine(engine)
    assert (server.tables(chosen), server.tables(None)) == (OURS, set())
    with dual_write(engine, kafka, **options) as made:
        write(made, "one")
        made.recover()
        write(made, "two")
        manager_of(made).process.pool.beat()
        assert made.outcomes() == []
    ((_, state),) = server.tokens(chosen)
    assert state
    assert kafka.committed == ["one", "two"]
    assert schema.downgrade_engine(engine, "0001", **({"schema": chosen} if way == "argument" else {})) == "0001"
    assert server.tables(chosen) == {"kafka_transaction_state", "dualwrite_load_position", VERSION_TABLE}


def test_a_users_map_changed_inside_the_unit_changes_nothing_of_ours(server: SchemaServer, kafka: FakeKafka) -> None:
    schema.upgrade_engine(server.engine)
    with dual_write(server.engine, kafka) as made, made.transaction() as tx:
        tx.connection.execution_options(schema_translate_map={None: server.names[1]})
        tx.execute(insert(events).values(value="one"))
        tx.produce("events", "one")
    assert values(server, server.names[1]) == ["one"]
    assert kafka.committed == ["one"]


def test_records_that_are_kept_for_a_replay_are_in_the_chosen_schema(server: SchemaServer) -> None:
    chosen = server.names[1]
    schema.upgrade_engine(server.engine, schema=chosen)
    user_metadata.create_all(server.engine)
    with dual_write(server.engine, ResumingKafka(), schema=chosen, two_phase="resume", replay=True) as made:
        write(made, "one")
        write(made, "two")
    with server.engine.connect() as connection:
        kept = connection.scalars(text(f"SELECT record_value FROM {chosen}.kafka_transaction_record")).all()
    assert [bytes(value) for value in kept] == [b"two"]


def test_the_command_line_takes_the_schema(server: SchemaServer) -> None:
    url = server.engine.url.render_as_string(hide_password=False)
    assert db.upgrade(url, schema=server.names[0]) == db.current(url, schema=server.names[0])
    assert db.current(url) is None
    assert db.downgrade(url, "base", schema=server.names[0]) is None
    assert server.tables(server.names[0]) == {VERSION_TABLE}


def test_missing_tables_are_reported_with_the_schema(server: SchemaServer, kafka: FakeKafka) -> None:
    made = dual_write(server.engine, kafka, schema=server.names[0])
    with pytest.raises(DatabaseNotReadyError, match=f"--schema {server.names[0]}$"):
        made.recover()
    made.close()


def test_the_printed_statements_name_the_schema() -> None:
    printed = schema.statements("postgresql", schema="ours")
    assert "CREATE TABLE ours.kafka_transaction_state" in printed
    assert "ALTER TABLE ours.kafka_transaction_state ADD COLUMN first_record" in printed
    assert f"ours.{VERSION_TABLE}" in printed


@pytest.mark.parametrize("wrong", ["", 7])
def test_an_invalid_schema_is_refused(server: SchemaServer, kafka: FakeKafka, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="name the schema that dualwrite's tables are in"):
        dual_write(server.engine, kafka, schema=wrong)


def test_sqlite_has_no_schemas(tmp_path: Path, kafka: FakeKafka) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    with pytest.raises(ConfigurationError, match="SQLite has no schemas"):
        dual_write(engine, kafka, schema="main")
    engine.dispose()


def test_the_outcomes_of_an_engine_are_found_where_its_tables_are(server: SchemaServer) -> None:
    engine = server.engine.execution_options(schema_translate_map={None: server.names[0]})
    schema.upgrade_engine(engine)
    assert outcomes(engine) == []
    with pytest.raises(DatabaseNotReadyError):
        outcomes(server.engine)


@pytest.mark.postgresql
def test_tables_that_the_session_and_a_listener_find_in_two_schemas_are_refused(
    postgresql_url: str, kafka: FakeKafka
) -> None:
    server = SchemaServer(postgresql_url)
    for name in (None, server.names[0]):
        schema.upgrade_engine(server.engine, schema=name)
    engine = create_engine(server.url)
    event.listen(engine, "begin", lambda connection: server.switch(connection, server.names[0]))
    with dual_write(engine, kafka) as made, pytest.raises(ConfigurationError, match=r"'public'.* and in 'tenant_a'"):
        made.recover()
    with dual_write(engine, kafka, schema=server.names[0]) as made:
        made.recover()
    engine.dispose()
    server.close()


@pytest.mark.postgresql
def test_a_temporary_table_of_the_same_name_is_not_the_librarys(postgresql_url: str, kafka: FakeKafka) -> None:
    engine = create_engine(postgresql_url)
    schema.upgrade_engine(engine)
    user_metadata.create_all(engine)

    @event.listens_for(engine, "connect")
    def shadow(connection: Any, _: Any) -> None:
        connection.cursor().execute("CREATE TEMPORARY TABLE kafka_transaction_state (nothing int)")
        connection.commit()

    engine.dispose()
    with dual_write(engine, kafka) as made:
        write(made, "one")
    assert kafka.committed == ["one"]
    engine.dispose()


@pytest.fixture
def with_another_path(postgresql_url: str) -> Iterator[Engine]:
    """A login whose search_path leads past the schema that has the library's tables."""
    engine = create_engine(postgresql_url)
    schema.upgrade_engine(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA app")
        connection.exec_driver_sql(
            f'ALTER ROLE CURRENT_USER IN DATABASE "{engine.url.database}" SET search_path TO app, other'
        )
    engine.dispose()
    yield engine
    engine.dispose()


@pytest.mark.postgresql
def test_a_second_set_of_tables_is_made_only_in_a_schema_that_was_named(with_another_path: Engine) -> None:
    url = with_another_path.url.render_as_string(hide_password=False)
    with pytest.raises(
        ConfigurationError, match=r"'public' has dualwrite's tables, .* in 'app'.* --schema public"
    ) as raised:
        schema.upgrade_engine(with_another_path)
    assert "\n" not in str(raised.value)
    assert inspect(with_another_path).get_table_names("app") == []
    with pytest.raises(ConfigurationError, match="--schema app"):
        db.upgrade(url)
    assert db.upgrade(url, schema="public") == db.upgrade(url, schema="app")
    assert set(inspect(with_another_path).get_table_names("app")) == OURS
    schema.upgrade_engine(with_another_path)  # there they are


@pytest.mark.postgresql
def test_a_migration_makes_a_second_set_of_tables_only_in_a_schema_that_was_named(with_another_path: Engine) -> None:
    with with_another_path.connect() as connection:
        op = Operations(MigrationContext.configure(connection))
        with pytest.raises(ConfigurationError, match=r"'public' has dualwrite's tables, .* in 'app'"):
            schema.upgrade(op, HEAD)
        assert inspect(connection).get_table_names("app") == []
        schema.upgrade(op, HEAD, schema="app")
        connection.commit()
    assert set(inspect(with_another_path).get_table_names("app")) == OURS


@pytest.mark.postgresql
def test_tables_that_the_login_may_not_read_are_another_applications(with_another_path: Engine) -> None:
    with with_another_path.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE stranger")
        connection.exec_driver_sql("GRANT ALL ON SCHEMA app TO stranger")
    stranger = create_engine(with_another_path.url)
    event.listen(stranger, "begin", lambda connection: connection.exec_driver_sql("SET LOCAL ROLE stranger"))
    schema.upgrade_engine(stranger)
    stranger.dispose()
    assert set(inspect(with_another_path).get_table_names("app")) == OURS
    with with_another_path.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY stranger")
        connection.exec_driver_sql("DROP ROLE stranger")
