"""``recover(wait=False)``: a service starts while Kafka is down, and what a predecessor has left is finished later."""

import asyncio
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError
from tests.support.coordinator.aio.async_dual_writes import LONG, AsyncPlace, run
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.usual_unit import write
from tests.support.crash.world import free_port
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import create_topic, visible
from tests.support.waiting import eventually


def dual_write_on(engine: Engine, address: str) -> DualWrite:
    return DualWrite(engine, {"bootstrap.servers": address}, application="orders", pool_size=1)


def leave_one_undecided(engine: Engine, address: str) -> None:
    """A unit that the database has committed, and whose process ends before Kafka has."""

    def end_the_process(step: str) -> None:
        if step == "COMMIT_KAFKA":
            raise SystemExit

    dying = DualWrite(
        engine, {"bootstrap.servers": address}, application="orders", pool_size=1, on_step=end_the_process
    )
    with pytest.raises(SystemExit), dying.transaction() as tx:
        write(tx, "one")
    dying.close(timeout=0)


def await_recovered(dual_write: DualWrite | AsyncDualWrite) -> None:
    deadline = time.monotonic() + LONG
    while not dual_write.is_recovered:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_recovery_goes_on_in_the_background_until_the_broker_runs(sqlite_engine: Engine, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with ForkedBroker(tmp_path / "broker", listen=address):
        create_topic(address, "events", 1)
        leave_one_undecided(sqlite_engine, address)
    with dual_write_on(sqlite_engine, address) as dual_write:
        assert dual_write.recover(wait=False) == {}
        assert not dual_write.is_recovered
        assert not dual_write.wait_idle(0)
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="two"))
        with ForkedBroker(tmp_path / "broker", listen=address):
            await_recovered(dual_write)
            assert visible(address, "events") == [b"one"]
            assert dual_write.wait_idle()
            dual_write.close()
    assert stored_values(sqlite_engine) == ["one", "two"]


def test_a_recovery_that_was_waited_for_is_one(sqlite_engine: Engine, broker: EmbeddedBroker) -> None:
    with dual_write_on(sqlite_engine, broker.bootstrap_servers) as dual_write:
        assert not dual_write.is_recovered
        dual_write.recover()
        assert dual_write.is_recovered


def test_close_ends_it(sqlite_engine: Engine) -> None:
    config = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "delivery.timeout.ms": 300, "request.timeout.ms": 200}
    dual_write = DualWrite(sqlite_engine, config, application="orders", pool_size=1)
    dual_write.recover(wait=False)
    assert not dual_write.wait_idle(0)
    dual_write.close(timeout=0)
    assert eventually(lambda: dual_write.wait_idle(0), bool)
    assert not dual_write.is_recovered


def test_it_is_refused_inside_a_unit(sqlite_engine: Engine) -> None:
    dual_write = dual_write_on(sqlite_engine, f"127.0.0.1:{free_port()}")
    with dual_write, dual_write.transaction(), pytest.raises(InvalidTransactionStateError, match="a unit of work is"):
        dual_write.recover(wait=False)


def test_it_goes_on_beside_an_event_loop(sqlite_place: AsyncPlace, broker: EmbeddedBroker) -> None:
    async def main() -> None:
        async with sqlite_place.engine() as engine:
            config = {"bootstrap.servers": broker.bootstrap_servers}
            async with AsyncDualWrite(engine, config, application="async-orders") as dual_write:
                assert await dual_write.recover(wait=False) == {}
                await asyncio.to_thread(await_recovered, dual_write)

    run(main())


def test_a_wrong_setting_ends_it_and_is_the_error_of_the_next_unit(
    sqlite_engine: Engine, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which only the cluster can tell: it is too old for the producer that was asked for."""
    monkeypatch.setattr(ControlPlane, "transaction_version", lambda _: 1)
    config = {"bootstrap.servers": broker.bootstrap_servers}
    with DualWrite(sqlite_engine, config, application="orders", pool_size=1, producer="native") as dual_write:
        dual_write.recover(wait=False)
        assert eventually(lambda: "orders-recovery: " in caplog.text, bool)
        assert eventually(lambda: dual_write.wait_idle(0), bool)
        assert not dual_write.is_recovered
        lines = [line for line in caplog.records if line.levelname in ("WARNING", "ERROR")]
        assert [(line.getMessage()[:64], line.exc_info) for line in lines] == [
            ("orders-recovery: the cluster's transaction.version is 1, and the", None)
        ]
        with pytest.raises(ConfigurationError, match=r"transaction\.version is 1"), dual_write.transaction():
            raise AssertionError
