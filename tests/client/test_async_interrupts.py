"""The asyncio driver when an exception from outside, such as a signal handler's, strikes in its middle."""

import asyncio
import warnings
from typing import Any

import pytest

from dualwrite.client.drivers import aio as asynchronous
from dualwrite.client.drivers.aio import AsyncDriver
from dualwrite.client.drivers.connection_log import ConnectionLog
from dualwrite.errors import KafkaUnavailableError
from dualwrite.wire.apis import ApiKey
from tests.support.client.driving import AskingEngine, echo, end_txn, run_in_loop, settings
from tests.support.client.scripted_broker import HANG_UP, scripted

PATIENCE = 20.0


def test_an_interrupt_during_commands_closes_connections_and_fails_the_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with scripted() as first, scripted() as second:
        engine = AskingEngine((first.endpoint, None), (second.endpoint, None))

        async def test(driver: AsyncDriver) -> None:
            with monkeypatch.context() as interrupted:
                interrupted.setattr(asynchronous, "AsyncioConnection", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    driver.pump()
            with pytest.raises(KafkaUnavailableError, match="interrupted"):
                await asyncio.wait_for(driver.wait(engine.operation), PATIENCE)
            assert engine.interruptions == 1
            assert not driver.connections
            await driver.wait(engine.ask((first.endpoint, None), (second.endpoint, None)))

        run_in_loop(engine, test)


@pytest.mark.parametrize("where", ["answered", "lost", "logged", "read"])
def test_an_interrupt_during_a_report_reaches_the_loops_runner_and_fails_the_operation(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted() as broker, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the transport that the interrupt left to its loop
        broker.answer(ApiKey.END_TXN, HANG_UP if where in ("lost", "logged") else echo)
        engine = AskingEngine((broker.endpoint, None))
        loop = asyncio.new_event_loop()
        driver = AsyncDriver(engine, settings())

        async def wait() -> Any:
            return await asyncio.wait_for(driver.wait(engine.operation), PATIENCE)

        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        try:
            loop.run_until_complete(wait())
            engine.ask((broker.endpoint, end_txn(1)))
            waiting = loop.create_task(wait())
            target, name = {
                "logged": (ConnectionLog, "lost"),
                "read": (next(iter(driver.connections.values())).node, "receive"),
            }.get(where, (engine, where))
            with monkeypatch.context() as patch:
                patch.setattr(target, name, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    loop.run_until_complete(waiting)
            assert engine.interruptions
            assert not driver.connections
            with pytest.raises(KafkaUnavailableError, match="interrupted"):
                loop.run_until_complete(waiting)
            broker.answer(ApiKey.END_TXN, echo)
            engine.ask((broker.endpoint, end_txn(2)))
            assert loop.run_until_complete(wait())[-1].producer_id == 2
            loop.run_until_complete(driver.close())
        finally:
            loop.close()
