"""@transactional(get): units of work of a DualWrite that is made later than the function."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.late_binding import transactional
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.aio.async_dual_writes import write as write_awaited
from tests.support.coordinator.event_table import stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import write

Make = Callable[..., DualWrite]


def test_the_dual_write_is_asked_for_at_each_call(make_dual_write: Make, sqlite_engine: Engine) -> None:
    asked: list[DualWrite] = []
    made = make_dual_write()

    def get() -> DualWrite:
        asked.append(made)
        return made

    @transactional(get)
    def put(tx: Transaction, value: str) -> str:
        """Put it in both."""
        write(tx, value)
        return value

    assert asked == []
    assert (put.__name__, put.__doc__) == ("put", "Put it in both.")
    assert [put("one"), put(value="two")] == ["one", "two"]
    assert len(asked) == 2
    assert stored_values(sqlite_engine) == ["one", "two"]


def test_a_method_uses_its_objects_dual_write(make_dual_write: Make, sqlite_engine: Engine) -> None:
    class Shop:
        def __init__(self, dual_write: DualWrite) -> None:
            self.dual_write = dual_write

        @transactional(lambda self: self.dual_write)
        def place(self, tx: Transaction, value: str) -> "Shop":
            write(tx, value)
            return self

    shop = Shop(make_dual_write())
    assert shop.place("one") is shop
    assert stored_values(sqlite_engine) == ["one"]


def test_each_dual_write_gets_its_own_units(make_dual_write: Make) -> None:
    first, second = make_dual_write(application="first"), make_dual_write(application="second")
    current = [first]

    @transactional(lambda: current[0])
    def put(tx: Transaction, value: str) -> None:
        write(tx, value)

    put("one")
    current[0] = second
    put("two")
    put("three")
    assert (first.counters.committed, second.counters.committed) == (1, 2)


def test_it_is_run_again_as_often_as_it_says(make_dual_write: Make, kafka: FakeKafka) -> None:
    runs: list[str] = []
    made = make_dual_write()

    @transactional(lambda: made, retries=2)
    def put(tx: Transaction, value: str) -> None:
        runs.append(value)
        write(tx, value)
        if len(runs) < 3:
            raise KafkaUnavailableError("not now")

    put("one")
    assert runs == ["one"] * 3
    assert kafka.committed == ["one"]


def test_a_coroutine_function_uses_an_async_dual_write(sqlite_place: AsyncPlace) -> None:
    made: list[Any] = []

    @transactional(lambda: made[0], retries=1)
    async def put(tx: AsyncTransaction, value: str) -> str:
        await write_awaited(tx, value)
        return value

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            made.append(dual_write)
            assert await put("one") == "one"

    assert inspect.iscoroutinefunction(put)
    run(main())
    assert sqlite_place.in_both("one")


@pytest.mark.parametrize("returned", [None, 42, object()])
def test_what_is_no_dual_write_is_refused_at_the_call(returned: Any) -> None:
    @transactional(lambda: returned)
    def put(tx: Transaction) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match=r"put: transactional\(get\) needs a DualWrite, and get returned "):
        put()


def test_a_dual_write_of_the_other_kind_is_refused_at_the_call(make_dual_write: Make, sqlite_place: AsyncPlace) -> None:
    blocking = make_dual_write()

    @transactional(lambda: blocking)
    async def put(tx: AsyncTransaction) -> None:
        raise AssertionError

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:

            @transactional(lambda: dual_write)
            def put_blocking(tx: Transaction) -> None:
                raise AssertionError

            with pytest.raises(ConfigurationError, match="needs an AsyncDualWrite"):
                await put()
            with pytest.raises(ConfigurationError, match="needs a DualWrite"):
                put_blocking()

    run(main())


@pytest.mark.parametrize(
    "get", [42, lambda one, two: None, lambda *, name: None], ids=["a number", "two arguments", "a keyword"]
)
def test_a_wrong_get_is_refused_at_once(get: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"transactional\("):
        transactional(get)


@pytest.mark.parametrize("get", [lambda *all: None, lambda first=1: None, dict])
def test_arguments_that_get_need_not_have_are_not_given(get: Any) -> None:
    @transactional(get)
    def put(tx: Transaction) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="needs a DualWrite"):
        put()


def test_a_function_without_tx_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="its first parameter must be tx"):
        transactional(lambda: None)(lambda: None)
