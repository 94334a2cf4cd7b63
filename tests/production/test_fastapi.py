"""FastAPI: a unit of work as a dependency commits before its response is sent, whichever threads it runs in."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, event, insert, make_url
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import (
    AsyncDualWrite,
    AsyncTransaction,
    ConfigurationError,
    DualWrite,
    DualWriteError,
    InvalidTransactionStateError,
    Transaction,
)
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.unit.block import Block
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.testing.kafka import KafkaBroker
from dualwrite.web import unit_of_work
from tests.support.coordinator.event_table import events, stored_values, user_metadata
from tests.support.production import asgi
from tests.support.spark.lock_waits import AT_ONCE
from tests.support.waiting import eventually

Make = Callable[..., DualWrite]


class FastApiWorld:
    """Both places, and an application over them."""

    def __init__(self, engine: Engine, broker: KafkaBroker) -> None:
        user_metadata.create_all(engine)
        self.engine = engine
        self.broker = broker
        self.topic = broker.create_topic()
        self.app = FastAPI()
        self.app.add_exception_handler(DualWriteError, self._refuse)

    @staticmethod
    def _refuse(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": type(error).__name__}, 503 if getattr(error, "retriable", False) else 500)

    def write(self, tx: Transaction, value: str) -> None:
        tx.execute(insert(events).values(value=value))
        tx.produce(self.topic, value=value)

    def both(self) -> tuple[list[str], list[str]]:
        """What is in the table, and what a read_committed consumer sees."""
        seen = [str(record.value, "utf-8") for record in self.broker.read(self.topic) if record.value is not None]
        return stored_values(self.engine), seen

    def post(self, path: str = "/", **options: Any) -> asgi.Answer:
        return asgi.call(self.app, "POST", path, **options)


@pytest.fixture
def world(dualwrite_engine: Engine, broker: KafkaBroker) -> FastApiWorld:
    return FastApiWorld(dualwrite_engine, broker)


@pytest.fixture
def kafka_broker(broker: KafkaBroker) -> KafkaBroker:
    return broker


def after_the_state_is_stored(step: str) -> None:
    if step == "COMMIT_DATABASE":
        raise DualWriteError("refused at the commit")


def test_a_plain_dependency_with_yield_commits_after_the_answer_was_sent(
    world: FastApiWorld, dualwrite: DualWrite
) -> None:
    """The trap, as FastAPI has it: should this fail, FastAPI has changed, and the page says what is not so any more."""

    def unit() -> Iterator[Transaction]:
        with dualwrite.transaction() as tx:
            yield tx

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, Depends(unit)]) -> str:
        world.write(tx, "one")
        return "done"

    when_sent: list[Any] = []
    assert world.post(at_start=lambda: when_sent.append(world.both())) == (200, "done")
    assert when_sent == [([], [])], "the client has been told of what has not happened"
    assert world.both() == (["one"], ["one"])


def test_the_unit_of_work_is_committed_before_the_answer_is_sent(world: FastApiWorld, dualwrite: DualWrite) -> None:
    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)]) -> str:
        world.write(tx, "one")
        return "done"

    when_sent: list[Any] = []
    assert world.post(at_start=lambda: when_sent.append(world.both())) == (200, "done")
    assert when_sent == [(["one"], ["one"])]


def test_an_error_of_the_commit_becomes_the_answer(world: FastApiWorld, dualwrite_factory: Make) -> None:
    dual_write = dualwrite_factory(on_step=after_the_state_is_stored)

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dual_write)]) -> str:
        world.write(tx, "one")
        return "done"

    answer = world.post()
    assert (answer.status, answer.body) == (500, {"detail": "DualWriteError"})
    assert world.both() == ([], [])


def test_an_error_in_the_handler_rolls_both_sides_back(world: FastApiWorld, dualwrite: DualWrite) -> None:
    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)]) -> str:
        world.write(tx, "one")
        raise HTTPException(409, "there is one already")

    assert world.post() == (409, {"detail": "there is one already"})
    assert world.both() == ([], [])


def test_writes_after_the_answer_was_begun_are_refused(world: FastApiWorld, dualwrite: DualWrite) -> None:
    """The body of a stream, and background tasks."""
    seen: list[str] = []

    def later(tx: Transaction) -> Iterator[str]:
        with pytest.raises(InvalidTransactionStateError, match="inside its own block"):
            world.write(tx, "late")
        seen.append("refused")
        yield "[]"

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)], tasks: BackgroundTasks) -> StreamingResponse:
        world.write(tx, "one")
        tasks.add_task(lambda: list(later(tx)))
        return StreamingResponse(later(tx))

    assert world.post() == (200, [])
    assert seen == ["refused", "refused"]
    assert world.both() == (["one"], ["one"])


class FastApiOrder(BaseModel):
    number: int


def test_an_answer_that_cannot_be_made_rolls_both_sides_back(world: FastApiWorld, dualwrite: DualWrite) -> None:
    @world.app.post("/", response_model=FastApiOrder)
    def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)]) -> Any:
        world.write(tx, "one")
        return {"number": "none"}

    with pytest.raises(Exception, match="number"):
        world.post()
    assert world.both() == ([], [])


def test_other_dependencies_and_units_in_the_handler_are_part_of_it(world: FastApiWorld, dualwrite: DualWrite) -> None:
    dependency = unit_of_work(lambda connection: connection.app.state.dual_write)
    world.app.state.dual_write = dualwrite

    def audited(tx: Annotated[Transaction, dependency]) -> None:
        world.write(tx, "audited")

    @dualwrite.transactional
    def announce(tx: Transaction) -> None:
        world.write(tx, "announced")

    def handle(tx: Annotated[Transaction, dependency], _: Annotated[None, Depends(audited)], fail: bool) -> str:
        announce()
        with dualwrite.transaction() as inner:
            assert inner is tx
        if fail:
            raise HTTPException(409, "no")
        return "done"

    world.app.post("/{fail}")(handle)
    assert world.post("/true").status == 409
    assert world.both() == ([], [])
    assert world.post("/false") == (200, "done")
    assert world.both() == (["audited", "announced"], ["audited", "announced"])


def test_requests_at_the_same_time_have_units_of_their_own(world: FastApiWorld, dualwrite_factory: Make) -> None:
    """More requests than threads for handlers, and fewer slots: who waits for a slot takes no handler's thread."""
    dual_write = dualwrite_factory(pool_size=2)
    seen: list[int] = []

    @world.app.post("/{number}")
    def handle(number: int, tx: Annotated[Transaction, unit_of_work(dual_write)]) -> int:
        seen.append(id(tx))
        world.write(tx, str(number))
        return number

    async def all_at_once() -> list[asgi.Answer]:
        return await asyncio.gather(*(asgi.request(world.app, "POST", f"/{number}") for number in range(60)))

    answers = asyncio.run(asyncio.wait_for(all_at_once(), asgi.SECONDS))
    assert [answer.status for answer in answers] == [200] * 60
    stored, produced = world.both()
    assert sorted(stored) == sorted(produced) == sorted(map(str, range(60)))


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


def test_units_in_the_handler_join_those_of_two_databases(
    world: FastApiWorld, dualwrite_factory: Make, tmp_path: Path
) -> None:
    one = dualwrite_factory()
    two = dualwrite_factory("billing", engine=create_engine(f"sqlite:///{tmp_path / 'billing.db'}"))

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(one)], bill: Annotated[Transaction, unit_of_work(two)]) -> str:
        with one.transaction() as inner, two.transaction() as inner_bill:
            assert (inner, inner_bill) == (tx, bill)
        world.write(tx, "one")
        bill.produce(world.topic, value="bill")
        return "done"

    assert world.post() == (200, "done")
    stored, seen = world.both()
    assert (stored, sorted(seen)) == (["one"], ["bill", "one"])


def test_async_handlers_have_an_async_unit_of_work(world: FastApiWorld, dualwrite_application: str) -> None:
    sent: list[Any] = []

    async def main() -> asgi.Answer:
        engine = create_async_engine(make_url(str(world.engine.url)).set(drivername="sqlite+aiosqlite"))
        dual_write = AsyncDualWrite(engine, world.broker.client_config, application=dualwrite_application)
        world.app.state.dual_write = dual_write

        @dual_write.transactional
        async def announce(tx: AsyncTransaction) -> None:
            await tx.produce(world.topic, value="one")

        @world.app.post("/")
        async def handle(tx: Annotated[AsyncTransaction, unit_of_work(lambda at: at.app.state.dual_write)]) -> str:
            await tx.execute(insert(events).values(value="one"))
            await announce()
            return "done"

        answer = await asgi.request(world.app, "POST", "/", at_start=lambda: sent.append(world.both()))
        await dual_write.close()
        await engine.dispose()
        return answer

    assert asyncio.run(asyncio.wait_for(main(), asgi.SECONDS)) == (200, "done")
    assert sent == [(["one"], ["one"])]


def test_an_invalid_dual_write_is_refused(world: FastApiWorld) -> None:
    with pytest.raises(ConfigurationError, match="pass a DualWrite, or a function that returns one"):
        unit_of_work("orders")  # type: ignore[arg-type]

    @world.app.post("/")
    def handle(tx: Annotated[Transaction, unit_of_work(lambda _: None)]) -> None:  # type: ignore[arg-type,return-value]
        raise AssertionError

    assert world.post() == (500, {"detail": "ConfigurationError"})


def test_a_fastapi_that_sends_the_answer_first_is_refused(dualwrite: DualWrite, monkeypatch: Any) -> None:
    def depends(dependency: object, *, use_cache: bool = True) -> None: ...

    monkeypatch.setattr("fastapi.Depends", depends)
    with pytest.raises(ConfigurationError, match="sends the answer before the commit"):
        unit_of_work(dualwrite)


def test_a_blocking_unit_is_refused_in_an_async_handler(world: FastApiWorld, dualwrite: DualWrite) -> None:
    @world.app.post("/")
    async def handle(tx: Annotated[Transaction, unit_of_work(dualwrite)]) -> str:
        with pytest.raises(InvalidTransactionStateError, match="use AsyncDualWrite there"):
            tx.execute(insert(events).values(value="one"))
        await asyncio.to_thread(world.write, tx, "two")
        return "done"

    assert world.post() == (200, "done")
    assert world.both() == (["two"], ["two"])
