"""FastAPI: a request that is cancelled leaves nothing open, and no part of its handler is committed."""

import asyncio
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from sqlalchemy import event, insert
from sqlalchemy.exc import ResourceClosedError

from dualwrite import (
    DualWrite,
    InvalidTransactionStateError,
    Transaction,
)
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.unit.block import Block
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.web import unit_of_work
from tests.support.coordinator.event_table import events
from tests.support.production import asgi
from tests.support.production.fastapi_world import FastApiWorld, kafka_broker, world
from tests.support.spark.lock_waits import AT_ONCE
from tests.support.waiting import eventually

__all__ = ["kafka_broker", "world"]

Make = Callable[..., DualWrite]


def test_a_request_that_is_cancelled_leaves_nothing_open(world: FastApiWorld, dualwrite: DualWrite) -> None:
    async def cancelled() -> None:
        inside = asyncio.Event()

        @world.app.post("/")
        async def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)]) -> None:
            await asyncio.to_thread(world.write, tx, "one")
            inside.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(asgi.request(world.app, "POST", "/"))
        await asyncio.wait_for(inside.wait(), asgi.SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert world.both() == ([], [])
    assert dualwrite.usage.used == 0
    with dualwrite.transaction() as tx:
        world.write(tx, "two")
    assert world.both() == (["two"], ["two"])


def test_the_end_of_a_cancelled_request_waits_for_the_call_that_its_thread_makes(
    world: FastApiWorld, dualwrite_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit of asyncio's cancels the request, and not the thread of its handler. A record that is added after
    the abort would be in the next unit's transaction."""
    order: list[str] = []
    began, go_on, ending, refused = (threading.Event() for _ in range(4))
    add = NativeProducer.produce

    def held(producer: NativeProducer, record: OutgoingRecord) -> None:
        began.set()
        assert go_on.wait(asgi.SECONDS)
        add(producer, record)
        order.append("produced")

    def on_step(step: str) -> None:
        if step == "ROLLBACK_DATABASE":
            order.append("rolled back")
            ending.set()

    dual_write = dualwrite_factory(on_step=on_step)

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dual_write)]) -> None:
        tx.produce(world.topic, value="one")
        assert ending.wait(asgi.SECONDS)
        with pytest.raises(InvalidTransactionStateError):
            tx.produce(world.topic, value="two")
        refused.set()

    async def limited() -> None:
        request = asyncio.create_task(asgi.request(world.app, "POST", "/"))
        await asyncio.to_thread(began.wait, asgi.SECONDS)
        request.cancel()
        await asyncio.to_thread(ending.wait, AT_ONCE)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await asyncio.to_thread(refused.wait, asgi.SECONDS)

    monkeypatch.setattr(NativeProducer, "produce", held)
    asyncio.run(limited())
    assert order == ["produced", "rolled back"]
    assert dual_write.usage.used == 0
    assert world.both() == ([], [])


def test_a_call_in_the_event_loop_is_refused_while_a_thread_is_in_another(
    world: FastApiWorld, dualwrite: DualWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    add = NativeProducer.produce

    def held(producer: NativeProducer, record: OutgoingRecord) -> None:
        began.set()
        assert go_on.wait(asgi.SECONDS)
        add(producer, record)

    @world.app.post("/")
    async def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)]) -> None:
        call = asyncio.create_task(asyncio.to_thread(tx.produce, world.topic, "one"))
        await asyncio.to_thread(began.wait, asgi.SECONDS)
        with pytest.raises(InvalidTransactionStateError, match="event loop"):
            tx.produce(world.topic, "two")
        go_on.set()
        await call

    monkeypatch.setattr(NativeProducer, "produce", held)
    assert world.post().status == 200
    assert world.both()[1] == ["one"]


def test_rows_that_the_thread_of_a_cancelled_request_has_yet_to_write_are_in_no_other_unit(
    world: FastApiWorld, dualwrite: DualWrite
) -> None:
    """SQLAlchemy writes many rows by several statements, in one call of the session."""
    began, go_on, ended = (threading.Event() for _ in range(3))
    refused: list[str] = []

    @event.listens_for(world.engine, "before_cursor_execute")
    def hold(_: Any, __: Any, ___: str, parameters: Any, *____: object) -> None:
        if "late" in parameters:
            began.set()
            assert go_on.wait(asgi.SECONDS)

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)]) -> None:
        statement = insert(events).returning(events.c.value)
        rows = [{"value": "one"}, {"value": "late"}]
        try:
            tx.session.execute(statement, rows, execution_options={"insertmanyvalues_page_size": 1})
        except ResourceClosedError:
            refused.append("late")
        finally:
            ended.set()

    async def cancelled() -> None:
        request = asyncio.create_task(asgi.request(world.app, "POST", "/"))
        await asyncio.to_thread(began.wait, asgi.SECONDS)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await asyncio.to_thread(next_unit)

    def next_unit() -> None:
        with dualwrite.transaction() as tx:
            world.write(tx, "two")
            go_on.set()
            assert ended.wait(asgi.SECONDS)

    asyncio.run(cancelled())
    assert world.both() == (["two"], ["two"])
    assert refused == ["late"]


def test_a_request_that_is_cancelled_as_its_unit_begins_leaves_the_slot_to_the_next(
    world: FastApiWorld, dualwrite_factory: Make
) -> None:
    """The thread that enters the unit goes on: with a slot that it waits for, or that it has and recovers."""
    began, go_on = threading.Event(), threading.Event()

    def on_step(step: str) -> None:
        if step == "RECOVER_LOCK":
            began.set()
            assert go_on.wait(asgi.SECONDS)

    dual_write = dualwrite_factory(on_step=on_step, pool_size=1, acquire_timeout=asgi.SECONDS)

    @world.app.post("/{number}")
    def handle(number: int, tx: Annotated[Transaction, unit_of_work(dual_write)]) -> int:
        world.write(tx, str(number))
        return number

    async def main() -> asgi.Answer:
        entering = asyncio.create_task(asgi.request(world.app, "POST", "/1"))
        await asyncio.to_thread(began.wait, asgi.SECONDS)
        pool = manager_of(dual_write).process.pool
        waiting = asyncio.create_task(asgi.request(world.app, "POST", "/2"))
        await asyncio.to_thread(eventually, lambda: pool.waiting, bool)
        following = asyncio.create_task(asgi.request(world.app, "POST", "/3"))
        for request in (waiting, entering):
            request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting  # whose wait ends at once
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await entering
        return await following

    assert asyncio.run(asyncio.wait_for(main(), asgi.SECONDS)) == (200, 3)
    assert world.both() == (["3"], ["3"])
    counters = dual_write.counters
    assert (counters.units, counters.committed, counters.rolled_back) == (2, 1, 1)


def test_a_request_that_is_cancelled_before_its_unit_has_a_slot_leaves_nothing_open(
    world: FastApiWorld, dualwrite_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, entered = (threading.Event() for _ in range(3))
    enter = Block.__enter__

    def held(block: Block) -> Transaction:
        began.set()
        assert go_on.wait(asgi.SECONDS)
        try:
            return enter(block)
        finally:
            entered.set()

    dual_write = dualwrite_factory()

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dual_write)]) -> None:
        world.write(tx, "one")

    async def main() -> None:
        request = asyncio.create_task(asgi.request(world.app, "POST", "/"))
        await asyncio.to_thread(began.wait, asgi.SECONDS)
        request.cancel()
        await asyncio.wait({request}, timeout=AT_ONCE)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await asyncio.to_thread(entered.wait, asgi.SECONDS)

    monkeypatch.setattr(Block, "__enter__", held)
    asyncio.run(main())
    assert dual_write.usage.used == 0
    assert world.both() == ([], [])


def test_the_handler_of_a_cancelled_request_commits_no_part_of_itself(
    world: FastApiWorld, dualwrite_factory: Make
) -> None:
    """Its thread goes on, and the unit that it would join is rolled back. What runs after the request is not its."""
    dual_write = dualwrite_factory(pool_size=2)
    began, go_on, refused = (threading.Event() for _ in range(3))

    @dual_write.transactional
    def announce(tx: Transaction, value: str) -> None:
        world.write(tx, value)

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dual_write)]) -> None:
        world.write(tx, "one")
        began.set()
        assert go_on.wait(asgi.SECONDS)
        with pytest.raises(InvalidTransactionStateError, match="the request was cancelled"):
            announce("two")
        refused.set()

    async def limited() -> None:
        """A middleware with a time limit."""
        try:
            await asgi.request(world.app, "POST", "/")
        except asyncio.CancelledError:
            await asyncio.to_thread(announce, "cancelled")

    async def main() -> None:
        request = asyncio.create_task(limited())
        await asyncio.to_thread(began.wait, asgi.SECONDS)
        request.cancel()
        await request
        go_on.set()
        assert await asyncio.to_thread(refused.wait, asgi.SECONDS)

    asyncio.run(main())
    assert world.both() == (["cancelled"], ["cancelled"])
