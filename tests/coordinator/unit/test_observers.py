"""Observers are notified of each unit of work, of its steps and of its end, and cannot break it."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.slots.usage import Usage
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import KafkaUnavailableError, NoFreeSlotError
from tests.support.coordinator.aio.async_dual_writes import write as write_async
from tests.support.coordinator.event_table import CONFIG, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.recorder import Recorder, write


def both(*steps: str) -> list[str]:
    return [told for step in steps for told in (step, f"/{step}")]


COMMITTING = ("PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA")


def test_an_observer_is_notified_of_the_beginning_and_the_end_of_each_step(dual_write: DualWrite) -> None:
    recorder = Recorder()
    dual_write.add_observer(recorder)
    write(dual_write)
    steps = both("BEGIN_DATABASE", "BEGIN_KAFKA", *COMMITTING)
    assert recorder.told == ["began", "orders-0", *steps, (Result.SUCCEEDED, None)]


def test_an_observer_is_notified_of_the_users_error(dual_write: DualWrite) -> None:
    recorder = Recorder()
    dual_write.add_observer(recorder)
    error = ValueError("the user's")

    @dual_write.transactional
    def failing(tx: Transaction) -> None:
        tx.produce("events", value="one")
        raise error

    with pytest.raises(ValueError, match="the user's"):
        failing()
    undone = both("BEGIN_DATABASE", "BEGIN_KAFKA", "ROLLBACK_DATABASE", "ABORT_KAFKA")
    assert recorder.told == ["began", "orders-0", *undone, (Result.ROLLED_BACK, error)]


def test_an_observer_is_notified_of_a_failed_step(dual_write: DualWrite, kafka: FakeKafka) -> None:
    recorder = Recorder()
    dual_write.add_observer(recorder)
    kafka.fault = lambda request: Fault.BEFORE if request == "prepare" else Fault.NONE
    with pytest.raises(KafkaUnavailableError):
        write(dual_write)
    assert "/PREPARE_KAFKA: prepare: no answer, and it never arrived" in recorder.told
    result, error = recorder.told[-1]
    assert result is Result.ROLLED_BACK
    assert isinstance(error, KafkaUnavailableError)


def test_an_observer_is_notified_of_a_unit_that_got_no_slot(make_dual_write: Callable[..., DualWrite]) -> None:
    holder, waiter = make_dual_write(), make_dual_write(acquire_timeout=0)
    recorder = Recorder()
    waiter.add_observer(recorder)
    write(holder)
    with pytest.raises(NoFreeSlotError) as raised:
        write(waiter)
    assert recorder.told == ["began", (None, raised.value)]


def test_a_joined_unit_is_observed_as_one_unit(dual_write: DualWrite) -> None:
    recorder = Recorder()
    dual_write.add_observer(recorder)
    with dual_write.transaction() as tx, dual_write.transaction():
        tx.produce("events", value="one")
    assert recorder.told.count("began") == 1
    assert recorder.told[-1] == (Result.SUCCEEDED, None)


def test_the_error_of_an_observer_is_logged_and_the_unit_commits(
    dual_write: DualWrite, kafka: FakeKafka, sqlite_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    worse, good = Recorder(raises=OSError), Recorder()
    dual_write.add_observer(worse)
    dual_write.add_observer(good)
    write(dual_write)
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]
    assert worse.told == ["began"], "nobody is there to be told more"
    assert good.told[-1] == (Result.SUCCEEDED, None)
    assert "an observer of units of work failed" in caplog.text


def test_an_observer_that_is_added_later_sees_the_next_unit(dual_write: DualWrite) -> None:
    write(dual_write, "one")
    recorder = Recorder()
    dual_write.add_observer(recorder)
    write(dual_write, "two")
    assert recorder.told.count("began") == 1


def test_the_slots_of_a_process_are_counted_by_what_they_do(dual_write: DualWrite, kafka: FakeKafka) -> None:
    assert dual_write.usage == Usage("orders", 1)
    with dual_write.transaction():
        assert dual_write.usage == Usage("orders", 1, used=1)
    assert dual_write.usage == Usage("orders", 1, idle=1)


def test_an_observer_under_asyncio_gets_the_same_notifications(sqlite_url: str, kafka: FakeKafka) -> None:
    ready_engine(sqlite_url).dispose()
    recorder = Recorder()

    async def main() -> None:
        engine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncDualWrite(
            engine, CONFIG, application="orders", pool_size=1, participant=kafka.participant
        ) as dual_write:
            dual_write.add_observer(recorder)
            async with dual_write.transaction() as tx:
                await write_async(tx, "one")
                assert dual_write.usage == Usage("orders", 1, used=1)
        await engine.dispose()

    asyncio.run(main())
    steps = both("BEGIN_DATABASE", "BEGIN_KAFKA", *COMMITTING)
    assert recorder.told == ["began", "orders-0", *steps, (Result.SUCCEEDED, None)]
