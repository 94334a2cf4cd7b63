"""What a unit of work costs in round trips, to the database and to Kafka. No times: each of these numbers is exact."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert

from dualwrite import DualWrite
from dualwrite.wire.apis import ApiKey
from tests.support.coordinator.event_table import CONFIG, events, ready_engine
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.forked import ForkedBroker
from tests.support.servers.databases import SERVERS
from tests.support.servers.holding_proxy import HoldingProxy
from tests.support.servers.round_trip_proxy import TurnsProxy

UNITS = 10
ONCE_IN_A_WHILE = (ApiKey.API_VERSIONS, ApiKey.FIND_COORDINATOR, ApiKey.METADATA)
"""Requests of a new connection, and of one that looks whether the cluster has changed."""
QUIET = 3600.0
"""A lease_timeout that lets no heartbeat come in between."""


def write(dual_write: DualWrite, value: str) -> None:
    """A unit of one row and one record."""
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value=value)


def warm_up(dual_write: DualWrite) -> None:
    """psycopg prepares a statement when it has seen it five times."""
    for number in range(UNITS):
        write(dual_write, f"warm up {number}")


@pytest.fixture(params=SERVERS)
def proxy(request: pytest.FixtureRequest) -> Iterator[TurnsProxy]:
    made = TurnsProxy(str(request.getfixturevalue(f"{request.param}_url")))
    yield made
    made.close()


def test_a_unit_adds_few_round_trips_to_those_of_its_rows(proxy: TurnsProxy, kafka: FakeKafka) -> None:
    """PostgreSQL: the state's UPDATE, beside BEGIN, the INSERT and COMMIT, which a plain transaction has, too. MariaDB:
    the savepoint and its release as well; it needs no BEGIN, and SQLAlchemy's pool sends it a ROLLBACK."""
    engine = ready_engine(proxy.url.render_as_string(hide_password=False))
    with DualWrite(
        engine, CONFIG, application="units", participant=kafka.participant, lease_timeout=QUIET
    ) as dual_write:
        warm_up(dual_write)
        before = proxy.turns
        for number in range(UNITS):
            write(dual_write, f"unit {number}")
        of_units = proxy.turns - before
    assert len(kafka.committed) == 2 * UNITS
    before = proxy.turns
    for number in range(UNITS):
        with engine.begin() as connection:
            connection.execute(insert(events).values(value=f"plain {number}"))
    of_rows = proxy.turns - before
    expected = {"postgresql": (4, 3), "mysql": (6, 3)}[engine.dialect.name]
    assert (of_units, of_rows) == (expected[0] * UNITS, expected[1] * UNITS)
    engine.dispose()


def test_a_unit_takes_six_statements_on_sqlite(sqlite_url: str, kafka: FakeKafka) -> None:
    statements: list[str] = []
    ready_engine(sqlite_url).dispose()
    engine = create_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def trace(connection: Any, _: Any) -> None:
        connection.set_trace_callback(statements.append)

    with DualWrite(
        engine, CONFIG, application="units", participant=kafka.participant, lease_timeout=QUIET
    ) as dual_write:
        write(dual_write, "first")
        statements.clear()
        write(dual_write, "second")
        found = list(statements)
    assert [statement.split("(")[0].split(" SET")[0].strip() for statement in found] == [
        "BEGIN IMMEDIATE",
        "SAVEPOINT dualwrite_unit",
        "INSERT INTO events",
        "RELEASE dualwrite_unit",
        "UPDATE kafka_transaction_state",
        "COMMIT",
    ]
    engine.dispose()


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("producer", "requests"),
    [
        ("native", (ApiKey.PRODUCE, ApiKey.END_TXN)),
        (
            "librdkafka",
            (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.END_TXN),
        ),
    ],
)
def test_a_unit_takes_few_kafka_requests(
    tmp_path: Path, sqlite_url: str, producer: str, requests: tuple[ApiKey, ...]
) -> None:
    engine = ready_engine(sqlite_url)
    proxy = HoldingProxy()
    at = f"127.0.0.1:{proxy.port}"
    with ForkedBroker(tmp_path / "broker", config={"advertised.listeners": f"PLAINTEXT://{at}"}) as broker:
        proxy.broker_port = int(broker.bootstrap_servers.rpartition(":")[2])
        config = {"bootstrap.servers": at, "topic.metadata.refresh.interval.ms": 3_600_000}
        with DualWrite(engine, config, application="units", producer=producer, lease_timeout=QUIET) as dual_write:
            warm_up(dual_write)
            proxy.seen.clear()
            for number in range(UNITS):
                write(dual_write, f"unit {number}")
            asked = {api: count for api, count in proxy.seen.items() if api not in ONCE_IN_A_WHILE}
            assert asked == dict.fromkeys(requests, UNITS)
    proxy.close()
    engine.dispose()
