"""Offsets of consumers of the next group protocol (KIP-848): the generation is the member's epoch."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from sqlalchemy import Engine, insert

from dualwrite.client.producer.arguments import member_of
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import RebalancedError
from dualwrite.testing.kafka import KafkaBroker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.coordinator.consumed_topics import fill, reading, values_of
from tests.support.coordinator.event_table import events, stored_values
from tests.support.forked import ForkedKafkaBroker
from tests.support.requests.group_calls import leave
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

BROKEN = "broken"
"""A value with which a unit of work fails."""

producers = pytest.mark.parametrize("producer", ["native", "librdkafka"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    unnoticed = {"group.consumer.heartbeat.interval.ms": "30000"}  # a member that was removed is not told
    with ForkedKafkaBroker(tmp_path / "broker", config=unnoticed) as broker:
        broker.create_topic("in")
        fill(broker.bootstrap_servers, 0, 6)
        yield broker


def polled(consumer: Any, count: int) -> list[str]:
    """The next ``count`` records."""
    found: list[str] = []

    def look() -> bool:
        messages = consumer.consume(count - len(found), 0.2)
        found.extend(message.value().decode() for message in messages if message.error() is None)
        return len(found) == count

    assert eventually(look)
    return found


def use(dual_write: DualWrite, consumer: Any, values: list[str]) -> None:
    """A unit of work with ``values``."""
    with dual_write.transaction() as tx:
        tx.send_offsets(consumer)
        for value in values:
            tx.execute(insert(events).values(value=value))
            tx.produce("out", value if value != BROKEN else str(1 / 0))


def committed(consumer: Any) -> int:
    return int(consumer.committed([TopicPartition("in", 0)], timeout=30)[0].offset)


@producers
def test_records_are_used_once_with_a_member_of_a_consumer_group(
    broker: KafkaBroker, sqlite_engine: Engine, producer: Any
) -> None:
    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers, **{"group.protocol": "consumer"}) as consumer,
    ):
        consumer.subscribe(["in"], on_assign=dual_write.seek_to_committed)
        use(dual_write, consumer, polled(consumer, 2))
        assert member_of(consumer.consumer_group_metadata()).generation_id == 2
        values = [*polled(consumer, 2), BROKEN]
        with pytest.raises(ZeroDivisionError):
            use(dual_write, consumer, values)
        dual_write.seek_to_committed(consumer)
        use(dual_write, consumer, polled(consumer, 3))
        assert committed(consumer) == 5
    with reading(broker.bootstrap_servers, **{"group.protocol": "consumer"}) as successor:
        successor.subscribe(["in"])
        assert polled(successor, 1) == ["5"]
    assert values_of(broker, 5) == stored_values(sqlite_engine) == ["0", "1", "2", "3", "4"]


@producers
def test_a_member_that_was_removed_cannot_commit_the_offsets_that_its_successor_reads(
    broker: KafkaBroker, sqlite_engine: Engine, producer: Any
) -> None:
    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers, **{"group.protocol": "consumer"}) as zombie,
        RawClient(broker.bootstrap_servers) as administrator,
    ):
        zombie.subscribe(["in"])
        values = polled(zombie, 2)
        metadata = zombie.consumer_group_metadata()
        removed = leave(administrator, "group", (member_of(metadata).member_id, None))
        assert removed == [ErrorCode.NONE]
        with pytest.raises(RebalancedError):
            use(dual_write, zombie, values)
    with reading(broker.bootstrap_servers, **{"group.protocol": "consumer"}) as successor:
        successor.subscribe(["in"])
        assert polled(successor, 2) == ["0", "1"]
    assert stored_values(sqlite_engine) == []


def test_a_consumer_is_assigned_to_without_a_warning_of_librdkafka(broker: KafkaBroker, sqlite_engine: Engine) -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.Logger("librdkafka")
    logger.addHandler(Lines())
    settings = {"group.protocol": "consumer", "logger": logger, "log_level": 6}
    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker") as dual_write,
        reading(broker.bootstrap_servers, **settings) as consumer,
    ):
        consumer.subscribe(["in"], on_assign=dual_write.seek_to_committed)
        use(dual_write, consumer, polled(consumer, 2))
        dual_write.seek_to_committed(consumer)
        use(dual_write, consumer, polled(consumer, 1))
    assert [line for line in lines if "assign() call" in line] == []
