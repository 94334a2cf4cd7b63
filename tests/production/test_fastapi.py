"""FastAPI: a unit of work as a dependency commits before its response is sent, whichever threads it runs in."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy import create_engine, insert, make_url
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
from dualwrite.web import unit_of_work
from tests.support.coordinator.event_table import events
from tests.support.production import asgi
from tests.support.production.fastapi_world import FastApiWorld, kafka_broker, world

__all__ = ["kafka_broker", "world"]

Make = Callable[..., DualWrite]


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
