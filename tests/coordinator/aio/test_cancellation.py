"""A task cancelled at each point where it, or what it started, waits: the unit of work is in both or in neither, the
task is told which, and the next unit works."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.errors import InDoubtError, InvalidTransactionStateError, NoFreeSlotError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write, write_unit
from tests.support.coordinator.event_table import events, stored_values

Unit = Callable[[AsyncDualWrite, str], Awaitable[None]]


class Steps:
    """Counts where the loop's tasks come to wait, and cancels at the ``at``-th such place, and again at the
    ``again``-th after that."""

    def __init__(self, again: int = 0) -> None:
        self.count = 0
        self.at = 0
        self.again = again
        self.cancel: Callable[[], object] = lambda: None

    def waits(self) -> None:
        self.count += 1
        if self.at and self.count in (self.at, self.at + self.again):
            self.cancel()

    def start(self, at: int) -> None:
        self.count, self.at = 0, at

    def task_factory(self, loop: Any, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        return asyncio.Task(Counted(coroutine, self.waits), loop=loop, **options)


class Counted(Coroutine[Any, Any, Any]):
    """``coroutine``; each time that it is about to wait, ``waits`` is called."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._waits = waits

    def send(self, value: Any) -> Any:
        future = self._coroutine.send(value)
        self._waits()
        return future

    def throw(self, *error: Any) -> Any:
        future = self._coroutine.throw(*error)
        self._waits()
        return future

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError


async def plain(dual_write: AsyncDualWrite, value: str) -> None:
    await write_unit(dual_write, value)


async def by_session(dual_write: AsyncDualWrite, value: str) -> None:
    async with dual_write.transaction() as tx:
        await tx.session.execute(insert(events).values(value=value))
        await tx.produce("events", value)


async def nested(dual_write: AsyncDualWrite, value: str) -> None:
    async with dual_write.transaction(), dual_write.transaction() as tx:
        await write(tx, value)


async def retried(dual_write: AsyncDualWrite, value: str) -> None:
    await dual_write.transactional(retries=2)(write)(value)


def nothing_is_open(engine: AsyncEngine) -> bool:
    return bool(engine.pool.checkedout() == 0)  # type: ignore[attr-defined]


async def cancel_everywhere(
    place: AsyncPlace,
    unit: Unit,
    everything: bool,
    make: Callable[[AsyncEngine], AsyncDualWrite],
    is_cold: bool,
    again: int = 0,
) -> tuple[int, int]:
    """How many times the unit was told that it was cancelled, and how many times it had happened all the same."""
    steps = Steps(again)
    loop = asyncio.get_running_loop()
    told = happened = 0
    async with place.engine(connect_args={"timeout": 5} if place.driver == "aiosqlite" else {}) as engine:
        dual_write = make(engine)
        await write_unit(dual_write, "first")
        loop.set_task_factory(steps.task_factory)
        others = asyncio.all_tasks()
        at = 0
        while True:
            at += 1
            value = f"unit {at}"
            if is_cold:
                steps.start(0)
                await dual_write.close()
                dual_write = make(engine)
            task = asyncio.ensure_future(unit(dual_write, value))

            def cancel(task: "asyncio.Future[None]" = task) -> None:
                for each in (asyncio.all_tasks() - others) if everything else [task]:
                    each.cancel()

            steps.cancel = cancel
            steps.start(at)
            await asyncio.wait([task])
            was_struck = steps.count >= at
            steps.start(0)
            place.kafka.fault = type(place.kafka)().fault
            in_doubt = not task.cancelled() and isinstance(task.exception(), InDoubtError)
            if task.cancelled():
                told += 1
            elif in_doubt:
                assert again, "one cancellation puts nothing in doubt"
            else:
                task.result()
                happened += was_struck
            assert nothing_is_open(engine), at
            await write_unit(dual_write, f"after {at}")
            rows = stored_values(place.seen)
            assert rows == place.kafka.committed, at
            assert place.kafka.ongoing is None, at
            assert rows[-1] == f"after {at}"
            assert in_doubt or (value in rows) is not task.cancelled(), f"{at}: the task was told the contrary"
            if not was_struck:
                break
        steps.start(0)
        await dual_write.close()
    return told, happened


def maker(place: AsyncPlace) -> Callable[[AsyncEngine], AsyncDualWrite]:
    def make(engine: AsyncEngine) -> AsyncDualWrite:
        options: Any = {"participant": place.kafka.participant, "pool_size": 1, "lease_timeout": 3000}
        return AsyncDualWrite(
            engine, {"bootstrap.servers": "nowhere:1"}, application="orders", acquire_timeout=10, **options
        )

    return make


@pytest.mark.slow_cases
@pytest.mark.parametrize("unit", [plain, by_session, nested, retried])
def test_a_task_cancelled_at_any_await_learns_the_units_true_outcome(sqlite_place: AsyncPlace, unit: Unit) -> None:
    told, happened = run(cancel_everywhere(sqlite_place, unit, False, maker(sqlite_place), is_cold=False))
    assert told > 5
    assert happened > 2, "it was never cancelled after the decision"


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.postgresql
def test_a_task_cancelled_at_any_await_learns_the_true_outcome_on_postgresql(
    request: pytest.FixtureRequest, driver: str
) -> None:
    from tests.coordinator.conftest import place_of

    for place in place_of(request, driver):
        told, happened = run(cancel_everywhere(place, plain, False, maker(place), is_cold=False))
        assert told > 5
        assert happened > 0


@pytest.mark.slow
def test_the_first_unit_cancelled_wherever_it_waits_leaves_no_slot_behind(sqlite_place: AsyncPlace) -> None:
    told, _ = run(cancel_everywhere(sqlite_place, plain, False, maker(sqlite_place), is_cold=True))
    assert told > 8


def test_all_tasks_cancelled_at_once_as_a_loop_does_that_ends_leave_both_sides_equal(sqlite_place: AsyncPlace) -> None:
    told, happened = run(cancel_everywhere(sqlite_place, plain, True, maker(sqlite_place), is_cold=False))
    assert told > 5
    assert happened > 0


@pytest.mark.slow_cases
@pytest.mark.parametrize("again", [2, 5, 8])
@pytest.mark.parametrize("everything", [True, False])
def test_tasks_cancelled_twice_learn_the_true_outcome_or_that_it_is_in_doubt(
    sqlite_place: AsyncPlace, again: int, everything: bool
) -> None:
    """The second time comes, for one, while the database is asked what became of a COMMIT that was cancelled."""
    make = maker(sqlite_place)
    told, _ = run(cancel_everywhere(sqlite_place, plain, everything, make, is_cold=False, again=again))
    assert told > 5


def test_a_call_of_another_task_that_the_end_waits_for_is_cancelled_with_all_tasks_and_nothing_else(
    sqlite_place: AsyncPlace,
) -> None:
    calls: list[asyncio.Task[None]] = []

    async def main() -> None:
        may_produce, others = threading.Event(), asyncio.all_tasks()

        def before_effect(request: str) -> None:
            if request == "produce":
                may_produce.wait(20)

        sqlite_place.kafka.before_effect = before_effect
        async with sqlite_place.dual_write() as dual_write:

            async def unit() -> None:
                async with dual_write.transaction() as tx:
                    calls.append(asyncio.create_task(tx.produce("events", "late")))
                    await asyncio.sleep(0)

            leaving = asyncio.create_task(unit())
            while len(asyncio.all_tasks() - others) < 3:  # with the end of the block
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - others:
                task.cancel()
            may_produce.set()
            for task in (leaving, *calls):
                assert isinstance(await settled(task), asyncio.CancelledError)

    run(main())
    assert sqlite_place.in_both()


def test_a_cancelled_wait_for_a_slot_does_not_delay_the_other_waiters(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            async with dual_write.transaction() as tx:
                waiting = [asyncio.create_task(write_unit(dual_write, f"waits {number}")) for number in range(3)]
                while manager_of(dual_write).waiting < 3:
                    await asyncio.sleep(0)
                for task in waiting[:2]:
                    task.cancel()
                for task in waiting[:2]:
                    assert isinstance(await settled(task), asyncio.CancelledError)
                await write(tx, "one")
            await waiting[2]
            await write_unit(dual_write, "two")

    run(main())
    assert sqlite_place.in_both("one", "waits 2", "two")


async def settled(task: "asyncio.Task[None]") -> BaseException | None:
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return outcome


def test_a_wait_for_a_slot_times_out_and_the_error_names_the_owner(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write(acquire_timeout=0.1) as dual_write, dual_write.transaction():
            waiting = [asyncio.create_task(write_unit(dual_write, str(number))) for number in range(3)]
            for task in waiting:
                error = await settled(task)
                assert isinstance(error, NoFreeSlotError)
                assert "by this process" in str(error)

    run(main())


def test_a_timeout_after_the_decision_is_not_raised(sqlite_place: AsyncPlace) -> None:
    """The unit has happened: TimeoutError would make its caller do it again. And nothing strikes later."""
    if not hasattr(asyncio, "timeout"):
        pytest.skip("Python 3.10 has no asyncio.timeout")
    place = sqlite_place

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            async with asyncio.timeout(None) as scope:
                loop = asyncio.get_running_loop()

                def strike(request: str) -> None:
                    if request == "commit":
                        struck = asyncio.run_coroutine_threadsafe(reschedule(scope, loop), loop)
                        struck.result(20)

                place.kafka.before_effect = strike
                await write_unit(dual_write, "two")
            place.kafka.before_effect = lambda request: None
            await asyncio.sleep(0)
            await write_unit(dual_write, "three")

    run(main())
    assert place.in_both("one", "two", "three")


def test_a_timeout_after_the_decision_of_more_than_the_unit_strikes_at_the_next_await(sqlite_place: AsyncPlace) -> None:
    if not hasattr(asyncio, "timeout"):
        pytest.skip("Python 3.10 has no asyncio.timeout")
    place = sqlite_place
    reached = []

    async def works(dual_write: AsyncDualWrite) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:
            place.kafka.before_effect = lambda request: (
                asyncio.run_coroutine_threadsafe(reschedule(scope, loop), loop).result(20)
                if request == "commit"
                else None
            )
            await write_unit(dual_write, "two")
            reached.append("after the block")
            await asyncio.sleep(20)

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            with pytest.raises(TimeoutError):
                await works(dual_write)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    run(main())
    assert reached == ["after the block"]
    assert place.in_both("one", "two")


async def reschedule(scope: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Let ``scope`` end now, and return when it has struck."""
    scope.reschedule(loop.time())
    while not scope.expired():
        await asyncio.sleep(0)


@pytest.mark.parametrize("value", ["two", None])
def test_a_cancellation_before_the_decision_turns_the_end_of_the_block_into_a_rollback(
    sqlite_place: AsyncPlace, value: str | None
) -> None:
    """The end itself is not cut short; a unit without records has nothing but its COMMIT there."""
    place = sqlite_place

    async def main() -> None:
        steps: list[str] = []
        tasks: list[asyncio.Task[None]] = []

        def on_step(step: str) -> None:
            steps.append(step)
            if tasks and step == ("PREPARE_KAFKA" if value else "COMMIT_DATABASE"):
                loop.call_soon(tasks.pop().cancel)

        loop = asyncio.get_running_loop()
        async with place.dual_write(on_step=on_step) as dual_write:
            await write_unit(dual_write, "one")
            steps.clear()
            insert_only = insert(events).values(value="only here")
            acts = [value] if value else [lambda tx: tx.execute(insert_only)]
            tasks.append(asyncio.create_task(write_unit(dual_write, *acts)))
            outcome = await settled(tasks[0])
            if value:
                assert isinstance(outcome, asyncio.CancelledError)
                assert steps[-3:] == ["STORE_STATE", "ROLLBACK_DATABASE", "ABORT_KAFKA"]
            else:
                assert outcome is None, "its COMMIT was under way"

    run(main())
    assert stored_values(place.seen) == (["one"] if value else ["one", "only here"])
    assert place.kafka.committed == ["one"]


def test_a_cancellation_after_the_decision_strikes_at_the_next_await(sqlite_place: AsyncPlace) -> None:
    place = sqlite_place
    reached = []

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")

            async def works() -> None:
                while True:
                    await write_unit(dual_write, "two")
                    reached.append("after the block")
                    await asyncio.sleep(20)
                    reached.append("after the next await")

            task = asyncio.create_task(works())
            loop = asyncio.get_running_loop()

            async def cancel() -> None:
                task.cancel("enough")

            place.kafka.before_effect = lambda request: (
                asyncio.run_coroutine_threadsafe(cancel(), loop).result(20) if request == "commit" else None
            )
            error = await settled(task)
            assert isinstance(error, asyncio.CancelledError)

    run(main())
    assert reached == ["after the block"]
    assert place.in_both("one", "two")


def test_a_unit_with_a_cancelled_produce_is_not_committed_even_if_that_was_caught(sqlite_place: AsyncPlace) -> None:
    place = sqlite_place

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")

            async def swallows(tx: AsyncTransaction) -> None:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
                with pytest.raises(asyncio.CancelledError):
                    await tx.produce("events", "lost")
                await write(tx, "two")

            with pytest.raises(InvalidTransactionStateError, match="can only be aborted"):
                await write_unit(dual_write, "before", swallows)
            await write_unit(dual_write, "three")

    run(main())
    assert place.in_both("one", "three")
