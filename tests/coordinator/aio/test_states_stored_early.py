"""Under asyncio a thread prepares Kafka while the event loop stores the state."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import event

from dualwrite.errors import KafkaUnavailableError, PrepareFailedError
from tests.support.coordinator.aio.async_dual_writes import LONG, AsyncPlace, run, write_unit
from tests.support.coordinator.event_table import stored_values
from tests.support.coordinator.fake_native_kafka import FakeNativeKafka


@pytest.fixture
def early(place: AsyncPlace) -> AsyncPlace:
    """A database behind each driver, and a Kafka whose transactions are named before their records are acknowledged."""
    place.kafka = FakeNativeKafka()
    return place


def test_the_state_is_stored_while_a_thread_prepares(early: AsyncPlace) -> None:
    stored = threading.Event()

    def note_store(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "kafka_transaction_state SET prepared_txn_state" in statement:
            stored.set()

    def wait_for_the_store(request: str) -> None:
        if request == "prepare":
            assert stored.wait(LONG), "the state is stored only after prepare"

    async def main() -> None:
        async with early.engine() as engine, early.dual_write(engine) as dual_write:
            await write_unit(dual_write, "one")
            event.listen(engine.sync_engine, "after_cursor_execute", note_store)
            early.kafka.before_effect = wait_for_the_store
            await write_unit(dual_write, "two")

    run(main())
    assert early.in_both("one", "two")


def test_records_that_are_not_acknowledged_take_the_stored_state_back(early: AsyncPlace) -> None:
    def refuse(request: str) -> None:
        if request == "prepare":
            raise PrepareFailedError("not acknowledged")

    async def main() -> None:
        async with early.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            early.kafka.before_effect = refuse
            with pytest.raises(PrepareFailedError, match="not acknowledged"):
                await write_unit(dual_write, "two")
            early.kafka.before_effect = lambda request: None
            await write_unit(dual_write, "three")

    run(main())
    assert early.in_both("one", "three")


def test_a_state_that_cannot_be_stored_aborts_what_was_prepared_meanwhile(early: AsyncPlace) -> None:
    def refuse(step: str) -> None:
        if step == "STORE_EXPECTED_STATE" and early.kafka.committed == ["one"]:
            raise KafkaUnavailableError("not now")

    async def main() -> None:
        async with early.dual_write(on_step=refuse) as dual_write:
            await write_unit(dual_write, "one")
            with pytest.raises(KafkaUnavailableError, match="not now"):
                await write_unit(dual_write, "two")
            early.kafka.committed.append("two failed")
            await write_unit(dual_write, "three")
            early.kafka.committed.remove("two failed")

    run(main())
    assert early.in_both("one", "three")
    assert early.kafka.aborted == ["two"]


def test_a_cancellation_while_a_thread_prepares_rolls_back(early: AsyncPlace) -> None:
    """The call goes on in its thread; the abort waits for it."""
    is_preparing, may_go_on = threading.Event(), threading.Event()

    def wait(request: str) -> None:
        if request == "prepare":
            is_preparing.set()
            assert may_go_on.wait(LONG)

    async def main() -> None:
        async with early.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            early.kafka.before_effect = wait
            task = asyncio.create_task(write_unit(dual_write, "two"))
            assert await asyncio.to_thread(is_preparing.wait, LONG)
            task.cancel()
            asyncio.get_running_loop().call_soon(may_go_on.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            early.kafka.before_effect = lambda request: None
            await write_unit(dual_write, "three")

    run(main())
    assert stored_values(early.seen) == early.kafka.committed == ["one", "three"]
    assert early.kafka.aborted == ["two"]
