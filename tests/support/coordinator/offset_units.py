"""Units of work that use records and store their offsets, and what is then in the database."""

from collections.abc import Callable

from sqlalchemy import Engine, insert, select

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import RebalancedError
from dualwrite.ids import TopicPartition
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions

P, Q = TopicPartition("in", 0), TopicPartition("in", 1)


def assigned(dw: DualWrite, group: FakeGroup, *places: TopicPartition, member: str = "member") -> FakeConsumer:
    """A consumer that was given ``places`` in a rebalance."""
    consumer = FakeConsumer(group, member)
    dw.seek_to_stored(consumer, positions(*places))
    return consumer


def use(dw: DualWrite, consumer: FakeConsumer, place: TopicPartition, count: int, fail: bool = False) -> None:
    """A unit of work with the next ``count`` records."""
    records = consumer.poll(place, count)
    with dw.transaction() as tx:
        tx.store_offsets(consumer)
        write(tx, place, records)
        if fail:
            raise KeyError(place)


def use_carelessly(dw: DualWrite, consumer: FakeConsumer, records: list[int], *, is_caught: bool) -> None:
    """A unit of work that stores its offsets last, and may not mind if that fails."""
    with dw.transaction() as tx:
        write(tx, P, records)
        try:
            tx.store_offsets(consumer)
        except RebalancedError:
            if not is_caught:
                raise


def write(tx: Transaction, place: TopicPartition, records: list[int]) -> None:
    for record in records:
        tx.execute(insert(events).values(value=f"{place}@{record}"))


def rows(engine: Engine) -> dict[tuple[str, TopicPartition], int]:
    with engine.connect() as connection:
        return {
            (row.group_id, TopicPartition(row.topic, row.partition)): row.next_offset
            for row in connection.execute(select(table))
        }


def used(engine: Engine) -> list[str]:
    return sorted(stored_values(engine))


def without_the_table(engine: Engine, act: Callable[[], object]) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table.name} RENAME TO hidden")
    try:
        act()
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE hidden RENAME TO {table.name}")
