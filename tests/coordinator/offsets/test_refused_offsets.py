"""tx.store_offsets refuses what would pass records over, and a unit that is run again uses the same records."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPosition
from sqlalchemy import Engine, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import (
    ConfigurationError,
    DatabaseNotReadyError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    RebalancedError,
)
from tests.support.coordinator.event_table import refuse_inserts
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, Position, positions
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.offset_units import P, Q, assigned, rows, use, used, write

# What is refused.


@pytest.mark.parametrize("method", ["store_offsets", "send_offsets"])
@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        (["in"], TypeError),
        ("in", TypeError),
        ([("in", 0)], TypeError),
        (7, TypeError),
        (KafkaPosition("in", 0, 7), TypeError),
        ([Position("in", 0, -2)], ValueError),
    ],
)
def test_invalid_offsets_are_refused_and_the_unit_continues(
    lite: DualWrite, sqlite_engine: Engine, method: str, offsets: Any, error: type[Exception]
) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    records = consumer.poll(P, 2)
    with lite.transaction() as tx:
        write(tx, P, records)
        with pytest.raises(error, match=r"^offsets: "):
            getattr(tx, method)(consumer, offsets)
        tx.store_offsets(consumer)
    assert used(sqlite_engine) == ["in-0@0", "in-0@1"]
    assert rows(sqlite_engine) == {("group", P): 2}
    with pytest.raises(TypeError, match=r"^partitions: \('in', 0\): give a list of confluent_kafka.TopicPartition"):
        lite.seek_to_stored(consumer, [("in", 0)])


def test_a_first_offset_that_the_database_refuses_is_not_taken_for_another_members(
    lite: DualWrite, sqlite_engine: Engine
) -> None:
    refuse_inserts(sqlite_engine, table.name)
    with pytest.raises(ConfigurationError, match=f"^the database refuses a row of {table.name}: refused: look for a "):
        assigned(lite, FakeGroup(), P)


def test_a_consumer_without_a_position_stores_no_offsets(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = FakeConsumer(FakeGroup())
    consumer.next = {P: 0}
    with pytest.raises(InvalidTransactionStateError, match="on_assign"):
        use(lite, consumer, P, 3)
    assert used(sqlite_engine) == []


def test_a_consumer_that_reads_on_after_a_failure_stores_nothing(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    for fail in (True, False):
        with pytest.raises(KeyError if fail else InvalidTransactionStateError):
            use(lite, consumer, P, 2, fail=fail)
    lite.seek_to_stored(consumer)
    use(lite, consumer, P, 5)
    assert used(sqlite_engine) == [f"in-0@{record}" for record in range(5)]


def test_a_unit_that_could_not_begin_has_failed_too(lite: DualWrite, kafka: FakeKafka, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    kafka.fault = lambda request: Fault.BEFORE
    with pytest.raises(KafkaUnavailableError):
        use(lite, consumer, P, 2)
    kafka.fault = lambda request: Fault.NONE
    with pytest.raises(InvalidTransactionStateError, match="seek_to_stored"):
        use(lite, consumer, P, 2)
    assert used(sqlite_engine) == []


def test_records_in_hand_may_be_used_again(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    with pytest.raises(KeyError):
        use(lite, consumer, P, 3, fail=True)
    for record in range(3):
        with lite.transaction() as tx:
            tx.store_offsets(
                consumer, [type(position)(position.topic, position.partition, record + 1) for position in positions(P)]
            )
            write(tx, P, [record])
    use(lite, consumer, P, 1)
    assert used(sqlite_engine) == [f"in-0@{record}" for record in range(4)]


def test_storing_offsets_inside_a_savepoint_is_refused(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    consumer.poll(P, 1)
    with lite.transaction() as tx:
        with pytest.raises(InvalidTransactionStateError, match="savepoint"), tx.connection.begin_nested():
            tx.store_offsets(consumer)
        tx.store_offsets(consumer)
    assert rows(sqlite_engine) == {("group", P): 1}


def test_a_unit_may_store_twice(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P, Q)
    with lite.transaction() as tx:
        consumer.poll(P, 1)
        tx.store_offsets(consumer)
        consumer.poll(P, 1)
        consumer.poll(Q, 4)
        tx.store_offsets(consumer)
        tx.store_offsets(consumer)
    use(lite, consumer, P, 1)
    assert rows(sqlite_engine) == {("group", P): 3, ("group", Q): 4}


def test_seek_is_refused_inside_a_unit(lite: DualWrite) -> None:
    with lite.transaction(), pytest.raises(InvalidTransactionStateError, match="a unit of work is open"):
        lite.seek_to_stored(FakeConsumer(FakeGroup()))


def test_an_unknown_auto_offset_reset_is_refused(lite: DualWrite) -> None:
    with pytest.raises(ConfigurationError, match="auto_offset_reset='none'"):
        lite.seek_to_stored(FakeConsumer(FakeGroup()), auto_offset_reset="none")  # type: ignore[arg-type]


def test_without_the_offset_table_the_error_names_the_upgrade_command(lite: DualWrite, sqlite_engine: Engine) -> None:
    table.drop(sqlite_engine)
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        lite.seek_to_stored(FakeConsumer(FakeGroup()), positions(P))


# Units that are run again.


def test_a_unit_that_is_run_again_uses_the_same_records(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    attempts = []

    @lite.transactional(retries=2)
    def use_all(tx: Transaction, records: list[int]) -> None:
        tx.store_offsets(consumer)
        write(tx, P, records)
        attempts.append(1)
        if len(attempts) < 3:
            raise KafkaUnavailableError("not yet")

    use_all(consumer.poll(P, 2))
    use(lite, consumer, P, 1)
    assert used(sqlite_engine) == ["in-0@0", "in-0@1", "in-0@2"]


def test_a_unit_that_could_not_begin_is_run_again_with_the_same_records(
    lite: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    left = [Fault.BEFORE]
    kafka.fault = lambda request: left.pop() if left else Fault.NONE

    @lite.transactional(retries=1)
    def use_all(tx: Transaction, records: list[int]) -> None:
        write(tx, P, records)
        tx.store_offsets(consumer)

    use_all(consumer.poll(P, 2))
    assert used(sqlite_engine) == ["in-0@0", "in-0@1"]


def test_a_repeated_unit_that_was_interrupted_before_it_began_has_failed_too(
    lite: DualWrite, kafka: FakeKafka, sqlite_engine: Engine
) -> None:
    """It is not run again, and the application may catch the interrupt, and read on."""
    consumer = assigned(lite, FakeGroup(), P)
    strikes = [KeyboardInterrupt()]

    def strike(request: str) -> None:
        if strikes:
            raise strikes.pop()

    kafka.before_effect = strike

    @lite.transactional(retries=1)
    def use_all(tx: Transaction, records: list[int]) -> None:
        write(tx, P, records)
        tx.store_offsets(consumer)

    with pytest.raises(KeyboardInterrupt):
        use_all(consumer.poll(P, 2))
    with pytest.raises(InvalidTransactionStateError, match="seek_to_stored"):
        use_all(consumer.poll(P, 2))
    assert used(sqlite_engine) == []


def test_a_unit_that_polls_and_is_run_again_passes_nothing_over(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)

    @lite.transactional(retries=3)
    def use_next(tx: Transaction) -> None:
        write(tx, P, consumer.poll(P, 2))
        tx.store_offsets(consumer)
        if not failed:
            failed.append(1)
            raise KafkaUnavailableError("not yet")

    failed: list[int] = []
    with pytest.raises(InvalidTransactionStateError, match="seek_to_stored"):
        use_next()
    assert used(sqlite_engine) == []
    lite.seek_to_stored(consumer)
    use_next()
    assert used(sqlite_engine) == ["in-0@0", "in-0@1"]


def test_records_that_have_moved_are_not_used_again(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    attempts = []

    @lite.transactional(retries=5)
    def use_all(tx: Transaction, records: list[int]) -> None:
        attempts.append(1)
        tx.store_offsets(consumer)

    with sqlite_engine.begin() as connection:
        connection.execute(update(table).values(next_offset=2))
    with pytest.raises(RebalancedError):
        use_all(consumer.poll(P, 2))
    assert len(attempts) == 1


def test_a_consumer_that_was_positioned_from_kafka_is_told_to_be_positioned_from_the_database(
    dw: DualWrite, group: FakeGroup
) -> None:
    consumer = FakeConsumer(group)
    dw.seek_to_committed(consumer, positions(P))
    consumer.poll(P, 3)
    with (
        pytest.raises(InvalidTransactionStateError, match=r"was not set to the offset in the database: .*stored"),
        dw.transaction() as tx,
    ):
        tx.store_offsets(consumer)
    dw.seek_to_stored(consumer)
    consumer.poll(P, 3)
    with dw.transaction() as tx:
        tx.store_offsets(consumer)
