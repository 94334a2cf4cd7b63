"""A unit of work inside another one of the same DualWrite: it joins, and its failure is the whole unit's."""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import DatabaseBusyError, InvalidTransactionStateError
from tests.support.coordinator.event_table import events
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, write
from tests.support.waiting import eventually


def fail_inside(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        write(tx, value)
        raise ValueError(value)


def await_waiting(dual_write: DualWrite) -> None:
    """Return once another thread waits for a slot."""
    assert eventually(lambda: manager_of(dual_write).process.pool.waiting), "no other unit has begun"


def test_an_inner_block_is_the_same_unit_and_commits_nothing(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with dual_write.transaction() as outer:
        write(outer, "one")
        with dual_write.transaction() as inner:
            assert inner is outer
            write(inner, "two")
            with dual_write.transaction() as innermost:
                assert innermost is outer
        assert kafka.committed == []
        write(outer, "three")
    assert in_both(sqlite_engine, kafka, "one", "two", "three")
    assert (dual_write.counters.units, kafka.requests.count("begin")) == (1, 1)


def test_a_decorated_function_joins_too(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    @dual_write.transactional
    def place(tx: Transaction, value: str) -> Transaction:
        write(tx, value)
        return tx

    with dual_write.transaction() as tx:
        assert place("one") is tx
        assert place("two") is tx
    place("three")
    assert in_both(sqlite_engine, kafka, "one", "two", "three")
    assert dual_write.counters.units == 2


def test_an_error_that_leaves_both_blocks_is_the_callers(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            fail_inside(dual_write, "two")

    with pytest.raises(ValueError, match="two"):
        unit()
    assert in_both(sqlite_engine, kafka)


@pytest.mark.parametrize("produces", [True, False])
def test_an_error_of_an_inner_block_that_is_swallowed_dooms_the_whole_unit(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, produces: bool
) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            with pytest.raises(ValueError, match="two"):
                fail_inside(dual_write, "two")
            if produces:
                write(tx, "three")

    with pytest.raises(InvalidTransactionStateError, match=r"an inner block .* ValueError\('two'\)") as raised:
        unit()
    assert isinstance(raised.value.__cause__, ValueError)
    assert in_both(sqlite_engine, kafka)
    with dual_write.transaction() as tx:
        write(tx, "four")
    assert in_both(sqlite_engine, kafka, "four")


def test_another_error_after_a_swallowed_one_is_what_the_caller_gets(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def unit() -> None:
        with dual_write.transaction():
            with pytest.raises(ValueError, match="one"):
                fail_inside(dual_write, "one")
            raise KeyError("outer")

    with pytest.raises(KeyError):
        unit()
    assert in_both(sqlite_engine, kafka)


def test_after_a_unit_the_next_is_one_of_its_own(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with dual_write.transaction() as first:
        write(first, "one")
    block = dual_write.transaction()
    with block as second:
        assert second is not first
        write(second, "two")
    with pytest.raises(InvalidTransactionStateError, match="call transaction"):
        block.__enter__()
    assert in_both(sqlite_engine, kafka, "one", "two")


def test_a_joined_transaction_cannot_be_entered_again(dual_write: DualWrite) -> None:
    with dual_write.transaction():
        inner = dual_write.transaction()
        with inner:
            pass
        with pytest.raises(InvalidTransactionStateError, match="call transaction"):
            inner.__enter__()


def test_a_callback_while_the_block_is_left_cannot_begin_another(
    make_dual_write: Callable[..., DualWrite], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    refused: list[Exception] = []

    def observe(step: str) -> None:
        if step == "PREPARE_KAFKA":
            with pytest.raises(InvalidTransactionStateError) as raised:
                dual_write.transaction().__enter__()
            refused.append(raised.value)

    dual_write = make_dual_write(on_step=observe)
    with dual_write.transaction() as tx:
        write(tx, "one")
    assert len(refused) == 1
    assert in_both(sqlite_engine, kafka, "one")


def test_another_dual_write_is_another_unit(
    make_dual_write: Callable[..., DualWrite], sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    impatient = create_engine(sqlite_engine.url, connect_args={"timeout": 0})
    one, two = make_dual_write(), make_dual_write(impatient, application="others", participant=FakeKafka().participant)
    two.recover()
    with one.transaction() as outer:
        outer.produce("events", "one")
        with pytest.raises(DatabaseBusyError):  # which SQLite has for a second unit at once
            two.transaction().__enter__()
    impatient.dispose()


def test_a_unit_of_another_thread_is_not_joined(dual_write: DualWrite, kafka: FakeKafka) -> None:
    entered = threading.Event()

    def unit() -> None:
        with dual_write.transaction() as tx:
            entered.set()
            tx.produce("events", "theirs")

    with ThreadPoolExecutor(1) as thread:
        with dual_write.transaction() as tx:
            other = thread.submit(unit)
            await_waiting(dual_write)
            assert not entered.is_set()
            tx.produce("events", "ours")
        other.result(20)
    assert kafka.committed == ["ours", "theirs"]


def test_a_thread_that_got_a_copy_of_the_context_does_not_join(dual_write: DualWrite, kafka: FakeKafka) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.produce("events", "theirs")

    with ThreadPoolExecutor(1) as thread:
        with dual_write.transaction() as tx:
            other = thread.submit(copy_context().run, unit)
            await_waiting(dual_write)
            tx.produce("events", "ours")
        other.result(20)
    assert kafka.committed == ["ours", "theirs"]


def test_a_unit_whose_generator_is_closed_elsewhere_is_not_joined_any_more(
    dual_write: DualWrite, kafka: FakeKafka
) -> None:
    def unit() -> Iterator[Any]:
        with dual_write.transaction() as tx:
            tx.produce("events", "rolled back")
            yield tx

    generator = unit()
    first = next(generator)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(generator.close).result(20)  # type: ignore[attr-defined]
    with dual_write.transaction() as tx:
        assert tx is not first
        tx.produce("events", "one")
    assert kafka.committed == ["one"]


def test_a_unit_inside_a_suspended_generators_is_lost_with_it_on_both_sides(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def unit() -> Iterator[Any]:
        with dual_write.transaction() as tx:
            write(tx, "generator's")
            yield tx

    generator = unit()
    outer = next(generator)
    with dual_write.transaction() as tx:
        assert tx is outer
        write(tx, "caller's")
    generator.close()  # type: ignore[attr-defined]
    assert in_both(sqlite_engine, kafka)


def test_a_unit_of_a_generator_that_is_collected_in_a_cycle_ends_without_a_word(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """As at the end of the interpreter: Python clears the weak references to what it collects, and then closes the
    generator."""

    def unit(itself: list[Any]) -> Iterator[list[Any]]:
        with dual_write.transaction() as tx:
            write(tx, "generator's")
            yield itself

    cycle: list[Any] = []
    cycle.append(unit(cycle))
    next(cycle[0])
    del cycle
    gc.collect()  # an exception would be a warning, and so an error
    with dual_write.transaction() as tx:
        write(tx, "one")
    assert in_both(sqlite_engine, kafka, "one")


def test_an_inner_block_of_a_generator_that_is_collected_in_a_cycle_dooms_the_whole_unit(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """As one of a generator that is closed: what follows its ``yield`` is lost."""

    def inner(itself: list[Any]) -> Iterator[list[Any]]:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="two"))
            yield itself
            tx.produce("events", value="two")

    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            cycle: list[Any] = []
            cycle.append(inner(cycle))
            next(cycle[0])
            del cycle
            gc.collect()

    with pytest.raises(InvalidTransactionStateError, match="an inner block of this unit of work raised"):
        unit()
    assert in_both(sqlite_engine, kafka)
