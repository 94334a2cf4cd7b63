"""MariaDB Galera: what one node has decided another one knows, and recovers; two nodes at once end in conflicts."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, create_engine, insert, make_url

from dualwrite import DualWrite, Transaction
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.operations.doctor import examine
from dualwrite.testing.kafka import KafkaBroker
from tests.conftest import missing
from tests.support.coordinator.event_table import events, expire_leases, ready_engine, stored_values
from tests.support.servers.galera import can_run, cluster

pytestmark = [pytest.mark.mariadb, pytest.mark.slow]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """The URLs of the same database on both nodes."""
    if not can_run():
        missing("Galera", "a test starts a cluster of two nodes with rsync")
    with cluster() as (first, second):
        urls = [make_url(server.url).set(database="test").render_as_string() for server in (first, second)]
        ready_engine(urls[0]).dispose()
        yield urls[0], urls[1]


@pytest.fixture
def engines(servers: tuple[str, str]) -> Iterator[list[Engine]]:
    made = [create_engine(url, pool_size=20) for url in servers]
    with made[0].begin() as connection:
        connection.exec_driver_sql("DELETE FROM events")
    yield made
    for engine in made:
        engine.dispose()


@pytest.fixture
def name() -> str:
    return f"a{uuid.uuid4().hex[:8]}"


def values(broker: KafkaBroker, topic: str) -> list[str]:
    return sorted(str(record.value, "utf-8") for record in broker.read(topic) if record.value is not None)


@pytest.mark.parametrize(("step", "left"), [("COMMIT_KAFKA", ["one"]), ("COMMIT_DATABASE", [])])
def test_a_dead_processs_unit_on_one_node_is_recovered_on_the_other(
    engines: list[Engine], broker: KafkaBroker, name: str, step: str, left: list[str]
) -> None:
    topic = broker.create_topic()
    dead: list[str] = []

    def observe(at: str) -> None:
        if dead or at == step:
            dead.append(at)
            raise SystemExit

    def write(dual_write: DualWrite, value: str) -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=value))
            tx.produce(topic, value=value)

    dying = DualWrite(engines[0], broker.client_config, application=name, on_step=observe)
    with pytest.raises(SystemExit):
        write(dying, "one")
    manager_of(dying).process.pool.heartbeat.stop(0)
    manager_of(dying).process.sweeper.stop(0)
    expire_leases(engines[1])
    with DualWrite(engines[1], broker.client_config, application=name) as survivor:
        survivor.recover()
        write(survivor, "two")
        assert survivor.outcomes() == []
    assert sorted(stored_values(engines[0])) == values(broker, topic) == sorted([*left, "two"])


def test_processes_on_both_nodes_at_once_leave_both_sides_equal(
    engines: list[Engine], broker: KafkaBroker, name: str
) -> None:
    topic = broker.create_topic()
    processes = [DualWrite(engine, broker.client_config, application=name, pool_size=8) for engine in engines]

    def write_on(dual_write: DualWrite, value: str) -> None:
        @dual_write.transactional(retries=9)
        def write(tx: Transaction) -> None:
            tx.execute(insert(events).values(value=value))
            tx.produce(topic, value=value)

        write()

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(write_on, processes[number % 2], str(number)) for number in range(60)]:
            done.result()
    assert [dual_write.outcomes() for dual_write in processes] == [[], []]
    for dual_write in processes:
        dual_write.close()
    assert sorted(stored_values(engines[0])) == values(broker, topic) == sorted(map(str, range(60)))


def test_the_doctor_says_that_connections_go_to_one_node(engines: list[Engine], broker: KafkaBroker) -> None:
    said = [
        finding for finding in examine(engines[0], broker.client_config) if finding.message.startswith("wsrep_on = ON")
    ]
    assert [finding.advice for finding in said] == [
        "send all connections of an application to the same node of the Galera cluster, as long as that node works"
    ]
