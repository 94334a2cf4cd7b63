"""The asyncio driver alone: cancellation, loops, and that it leaves nothing behind."""

import asyncio
import gc
import select
import threading
import time
from typing import Any

import pytest

from dualwrite.client.config.settings import SaslSettings
from dualwrite.client.drivers.aio import AsyncDriver
from dualwrite.client.engine.contract import Operation
from dualwrite.client.net import asyncio_connection
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey
from tests.support.client.driving import (
    LOOPS,
    AskingEngine,
    NewLoop,
    ReportedEvent,
    echo,
    end_txn,
    run_in_loop,
    settings,
)
from tests.support.client.sasl_server import handshake_answer, sasl_answer
from tests.support.client.scripted_broker import SILENCE, scripted

PATIENCE = 20.0


def test_a_cancelled_wait_does_not_stop_the_operation() -> None:
    asked, answer_now = threading.Event(), threading.Event()

    def held(message: Any) -> Any:
        asked.set()
        assert answer_now.wait(PATIENCE)
        return echo(message)

    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, held)
        engine = AskingEngine((broker.endpoint, end_txn(7)))

        async def test(driver: AsyncDriver) -> None:
            waiting = asyncio.create_task(driver.wait(engine.operation))
            await asyncio.to_thread(asked.wait, PATIENCE)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not engine.operation.is_done
            answer_now.set()
            done = asyncio.get_running_loop().create_future()
            engine.operation.when_done(done.set_result)
            await asyncio.wait_for(done, PATIENCE)
            assert [answer.producer_id for answer in engine.operation.outcome()] == [7]

        run_in_loop(engine, test)


def test_several_tasks_may_wait_at_once_while_the_loop_serves_others() -> None:
    with scripted() as one, scripted() as other:
        for broker in (one, other):
            broker.answer(ApiKey.END_TXN, echo)
        first, second = AskingEngine((one.endpoint, end_txn(1))), AskingEngine((other.endpoint, end_txn(2)))

        async def test(driver: AsyncDriver) -> None:
            another = AsyncDriver(second, settings())
            answers = await asyncio.gather(driver.wait(first.operation), another.wait(second.operation))
            assert [answer.producer_id for (answer,) in answers] == [1, 2]
            await another.close()

        run_in_loop(first, test)


def test_a_driver_belongs_to_the_loop_that_it_was_first_used_in() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, end_txn()))
        driver = AsyncDriver(engine, settings())

        async def first() -> None:
            await driver.wait(engine.operation)
            await driver.close()

        asyncio.run(first())

        async def second() -> None:
            await driver.wait(engine.operation)

        with pytest.raises(InvalidTransactionStateError, match="another event loop"):
            asyncio.run(second())


def test_a_close_in_another_loop_leaves_the_driver_as_it_was() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, None))
        driver = AsyncDriver(engine, settings())

        async def wait() -> Any:
            return await driver.wait(engine.operation)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(wait())
        asyncio.run(asyncio.wait_for(driver.close(), PATIENCE))
        engine.ask((broker.endpoint, end_txn(3)))
        assert loop.run_until_complete(wait())[-1].producer_id == 3
        loop.run_until_complete(driver.close())
        loop.close()


def test_a_broken_engine_raises_in_every_waiting_task() -> None:
    class Breaking(AskingEngine):
        def answered(self, *_: Any) -> None:
            cancelled.cancel()  # its future is done, although the driver still has it
            raise ZeroDivisionError

    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = Breaking((broker.endpoint, end_txn()))
        cancelled: asyncio.Task[Any]

        async def test(driver: AsyncDriver) -> None:
            nonlocal cancelled
            reported: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
            cancelled = asyncio.create_task(driver.wait(Operation()))
            with pytest.raises(ZeroDivisionError):
                await driver.wait(engine.operation)
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert [type(error) for error in reported] == [ZeroDivisionError]

        run_in_loop(engine, test)


def test_waiting_calls_are_cancelled_when_the_driver_is_closed() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, SILENCE)
        engine = AskingEngine((broker.endpoint, end_txn()))

        async def test(driver: AsyncDriver) -> None:
            waiting = asyncio.create_task(driver.wait(engine.operation))
            await asyncio.sleep(0)
            await driver.close()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        run_in_loop(engine, test)


@LOOPS
def test_requests_are_answered_in_any_event_loop(new_loop: NewLoop) -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine(*((broker.endpoint, end_txn(number)) for number in range(5)))

        async def test(driver: AsyncDriver) -> None:
            assert [answer.producer_id for answer in await driver.wait(engine.operation)] == list(range(5))
            broker.hang_up()
            engine.operation = Operation()
            with pytest.raises(KafkaUnavailableError, match="closed the connection"):
                await driver.wait(engine.operation)

        run_in_loop(engine, test, new_loop)


def test_a_connection_whose_authentication_runs_out_is_lost_by_itself() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(lifetime_ms=50))
        engine = AskingEngine((broker.endpoint, None))

        async def test(driver: AsyncDriver) -> None:
            await driver.wait(engine.operation)
            engine.operation = Operation()
            with pytest.raises(KafkaUnavailableError, match="its authentication has run out"):
                await driver.wait(engine.operation)

        run_in_loop(engine, test, sasl=SaslSettings("PLAIN", "u", "p"))


def test_an_authentication_that_runs_out_takes_no_answer_away() -> None:
    answer_now = threading.Event()

    def held(message: Any) -> Any:
        assert answer_now.wait(PATIENCE)
        return echo(message)

    with scripted() as broker:
        broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
        broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(lifetime_ms=200))
        broker.answer(ApiKey.END_TXN, held)
        engine = AskingEngine((broker.endpoint, end_txn(3)))

        async def test(driver: AsyncDriver) -> None:
            waiting = asyncio.create_task(driver.wait(engine.operation))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.5)
            answer_now.set()
            assert [answer.producer_id for answer in await waiting] == [3]

        run_in_loop(engine, test, sasl=SaslSettings("PLAIN", "u", "p"))


def test_an_authentication_that_runs_out_leaves_the_other_connections_open() -> None:
    answer_now = threading.Event()

    class Enduring(AskingEngine):
        def lost(self, endpoint: Endpoint, *_: Any) -> None:
            self.told.append(ReportedEvent("lost", endpoint))
            answer_now.set()

    def held(message: Any) -> Any:
        assert answer_now.wait(PATIENCE)
        return echo(message)

    with scripted() as brief, scripted() as lasting:
        for broker, lifetime_ms in ((brief, 50), (lasting, 600_000)):
            broker.answer(ApiKey.SASL_HANDSHAKE, handshake_answer())
            broker.answer(ApiKey.SASL_AUTHENTICATE, sasl_answer(lifetime_ms=lifetime_ms))
        lasting.answer(ApiKey.END_TXN, held)
        engine = Enduring((brief.endpoint, None), (lasting.endpoint, end_txn(3)))

        async def test(driver: AsyncDriver) -> None:
            (answer,) = await driver.wait(engine.operation)
            assert answer.producer_id == 3
            assert list(driver.connections) == [lasting.endpoint]
            assert engine.interruptions == 0

        run_in_loop(engine, test, sasl=SaslSettings("PLAIN", "u", "p"))


def live(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_connections_that_were_closed_are_forgotten_while_the_driver_lives() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine()

        async def test(driver: AsyncDriver) -> None:
            for number in range(30):
                await driver.wait(engine.ask((broker.endpoint, end_txn(number))))
                engine.close(broker.endpoint)
                driver.pump()
            assert live(asyncio_connection.AsyncioConnection) < 15

        run_in_loop(engine, test)


def test_a_wait_that_has_ended_leaves_no_future_behind() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, None))

        async def test(driver: AsyncDriver) -> None:
            await driver.wait(engine.operation)
            before = live(asyncio.Future)
            for number in range(50):
                await driver.wait(engine.ask((broker.endpoint, end_txn(number))))
            assert live(asyncio.Future) - before < 25

        run_in_loop(engine, test)


def test_a_closed_driver_wakes_its_engine_no_more() -> None:
    engine = AskingEngine()

    async def test(driver: AsyncDriver) -> None:
        for wait in (0.1, 0.05):
            engine.wakes = time.monotonic() + wait
            driver.pump()
        await driver.close()
        steps = engine.steps
        await asyncio.sleep(0.2)
        assert engine.steps == steps

    run_in_loop(engine, test)


def test_a_driver_that_is_closed_before_it_has_read_what_arrived_steps_its_engine_no_more() -> None:
    late = 0.0
    with scripted() as broker:
        engine = AskingEngine((broker.endpoint, None))

        async def test(_: AsyncDriver) -> None:
            nonlocal late
            driver = AsyncDriver(engine, settings(), clock=lambda: time.monotonic() + late)
            await driver.wait(engine.operation)
            steps = engine.steps
            late = 31.0
            driver.pump()
            driver.pump()
            await driver.close()
            for _turn in range(10):
                await asyncio.sleep(0)
            assert engine.steps == steps

        run_in_loop(engine, test)


def test_an_engine_that_wants_to_be_woken_earlier_than_before_is_woken_then() -> None:
    class Waking(AskingEngine):
        def step(self, now: float) -> Any:
            if self.wakes is not None and now >= self.wakes:
                self.wakes = None
                self.operation.succeed("woken")
            return super().step(now)

    engine = Waking()
    engine.operation = Operation()
    engine.wakes = time.monotonic() + 10 * PATIENCE

    async def test(driver: AsyncDriver) -> None:
        driver.pump()
        engine.wakes = time.monotonic() + 0.05
        assert await asyncio.wait_for(driver.wait(engine.operation), PATIENCE) == "woken"

    run_in_loop(engine, test)


def test_closing_twice_is_closing_once() -> None:
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, end_txn()))

        async def test(driver: AsyncDriver) -> None:
            await driver.wait(engine.operation)
            told = list(engine.told)
            await driver.close()
            await driver.close()
            assert engine.told == told

        run_in_loop(engine, test)


@LOOPS
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_answers_that_arrived_while_the_loop_was_blocked_precede_the_deadlines(
    new_loop: NewLoop, is_waited_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = 0.0
    done: list[bool] = []
    sockets: list[Any] = []
    monkeypatch.setattr(asyncio_connection, "tune", lambda connected, _: sockets.append(connected))

    class Noting(AskingEngine):
        def step(self, now: float) -> Any:
            if late:
                done.append(self.operation.is_done)
            return super().step(now)

    with scripted() as broker, scripted() as other:
        for each in (broker, other):
            each.answer(ApiKey.END_TXN, echo)
        engine = Noting((broker.endpoint, None), (other.endpoint, None))

        async def test(_: AsyncDriver) -> None:
            nonlocal late
            driver = AsyncDriver(engine, settings(), clock=lambda: time.monotonic() + late)
            await driver.wait(engine.operation)
            operation = engine.ask((broker.endpoint, end_txn(3)), (other.endpoint, end_txn(4)))
            driver.pump()
            for arriving in {connected.fileno() for connected in sockets}:
                assert select.select([arriving], [], [], PATIENCE)[0]
            late = 31.0
            if not is_waited_for:
                driver.pump()
                assert not done
            answers = await asyncio.wait_for(driver.wait(operation), PATIENCE)
            assert sorted(answer.producer_id for answer in answers) == [3, 4]
            assert all(done)
            await driver.close()

        run_in_loop(engine, test, new_loop)


def test_a_driver_sends_again_after_each_long_pause() -> None:
    late = 0.0
    with scripted() as broker:
        broker.answer(ApiKey.END_TXN, echo)
        engine = AskingEngine((broker.endpoint, None))

        async def test(_: AsyncDriver) -> None:
            nonlocal late
            driver = AsyncDriver(engine, settings(), clock=lambda: time.monotonic() + late)
            await driver.wait(engine.operation)
            for number in range(3):
                late += 31.0
                operation = engine.ask((broker.endpoint, end_txn(number)))
                answers = await asyncio.wait_for(driver.wait(operation), PATIENCE)
                assert answers[-1].producer_id == number
            await driver.close()

        run_in_loop(engine, test)
