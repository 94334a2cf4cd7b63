"""A unit of work that raises leaves nothing on either side."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.event_table import events
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.usual_unit import (
    fail_at,
    in_both,
    raising,
    recovered,
    run_unit,
    write,
    write_unit,
    writing,
)

Make = Callable[..., DualWrite]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_any_error_of_the_user_code_is_raised_unchanged_and_rolls_both_sides_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, error: BaseException
) -> None:
    with pytest.raises(type(error)) as raised:
        run_unit(dual_write, writing("one"), raising(error))
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert in_both(sqlite_engine, kafka)
    assert kafka.aborted == ["one"]
    assert dual_write.counters.rolled_back == 1
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")


def test_a_generator_that_is_never_finished_rolls_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    def unit() -> Iterator[int]:
        with dual_write.transaction() as tx:
            write(tx, "one")
            yield 1

    generator = unit()
    next(generator)
    generator.close()  # type: ignore[attr-defined]
    assert in_both(sqlite_engine, kafka)


@pytest.mark.parametrize("request_name", ["begin", "produce", "prepare"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_kafka_failure_before_the_commit_rolls_the_database_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, request_name: str, fault: Fault
) -> None:
    fail_at(kafka, request_name, fault)
    with pytest.raises(KafkaUnavailableError) as raised:
        write_unit(dual_write, "one")
    assert raised.value.retriable
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka)
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")


def test_an_error_of_kafka_that_the_user_code_swallows_is_raised_at_the_end(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "begin")
    errors: list[KafkaUnavailableError] = []

    def produce(tx: Transaction) -> None:
        try:
            tx.produce("events", "one")
        except KafkaUnavailableError as error:
            errors.append(error)

    with pytest.raises(KafkaUnavailableError) as raised:
        run_unit(dual_write, lambda tx: tx.execute(insert(events).values(value="one")), produce, produce)
    assert errors == [raised.value] * 2
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka)


def test_a_unit_whose_every_record_was_refused_is_not_committed(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "produce")

    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            with pytest.raises(KafkaUnavailableError):
                tx.produce("events", "one")

    with pytest.raises(InvalidTransactionStateError, match="no record to commit"):
        unit()
    assert in_both(sqlite_engine, kafka)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": 1}, TypeError),
        ({"timestamp": -1}, ValueError),
        ({"headers": (1 // number for number in [0])}, ZeroDivisionError),
    ],
)
def test_a_unit_whose_only_record_is_invalid_is_not_committed(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, arguments: dict[str, Any], error: type[Exception]
) -> None:
    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            with pytest.raises(error):
                tx.produce("events", **arguments)

    with pytest.raises(InvalidTransactionStateError, match="no record to commit"):
        unit()
    assert in_both(sqlite_engine, kafka)


def test_an_abort_that_fails_is_not_tried_again_but_recovered(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "abort", Fault.BEFORE)
    with pytest.raises(ValueError, match="user"):
        run_unit(dual_write, writing("one"), raising(ValueError("user")))
    assert recovered(dual_write)
    assert kafka.requests.count("abort") == 1
    assert kafka.requests[-3:] == ["init-keep", "complete", "init"]
    assert in_both(sqlite_engine, kafka)
    assert dual_write.counters.finished_later == 1
    assert dual_write.counters.rolled_back == 1


def test_a_constraint_that_fails_only_at_commit_rolls_both_back(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with sqlite_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )
    dual_write = make_dual_write()

    def unit() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            tx.connection.exec_driver_sql("INSERT INTO child VALUES (7)")

    with sqlite_engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")  # the pool's only connection, so the unit's too
    with pytest.raises(IntegrityError):
        unit()
    assert in_both(sqlite_engine, kafka)
    assert dual_write.counters.rolled_back == 1
