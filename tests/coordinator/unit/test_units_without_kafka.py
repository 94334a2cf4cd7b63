"""Units of work that begin while no broker runs: they need none, unless they produce."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.exc import IntegrityError

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.kafka.refusal import kafka_refusal
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.crash.world import free_port
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import create_topic, visible

REFUSED = "no broker accepted a connection as this unit of work began"


@pytest.fixture
def address() -> str:
    """Of a broker that does not run yet."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def dual_write(engine: Engine, address: str) -> Iterator[DualWrite]:
    with DualWrite(engine, {"bootstrap.servers": address}, application="orders", pool_size=1) as made:
        yield made


def write_row(tx: Transaction) -> None:
    tx.execute(insert(events).values(value="one"))


def test_a_unit_without_records_asks_kafka_for_nothing(dual_write: DualWrite, engine: Engine) -> None:
    for value in ("one", "two"):
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=value))
    assert stored_values(engine) == ["one", "two"]
    assert (dual_write.counters.committed, dual_write.counters.recoveries) == (2, 0)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_not_even_where_it_reads_a_snapshot(
    request: pytest.FixtureRequest, database: str, level: str, address: str
) -> None:
    engine = ready_engine(request.getfixturevalue(f"{database}_url"), isolation_level=level)
    config = {"bootstrap.servers": address}
    with DualWrite(engine, config, application="orders") as dual_write, dual_write.transaction() as tx:
        write_row(tx)
    assert stored_values(engine) == ["one"]
    engine.dispose()


@pytest.mark.parametrize("catches", [True, False])
def test_a_record_rolls_the_unit_back_with_an_error_that_says_why(
    dual_write: DualWrite, engine: Engine, catches: bool
) -> None:
    def act(tx: Transaction) -> None:
        write_row(tx)
        if catches:
            with pytest.raises(KafkaUnavailableError):
                tx.produce("events", value="one")
        else:
            tx.produce("events", value="one")

    with pytest.raises(KafkaUnavailableError, match=f"{REFUSED}.*Connection refused") as raised:  # noqa: SIM117
        with dual_write.transaction() as tx:
            act(tx)
    assert raised.value.retriable
    assert stored_values(engine) == []
    assert dual_write.counters.rolled_back == 1


def test_an_error_of_the_block_is_the_users(dual_write: DualWrite, engine: Engine) -> None:
    def act(tx: Transaction) -> None:
        write_row(tx)
        write_row(tx)

    with pytest.raises(IntegrityError), dual_write.transaction() as tx:
        act(tx)
    assert stored_values(engine) == []


def test_a_unit_can_have_records_as_soon_as_the_broker_runs(
    sqlite_engine: Engine, tmp_path: Path, address: str
) -> None:
    config = {"bootstrap.servers": address}
    with DualWrite(sqlite_engine, config, application="orders", pool_size=1) as dual_write:
        with dual_write.transaction() as tx:
            write_row(tx)
        with ForkedBroker(tmp_path / "broker", listen=address):
            create_topic(address, "events", 1)
            with dual_write.transaction() as tx:
                tx.execute(insert(events).values(value="two"))
                tx.produce("events", value="two")
            assert visible(address, "events") == [b"two"]
            assert stored_values(sqlite_engine) == ["one", "two"]
            assert dual_write.close() is None


def test_it_is_run_again_by_retries(sqlite_engine: Engine, tmp_path: Path, address: str) -> None:
    brokers: list[EmbeddedBroker] = []
    with DualWrite(sqlite_engine, {"bootstrap.servers": address}, application="orders", pool_size=1) as dual_write:

        @dual_write.transactional(retries=1)
        def put(tx: Transaction) -> None:
            try:
                tx.produce("events", value="one")
            except KafkaUnavailableError:
                brokers.append(ForkedBroker(tmp_path / "broker", listen=address))
                brokers[0].start()
                create_topic(address, "events", 1)
                raise
            write_row(tx)

        try:
            put()
            assert visible(address, "events") == [b"one"]
        finally:
            dual_write.close()
            brokers[0].stop()
    assert stored_values(sqlite_engine) == ["one"]


def test_a_broker_that_is_silent_refuses_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"127.0.0.1:{server.getsockname()[1]}"
        assert kafka_refusal({"bootstrap.servers": silent}) is None
        down = f"127.0.0.1:{free_port()}"
        assert kafka_refusal({"bootstrap.servers": f"{down},{silent}"}) is None
        refusal = kafka_refusal({"bootstrap.servers": f"{down},no-such-host.invalid:9092,no..host:9092"})
        assert refusal is not None
        assert down in str(refusal)
        assert "no-such-host.invalid" in str(refusal)
        assert "no..host:9092: " in str(refusal), "no host can have this name"


def test_close_and_wait_idle_count_it(sqlite_engine: Engine, address: str) -> None:
    dual_write = DualWrite(sqlite_engine, {"bootstrap.servers": address}, application="orders", pool_size=1)
    is_idle: list[bool] = []
    with dual_write.transaction() as tx:
        write_row(tx)
        looking = threading.Thread(target=lambda: is_idle.append(dual_write.wait_idle(0)))
        looking.start()
        looking.join()
    assert is_idle == [False]
    assert dual_write.wait_idle(0)
    dual_write.close()
    with pytest.raises(InvalidTransactionStateError, match="this DualWrite is closed"):
        dual_write.transaction().__enter__()


def test_a_commit_past_the_library_goes_on_record(sqlite_engine: Engine, address: str) -> None:
    def act(tx: Transaction) -> None:
        write_row(tx)
        connection: Any = tx.connection.connection
        connection.commit()

    with DualWrite(sqlite_engine, {"bootstrap.servers": address}, application="orders") as dual_write:
        with pytest.raises(InvalidTransactionStateError), dual_write.transaction() as tx:
            act(tx)
        assert [(each.transactional_id, each.outcome) for each in dual_write.outcomes()] == [
            ("orders-0", Outcome.HEURISTIC_HAZARD)
        ]


def test_an_async_unit_without_records_asks_kafka_for_nothing(place: AsyncPlace, address: str) -> None:
    async def fail(dual_write: AsyncDualWrite) -> None:
        async with dual_write.transaction() as tx:
            await tx.execute(insert(events).values(value="two"))
            await tx.produce("events", "two")

    async def main() -> None:
        async with place.engine() as engine:
            config = {"bootstrap.servers": address}
            async with AsyncDualWrite(engine, config, application="orders") as dual_write:
                async with dual_write.transaction() as tx:
                    await tx.execute(insert(events).values(value="one"))
                with pytest.raises(KafkaUnavailableError, match=REFUSED):
                    await fail(dual_write)

    run(main())
    assert stored_values(place.seen) == ["one"]
