"""PostgreSQL's synchronous_commit: what a unit of work makes of it, and what the doctor says of the rest."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.event import listen
from sqlalchemy.pool import NullPool

from dualwrite import DualWrite
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.postgresql.database import Postgresql
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import CONFIG, events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import write_unit
from tests.support.servers.postgresql import PostgreSQL
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgresql

SECONDS = 30


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    engine = ready_engine(postgresql_url)
    yield engine
    engine.dispose()


def let_each_connection_say(engine: Engine, level: str) -> None:
    def connected(connection: DBAPIConnection, _: object) -> None:
        connection.cursor().execute(f"SET synchronous_commit = {level}")
        connection.commit()

    listen(engine, "connect", connected)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "stored"),
    [
        ("off", "on"),
        ("local", "local"),
        ("remote_write", "remote_write"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ],
)
def test_a_decision_is_durable_on_its_server_and_the_rest_is_the_applications_choice(
    engine: Engine, broker: KafkaBroker, dualwrite_application: str, level: str, stored: str
) -> None:
    let_each_connection_say(engine, level)
    topic = broker.create_topic()
    shown = []

    def observe(step: str) -> None:
        if step == "COMMIT_DATABASE":
            shown.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar_one())

    with DualWrite(engine, broker.client_config, application=dualwrite_application, on_step=observe) as dual_write:
        with dual_write.transaction() as tx:
            connection = tx.connection
            tx.execute(insert(events).values(value="one"))
            tx.produce(topic, value="one")
        with engine.connect() as another:
            assert another.exec_driver_sql("SHOW synchronous_commit").scalar_one() == level
    assert shown == [stored]


OWN = "SELECT current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout')"


def test_a_transaction_of_the_librarys_own_is_durable_and_ends_with_its_host(engine: Engine) -> None:
    """It may put a heuristic outcome on record, and it holds the lock of a row."""
    let_each_connection_say(engine, "off")
    store = SqlDecisionStore(engine)
    with store.transaction(commit=True) as connection:
        assert connection.exec_driver_sql(OWN).one() == ("on", "5min")
        server_process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() == server_process, "the same session"
        assert connection.exec_driver_sql(OWN).one() == ("off", "0"), "it is the user's again"


def standby_is_named(engine: Engine, name: str) -> None:
    """Let the server wait for a standby, which it has none of: whoever commits at ``on`` would wait for ever."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        patience = time.monotonic() + SECONDS
        while connection.exec_driver_sql("SHOW synchronous_standby_names").scalar_one() != name:
            assert time.monotonic() < patience


@pytest.mark.slow
def test_a_commit_that_a_failover_can_undo_is_found_by_the_doctor(own_postgresql: PostgreSQL) -> None:
    engine = create_engine(own_postgresql.url)

    def found(level: str) -> list[str]:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SET synchronous_commit = {level}")
            durability_gaps = Postgresql().durability_gaps(connection)
            return [str(gap) for gap in durability_gaps if gap.setting.startswith("synchronous_commit")]

    assert [found(level) for level in ("local", "remote_write")] == [[], []], "there is no standby to wait for"
    standby_is_named(engine, "standby")
    assert [found(level) for level in ("off", "on", "remote_apply")] == [[], [], []]
    (local,), (remote_write,) = found("local"), found("remote_write")
    assert local.startswith("synchronous_commit = local: a COMMIT succeeds before a standby has it,")
    assert "before a standby has it on its disk, so a failover can undo a decision" in remote_write
    engine.dispose()


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.mark.slow
def test_a_commit_that_no_standby_has_is_no_decision_after_a_restart(own_postgresql: PostgreSQL) -> None:
    """The server that was restarted while the COMMIT waited shows the row. If its standby took its place, the decision
    would be gone, after Kafka had committed."""
    engine, kafka = ready_engine(own_postgresql.url), FakeKafka()
    is_up = Event()

    def observe(step: str) -> None:
        assert step != "READ_DECISION" or is_up.wait(SECONDS)

    dual_write = DualWrite(
        engine, CONFIG, application="orders", participant=kafka.participant, on_step=observe, lease_timeout=3600
    )
    seen = create_engine(own_postgresql.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)

    def is_waiting() -> bool:
        with seen.connect() as connection:
            return connection.exec_driver_sql(WAITING).scalar_one() == 1

    write_unit(dual_write, "one")
    standby_is_named(engine, "standby")
    with ThreadPoolExecutor(1) as thread:
        unit = thread.submit(write_unit, dual_write, "two")
        assert eventually(is_waiting)
        own_postgresql.kill()
        own_postgresql.start()
        is_up.set()
        assert eventually(lambda: unit.done() or is_waiting())
        assert kafka.committed == ["one"]
        standby_is_named(seen, "")
        unit.result(SECONDS)
    assert stored_values(engine) == kafka.committed == ["one", "two"]
    dual_write.close()
    engine.dispose()
