"""Calls in threads that go on after their task was cancelled, and calls beside or inside of an open unit of work."""

import asyncio
import concurrent.futures
import gc
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dualwrite.coordinator.aio import awaited_slot
from dualwrite.coordinator.aio.awaited_slot import AwaitedParticipant
from dualwrite.coordinator.aio.thread_calls import submitted
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.process.greenlets import greenlet_spawn, wait_for
from dualwrite.coordinator.slots.slot import Slot
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write, write_unit
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant
from tests.support.spark.lock_waits import AT_ONCE
from tests.support.thread_starts import fail_starts

PATIENCE = 20.0


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_abort_of_a_unit_waits_for_its_cancelled_call_which_goes_on_in_a_thread(sqlite_place: AsyncPlace) -> None:
    """A participant is not thread-safe, and a record that is added after the abort would be in the next transaction."""
    began, go_on, aborts = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def hold(request: str) -> None:
        if request == "produce":
            began.set()
            assert go_on.wait(PATIENCE)
        elif request == "abort":
            aborts.set()
        order.append(request)

    async def cancels(tx: AsyncTransaction) -> None:
        task = asyncio.create_task(tx.produce("events", "one"))
        await asyncio.to_thread(began.wait, PATIENCE)
        await cancelled(task)
        raise ValueError("no")

    async def release() -> None:
        await asyncio.to_thread(aborts.wait, AT_ONCE)
        go_on.set()

    async def main() -> None:
        releases: list[asyncio.Task[None]] = []

        def on_step(step: str) -> None:
            if step == "ABORT_KAFKA":
                releases.append(asyncio.ensure_future(release()))

        async with sqlite_place.dual_write(pool_size=2, on_step=on_step) as dual_write:
            await write_unit(dual_write)
            sqlite_place.kafka.before_effect = hold
            with pytest.raises(ValueError, match="no"):
                await write_unit(dual_write, cancels)
            await releases[0]

    run(main())
    assert order[:3] == ["begin", "produce", "abort"]
    assert sqlite_place.in_both()


def test_a_call_waits_for_a_cancelled_one_although_another_was_cancelled_before_it_had_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at the end of a loop that cancels all tasks: the abort was cancelled in the line for a thread."""
    began, go_on, free = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def wait(calls: Any) -> None:
        if any(not call.done() for call in calls):
            go_on.set()
        concurrent.futures.wait(calls)

    class Participant(FakeParticipant):
        def produce(self, record: OutgoingRecord) -> None:
            began.set()
            assert go_on.wait(PATIENCE)
            order.append("produced")

        def close(self) -> None:
            order.append("closed")
            go_on.set()

    async def main() -> None:
        with ThreadPoolExecutor(2) as threads:
            participant = AwaitedParticipant(Participant(FakeKafka()), threads)
            producing = asyncio.create_task(greenlet_spawn(participant.produce, OutgoingRecord("events")))
            await asyncio.to_thread(began.wait, PATIENCE)
            threads.submit(free.wait, PATIENCE)
            await cancelled(producing)
            aborting = asyncio.create_task(greenlet_spawn(participant.abort_transaction))
            await asyncio.sleep(0)
            await cancelled(aborting)
            await asyncio.sleep(0)
            free.set()
            await greenlet_spawn(participant.close)

    monkeypatch.setattr(awaited_slot, "wait_in_thread", wait)
    run(main())
    assert order == ["produced", "closed"]


def test_a_record_for_which_no_thread_can_be_started_is_not_added_by_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The executor keeps the call that it has refused. The record would be in the next unit's transaction."""
    produced: list[OutgoingRecord] = []
    free = threading.Event()

    class Participant(FakeParticipant):
        def produce(self, record: OutgoingRecord) -> None:
            produced.append(record)

    async def main() -> None:
        with ThreadPoolExecutor(2) as threads:
            participant = AwaitedParticipant(Participant(FakeKafka()), threads)
            threads.submit(free.wait, PATIENCE)
            with monkeypatch.context() as exhausted:
                fail_starts(exhausted, RuntimeError("can't start new thread"))
                with pytest.raises(RuntimeError, match="can't start"):
                    await greenlet_spawn(participant.produce, OutgoingRecord("events", b"refused"))
            free.set()
            await greenlet_spawn(participant.produce, OutgoingRecord("events", b"taken"))
            assert participant.is_reusable

    run(main())
    assert [record.value for record in produced] == [b"taken"]


def test_a_call_that_a_thread_takes_before_another_is_refused_goes_on() -> None:
    class Executor(ThreadPoolExecutor):
        def submit(self, *call: Any, **_: Any) -> Any:
            super().submit(*call).result()
            raise RuntimeError("can't start new thread")

    with Executor(1) as threads:
        assert submitted(threads, lambda: "done").result(PATIENCE) == "done"


def test_a_participant_is_not_reused_after_a_cancelled_call() -> None:
    """The call may go on in its thread while the next unit of work begins."""
    began, go_on = threading.Event(), threading.Event()

    def hold(request: str) -> None:
        began.set()
        assert go_on.wait(PATIENCE)

    async def main() -> None:
        kafka = FakeKafka()
        with ThreadPoolExecutor(1) as threads:
            participant = AwaitedParticipant(kafka.participant(), threads)
            await greenlet_spawn(participant.init_transactions)
            participant.begin_transaction()
            assert participant.is_reusable
            kafka.before_effect = hold
            call = asyncio.create_task(greenlet_spawn(participant.abort_transaction))
            await asyncio.to_thread(began.wait, PATIENCE)
            await cancelled(call)
            assert not participant.is_reusable
            go_on.set()
        assert not participant.is_reusable, "the outcome of the call is lost"

    run(main())


def test_a_slot_that_is_acquired_for_a_cancelled_unit_is_free_for_the_next(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits for slots may take one after the unit has let go of all that it had."""
    began, go_on, taken = threading.Event(), threading.Event(), threading.Event()

    async def main() -> None:
        async with sqlite_place.dual_write(acquire_timeout=1.0) as dual_write:
            pool = manager_of(dual_write).process.pool
            acquire = pool.acquire

            def late(user: object, deadline: float | None = None) -> Any:
                began.set()
                assert go_on.wait(PATIENCE)
                try:
                    return acquire(user)
                finally:
                    taken.set()

            async with dual_write.transaction() as tx:
                await write(tx, "one")
                monkeypatch.setattr(pool, "acquire", late)
                waiting = asyncio.create_task(write_unit(dual_write, "never"))
                await asyncio.to_thread(began.wait, PATIENCE)
                await cancelled(waiting)
            monkeypatch.setattr(pool, "acquire", acquire)
            go_on.set()
            await asyncio.to_thread(taken.wait, PATIENCE)
            await write_unit(dual_write, "two")
            assert manager_of(dual_write).waiting == 0

    run(main())
    assert sqlite_place.in_both("one", "two")


def test_the_recovery_for_a_cancelled_unit_leaves_the_next_user_of_its_slot_alone(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may come to it late. It would close the participant that the next unit uses."""
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    recover = Slot.recover

    def late(slot: Slot, *user: object) -> object:
        if began.is_set():
            return recover(slot, *user)
        began.set()
        assert go_on.wait(PATIENCE)
        try:
            return recover(slot, *user)
        finally:
            ended.set()

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            task = asyncio.create_task(write_unit(dual_write, "never"))
            await asyncio.to_thread(began.wait, PATIENCE)
            await cancelled(task)
            async with dual_write.transaction() as tx:
                await write(tx, "one")
                go_on.set()
                await asyncio.to_thread(ended.wait, PATIENCE)

    monkeypatch.setattr(Slot, "recover", late)
    run(main())
    assert sqlite_place.in_both("one")


def test_a_close_waits_for_the_unit_of_another_task_and_does_not_end_it(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            is_inside, may_leave = asyncio.Event(), asyncio.Event()

            async def stays(tx: AsyncTransaction) -> None:
                is_inside.set()
                await may_leave.wait()

            task = asyncio.create_task(write_unit(dual_write, "one", stays))
            await is_inside.wait()
            closing = asyncio.create_task(dual_write.close())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not closing.done()
            may_leave.set()
            await task
            await closing

    run(main())
    assert sqlite_place.in_both("one")


@pytest.mark.parametrize("step", ["PREPARE_KAFKA", "COMMIT_KAFKA"])
def test_a_unit_that_a_close_did_not_wait_for_goes_on_as_one_of_a_blocking_dual_write_does(
    sqlite_place: AsyncPlace, step: str
) -> None:
    async def main() -> None:
        def on_step(name: str) -> None:
            if name == step:
                closing.append(asyncio.ensure_future(dual_write.close(0)))
                wait_for(closing[0])

        closing: list[asyncio.Future[None]] = []
        async with sqlite_place.dual_write(on_step=on_step) as dual_write:
            await write_unit(dual_write, "one")
        assert closing

    run(main())
    assert sqlite_place.in_both("one")


def test_a_unit_that_begins_just_before_a_close_outlasts_that_and_another_one(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with (
            sqlite_place.engine(connect_args={"timeout": 0.5}) as engine,  # of the leases, which the close gives back
            sqlite_place.dual_write(engine) as dual_write,
        ):
            loop, pool = asyncio.get_running_loop(), manager_of(dual_write).process.pool
            may_begin, may_leave, is_inside = asyncio.Event(), asyncio.Event(), threading.Event()
            close = pool.close

            def close_late(timeout: float) -> None:
                loop.call_soon_threadsafe(may_begin.set)
                assert is_inside.wait(PATIENCE)
                close(timeout)

            async def unit() -> None:
                await may_begin.wait()
                async with dual_write.transaction() as tx:
                    await write(tx, "one")
                    is_inside.set()
                    await may_leave.wait()

            task = asyncio.create_task(unit())
            monkeypatch.setattr(pool, "close", close_late)
            for _ in range(2):
                await dual_write.close(0)
            may_leave.set()
            await task

    run(main())
    assert sqlite_place.in_both("one")


def test_a_unit_whose_generator_is_closed_is_ended_by_one_task_at_a_time(sqlite_place: AsyncPlace) -> None:
    """Its block has it ended as it is left, and again as it is collected."""
    failed: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        async with sqlite_place.dual_write() as dual_write:

            async def unit() -> AsyncIterator[None]:
                async with dual_write.transaction() as tx:
                    await write(tx, "dead")
                    yield

            generator: Any = unit()
            await anext(generator)
            await generator.aclose()
            await write_unit(dual_write, "two")
            assert (dual_write.counters.rolled_back, dual_write.counters.finished_later) == (1, 0)
        gc.collect()  # a task that has failed says so as it is collected

    run(main())
    assert failed == []
    assert sqlite_place.in_both("two")


@pytest.mark.parametrize("verb", ["recover", "wait_idle", "close"])
def test_a_call_that_would_wait_for_its_own_unit_is_refused_and_the_unit_goes_on(
    sqlite_place: AsyncPlace, verb: str
) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write, dual_write.transaction() as tx:
            await write(tx, "one")
            with pytest.raises(InvalidTransactionStateError):
                await getattr(dual_write, verb)()
            await write(tx, "two")

    run(main())
    assert sqlite_place.in_both("one", "two")
