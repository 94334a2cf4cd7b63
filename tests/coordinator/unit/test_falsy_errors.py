"""An exception may be falsy, by its ``__len__`` or ``__bool__``. It still rolls the unit of work back."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import CONFIG, events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.searches.unit_search import MappedEvent
from tests.support.user_errors import FalsyError


def write(tx: Transaction) -> None:
    tx.execute(insert(events).values(value="one"))
    tx.produce("events", "one")


def in_the_block(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        write(tx)
        raise FalsyError


def in_an_inner_block(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        write(tx)
        with dual_write.transaction():
            raise FalsyError


def by_a_decorated_function(dual_write: DualWrite) -> None:
    @dual_write.transactional
    def act(tx: Transaction) -> None:
        write(tx)
        raise FalsyError

    act()


def by_a_session(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        write(tx)
        with tx.session:
            raise FalsyError


def by_records(dual_write: DualWrite) -> None:
    def headers() -> Any:
        raise FalsyError
        yield

    with dual_write.transaction() as tx:
        write(tx)
        tx.produce("events", "two", headers=headers())


@pytest.mark.parametrize(
    "unit",
    [in_the_block, in_an_inner_block, by_a_decorated_function, by_a_session, by_records],
    ids=lambda it: it.__name__,
)
def test_a_falsy_exception_rolls_both_sides_back(sqlite_url: str, unit: Callable[[DualWrite], None]) -> None:
    engine, kafka = ready_engine(sqlite_url), FakeKafka()
    options: Any = {"application": "a", "participant": kafka.participant}
    with DualWrite(engine, CONFIG, **options) as dual_write:
        with pytest.raises(FalsyError):
            unit(dual_write)
        assert (stored_values(engine), kafka.committed) == ([], [])
        with dual_write.transaction() as tx:
            write(tx)
    assert (stored_values(engine), kafka.committed) == (["one"], ["one"])
    engine.dispose()


def flush_beside_records(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        tx.session.add(MappedEvent("one"))
        tx.produce("events", "one")


def test_a_falsy_exception_that_strikes_while_records_are_sent_reaches_the_caller(sqlite_url: str) -> None:
    engine, kafka = ready_engine(sqlite_url), FakeKafka()

    def strike(request: str) -> None:
        if request == "send":
            raise FalsyError

    kafka.before_effect = strike
    options: Any = {"application": "a", "participant": kafka.participant}
    with DualWrite(engine, CONFIG, **options) as dual_write:
        with pytest.raises(FalsyError):
            flush_beside_records(dual_write)
        assert (stored_values(engine), kafka.committed) == ([], [])
    engine.dispose()


def test_a_falsy_exception_rolls_both_sides_back_under_asyncio(sqlite_place: AsyncPlace) -> None:
    async def unit(dual_write: AsyncDualWrite) -> None:
        async with dual_write.transaction() as tx:
            await tx.execute(insert(events).values(value="one"))
            await tx.produce("events", "one")
            raise FalsyError

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(FalsyError):
                await unit(dual_write)

    run(main())
    assert sqlite_place.in_both()
