"""A decorated function is a unit of work."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError
from tests.support.coordinator.event_table import stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, write


def test_a_decorated_function_is_a_unit_of_work(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    @dual_write.transactional
    def place_order(tx: Transaction, value: str, *, shout: bool = False) -> str:
        """Place it."""
        write(tx, value.upper() if shout else value)
        if value == "bad":
            raise ValueError(value)
        return f"placed {value}"

    assert place_order("one") == "placed one"
    assert place_order("two", shout=True) == "placed two"
    with pytest.raises(ValueError, match="bad"):
        place_order("bad")
    assert in_both(sqlite_engine, kafka, "one", "TWO")
    assert (place_order.__name__, place_order.__doc__) == ("place_order", "Place it.")


def test_coroutines_and_generators_are_refused_as_they_would_run_after_the_commit(dual_write: DualWrite) -> None:
    async def coroutine(tx: Transaction) -> None:
        """Nothing."""

    def generator(tx: Transaction) -> Iterator[int]:
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(ConfigurationError, match="decorate a plain function"):
            dual_write.transactional(function)  # type: ignore[arg-type]


def test_a_method_is_a_unit_of_work_too(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    class Shop:
        name = "shop"

        @dual_write.transactional
        def place(self, tx: Transaction, value: str) -> str:
            write(tx, value)
            return self.name

        @dual_write.transactional(retries=1)
        def place_again(self, tx: Transaction, value: str) -> str:
            write(tx, value)
            return self.name

    shop = Shop()
    assert shop.place("one") == shop.place_again(value="two") == "shop"
    assert stored_values(sqlite_engine) == kafka.committed == ["one", "two"]


def test_transactional_refuses_to_decorate_anything_but_a_function(dual_write: DualWrite) -> None:
    with pytest.raises(
        ConfigurationError, match=r"3 is not a function: write @transactional, or @transactional\(retries=3"
    ):
        dual_write.transactional(3)  # type: ignore[call-overload]
