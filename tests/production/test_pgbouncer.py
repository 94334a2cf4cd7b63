"""PgBouncer: transaction pooling works where the driver prepares nothing; statement pooling is refused."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from dualwrite import AsyncDualWrite, DatabaseUnavailableError, DualWrite, DualWriteError, InDoubtError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.dialects.postgresql.database import Postgresql
from dualwrite.operations.doctor import examine
from dualwrite.operations.findings import Level
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.crash.world import CrashWorld
from tests.support.servers.pgbouncer import PgBouncer

pytestmark = pytest.mark.postgresql

Bounce = Callable[..., PgBouncer]
STEPS = ["PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"]


@pytest.fixture
def seen(postgresql_url: str) -> Iterator[Engine]:
    """The database without the pooler, with all tables."""
    engine = ready_engine(postgresql_url)
    yield engine
    engine.dispose()


@pytest.fixture
def name() -> str:
    return f"a{uuid.uuid4().hex[:8]}"


def values(broker: KafkaBroker, topic: str) -> list[str]:
    return [str(record.value, "utf-8") for record in broker.read(topic) if record.value is not None]


@pytest.mark.slow
def test_units_of_many_threads_share_few_connections(
    pgbouncer: Bounce, seen: Engine, broker: KafkaBroker, name: str
) -> None:
    topic = broker.create_topic()
    engine = pgbouncer(size=3).engine(pool_size=20)

    def write(number: int) -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=str(number)))
            tx.produce(topic, value=str(number))

    with DualWrite(engine, broker.client_config, application=name) as dual_write, ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(write, range(80)))) == 80
    engine.dispose()
    assert sorted(stored_values(seen)) == sorted(values(broker, topic)) == sorted(map(str, range(80)))


@pytest.mark.slow
@pytest.mark.crash
def test_an_application_behind_it_that_is_killed_at_any_step_is_recovered(
    pgbouncer: Bounce, postgresql_url: str, tmp_path: Path
) -> None:
    world = CrashWorld(tmp_path, postgresql_url, "native")
    try:
        url = pgbouncer(size=3).url.render_as_string(hide_password=False)
        world.task = replace(world.task, url=url, module="tests.support.production.pooled_application", threads=4)
        for step in STEPS:
            world.kill_at(step, unit=9)
        for units in (5, 10, 15):
            assert world.run(world.task, kill_after_units=units) < 0
        world.recover()
        assert world.judge() == []
    finally:
        world.close()


def test_an_asynchronous_commit_is_turned_on_for_the_unit_and_for_no_other_client(
    pgbouncer: Bounce, seen: Engine, broker: KafkaBroker, name: str
) -> None:
    """All settings are transaction-local: the next client on the same connection finds none of them."""
    topic = broker.create_topic()
    with seen.connect() as connection:
        database = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f"ALTER DATABASE {database} SET synchronous_commit = off"))
        connection.commit()
    engine = pgbouncer(size=1).engine(poolclass=NullPool)
    within: list[str] = []

    def observe(step: str) -> None:
        if step == "COMMIT_DATABASE":
            within.append(current[0].exec_driver_sql("SHOW synchronous_commit").scalar_one())

    current: list[Any] = []
    shown = "SELECT setting FROM pg_settings WHERE source = 'session' AND name <> 'application_name'"
    with DualWrite(engine, broker.client_config, application=name, on_step=observe) as dual_write:
        with dual_write.transaction() as tx:
            current.append(tx.connection)
            tx.execute(insert(events).values(value="one"))
            tx.produce(topic, value="one")
        with engine.connect() as other:
            assert other.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"
            assert other.exec_driver_sql(shown).all() == []
            assert other.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").scalar() == 0
    engine.dispose()
    assert within == ["on"]


def test_a_commit_of_the_drivers_own_is_noticed_on_whatever_connection_the_pooler_goes_on(
    pgbouncer: Bounce, seen: Engine, broker: KafkaBroker, name: str
) -> None:
    """The end of the transaction frees its connection to PostgreSQL. Another client takes it, and the unit cannot ask
    there any more what became of its rows."""
    topic = broker.create_topic()
    server = pgbouncer(size=4)
    engine, others = server.engine(), server.engine(poolclass=NullPool)
    dual_write = DualWrite(engine, broker.client_config, application=name)
    with dual_write, others.connect() as other:

        def write() -> None:
            with dual_write.transaction() as tx:
                tx.execute(insert(events).values(value="one"))
                tx.produce(topic, value="one")
                served_by = tx.scalar(text("SELECT pg_backend_pid()"))
                tx.connection.connection.driver_connection.commit()  # type: ignore[union-attr]
                assert other.exec_driver_sql("SELECT pg_backend_pid()").scalar() == served_by, "it is not free"

        with pytest.raises(DualWriteError, match="was ended inside its block"):
            write()
        assert [outcome.outcome for outcome in dual_write.outcomes()] == [Outcome.HEURISTIC_HAZARD], "and on record"
    engine.dispose()
    assert (stored_values(seen), values(broker, topic)) == (["one"], [])


def asyncpg_engine(server: PgBouncer) -> AsyncEngine:
    """As SQLAlchemy's page on asyncpg has it for PgBouncer."""
    return create_async_engine(
        server.url.set(drivername="postgresql+asyncpg"),
        poolclass=NullPool,
        connect_args={
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"__asyncpg_{uuid.uuid4()}__",
        },
    )


@pytest.mark.slow
def test_asyncpg_works_with_names_of_its_own_for_each_statement(
    pgbouncer: Bounce, seen: Engine, broker: KafkaBroker, name: str
) -> None:
    topic = broker.create_topic()
    server = pgbouncer(size=3)

    async def main() -> None:
        engine = asyncpg_engine(server)
        async with AsyncDualWrite(engine, broker.client_config, application=name) as dual_write:

            async def write(number: int) -> None:
                async with dual_write.transaction() as tx:
                    await tx.execute(insert(events).values(value=str(number)))
                    await tx.produce(topic, value=str(number))

            await asyncio.gather(*(write(number) for number in range(40)))
        await engine.dispose()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert sorted(stored_values(seen)) == sorted(values(broker, topic)) == sorted(map(str, range(40)))


def test_statement_pooling_is_refused_by_the_first_unit_and_by_the_doctor(
    pgbouncer: Bounce, seen: Engine, broker: KafkaBroker, name: str
) -> None:
    topic = broker.create_topic()
    engine = pgbouncer("statement").engine()
    dual_write = DualWrite(engine, broker.client_config, application=name)
    with pytest.raises(DatabaseUnavailableError, match="statement pooling"), dual_write.transaction():
        raise AssertionError("begun")
    dual_write.close(timeout=0)
    failed = [finding.message for finding in examine(engine, broker.client_config) if finding.level is Level.FAILURE]
    engine.dispose()
    assert any("statement pooling" in message for message in failed)
    assert stored_values(seen) == values(broker, topic) == []


def pooler_findings(engine: Engine, broker: KafkaBroker) -> list[str]:
    return [finding.message for finding in examine(engine, broker.client_config) if finding.check == "pooler"]


@pytest.mark.slow
def test_statements_that_psycopg_would_prepare_behind_it_are_warned_of(
    pgbouncer: Bounce, seen: Engine, broker: KafkaBroker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = pgbouncer()
    preparing, unprepared = server.engine(connect_args={}), server.engine()
    for engine in (seen, unprepared):
        assert pooler_findings(engine, broker) == []
    (said,) = pooler_findings(preparing, broker)
    assert said.startswith("prepare_threshold = 5: a pooler stands in front of PostgreSQL")
    caplog.clear()
    for engine in (seen, unprepared, preparing):
        assert "a pooler stands" not in caplog.text
        with DualWrite(engine, broker.client_config, application=name) as dual_write, dual_write.transaction():
            pass
        engine.dispose()
    assert "the connection to the database has prepare_threshold = 5: a pooler stands" in caplog.text


@pytest.mark.slow
def test_names_of_statements_that_asyncpg_shares_behind_it_are_warned_of(pgbouncer: Bounce, seen: Engine) -> None:
    server = pgbouncer()

    async def pooling(engine: AsyncEngine) -> list[str]:
        async with engine.connect() as connection:
            found = await connection.run_sync(lambda blocking: Postgresql().pooling(blocking))
        await engine.dispose()
        return [timeout.setting for timeout in found]

    plain = seen.url.set(drivername="postgresql+asyncpg")
    shared = create_async_engine(server.url.set(drivername="postgresql+asyncpg"), poolclass=NullPool)
    assert asyncio.run(pooling(shared)) == ["prepared_statement_name_func is not set"]
    assert asyncio.run(pooling(asyncpg_engine(server))) == []
    assert asyncio.run(pooling(create_async_engine(plain))) == []


@pytest.mark.slow
def test_statements_that_psycopg_prepares_fail_and_no_unit_is_in_one_place_only(
    pgbouncer: Bounce, seen: Engine, broker: KafkaBroker, name: str
) -> None:
    """Two clients by turns on one connection: each has prepared what the other calls by the same name."""
    topic = broker.create_topic()
    server = pgbouncer(size=1)
    engines = [server.engine(connect_args={}, pool_size=1) for _ in range(2)]
    processes = [DualWrite(each, broker.client_config, application=name) for each in engines]
    errors: list[Exception] = []
    for number in range(60):
        try:
            with processes[number % 2].transaction() as tx:
                tx.execute(insert(events).values(value=str(number)))
                tx.produce(topic, value=str(number))
        except (DBAPIError, DatabaseUnavailableError, InDoubtError) as error:
            errors.append(error)
    for dual_write, engine in zip(processes, engines, strict=True):
        dual_write.close()
        engine.dispose()
    with DualWrite(seen, broker.client_config, application=name) as direct:
        direct.recover()
    assert any("prepared statement" in str(error) for error in errors)
    assert sorted(stored_values(seen)) == sorted(values(broker, topic))
