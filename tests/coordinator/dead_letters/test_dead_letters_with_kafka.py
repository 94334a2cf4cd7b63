"""Dead letters with real consumers and the bundled broker: their bytes, a topic that is not right, and kill -9."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from sqlalchemy import Engine, insert
from sqlalchemy.exc import IntegrityError

from dualwrite import DeadLetters, DualWrite
from dualwrite.coordinator.dead_letters import letter as names
from dualwrite.errors import DeadLetterError, InvalidTransactionStateError
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.consumed_topics import BROKER, fill, reading, values_of
from tests.support.coordinator.event_table import events, stored_values
from tests.support.examples.programs import environment
from tests.support.forked import ForkedKafkaBroker

PLACES = ["stored", "committed"]
PROGRAM = [sys.executable, "-m", "tests.support.coordinator.dead_letters.dead_letter_program"]
KEY, VALUE = b"\xff\x00", b"\x80 no text"
TIME_MS = 1_700_000_000_123


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., KafkaBroker]]:
    """Starts the broker, with a topic to read."""
    started: list[KafkaBroker] = []

    def start(**config: str) -> KafkaBroker:
        broker = ForkedKafkaBroker(tmp_path / "broker", config={**BROKER, **config})
        started.append(broker.__enter__())
        started[-1].create_topic("in")
        return started[-1]

    yield start
    for broker in started:
        broker.__exit__(None, None, None)


def fail(tx: Any, message: Any) -> None:
    tx.execute(insert(events), [{"value": "twice"}, {"value": "twice"}])


def batch_of(consumer: Any, count: int) -> list[Any]:
    """The next ``count`` records."""
    found: list[Any] = []
    while len(found) < count:
        found += [message for message in consumer.consume(count - len(found), 0.2) if message.error() is None]
    return found


def seek_of(dual_write: DualWrite, offsets: str) -> Any:
    return dual_write.seek_to_stored if offsets == "stored" else dual_write.seek_to_committed


@pytest.mark.slow_cases
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
@pytest.mark.parametrize("offsets", PLACES)
def test_a_dead_letter_has_the_bytes_of_its_record(
    start_broker: Callable[..., KafkaBroker], sqlite_engine: Engine, producer: Any, offsets: Any
) -> None:
    broker = start_broker()
    broker.create_topic("in.dlq")
    source = Producer({**broker.client_config})
    source.produce("in", VALUE, KEY, timestamp=TIME_MS, headers=[("trace", b"\xfe"), ("none", None)])
    source.produce("in", None, b"tombstone", timestamp=TIME_MS)
    source.produce("in", "good", None)
    assert source.flush(30) == 0

    def function(tx: Any, message: Any) -> None:
        value = message.value().decode()
        tx.execute(insert(events).values(value=value))

    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers) as consumer,
        reading(broker.bootstrap_servers, "other") as other,
    ):
        consumer.subscribe(["in"], on_assign=seek_of(dual_write, offsets))
        letters = DeadLetters(dual_write, consumer, "in.dlq", offsets=offsets, attempts=2)
        assert letters.use(batch_of(consumer, 3), function) == 2
        other.subscribe(["in.dlq"])
        first, second = batch_of(other, 2)
    assert stored_values(sqlite_engine) == ["good"]
    assert (first.key(), first.value(), first.timestamp()[1]) == (KEY, VALUE, TIME_MS)
    assert first.headers()[:2] == [("trace", b"\xfe"), ("none", None)]
    said = dict(first.headers()[2:])
    assert (said[names.TOPIC], said[names.OFFSET], said[names.GROUP]) == (b"in", b"0", b"group")
    assert (said[names.EXCEPTION], said[names.ATTEMPTS]) == (b"UnicodeDecodeError", b"2")
    assert (second.key(), second.value()) == (b"tombstone", None)


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
@pytest.mark.parametrize("offsets", PLACES)
def test_a_topic_that_refuses_a_dead_letter_loses_none(
    start_broker: Callable[..., KafkaBroker], sqlite_engine: Engine, producer: Any, offsets: Any
) -> None:
    """The headers are too much for the topic, until an operator lets it keep larger records."""
    broker = start_broker()
    broker.create_topic("in.dlq", config={"max.message.bytes": "1000"})
    source = Producer({**broker.client_config})
    source.produce("in", b"x" * 900)
    assert source.flush(30) == 0
    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers) as consumer,
    ):
        seek = seek_of(dual_write, offsets)
        consumer.subscribe(["in"], on_assign=seek)
        letters = DeadLetters(dual_write, consumer, "in.dlq", offsets=offsets, attempts=2)
        with pytest.raises(DeadLetterError, match=r"record in-0@0: .*(MESSAGE|MSG_SIZE)_TOO_LARGE"):
            letters.use(batch_of(consumer, 1), fail)
        assert dual_write.counters.dead_letters == 0
        larger = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ConfigResource.Type.TOPIC, "in.dlq", incremental_configs=[larger])
        admin = AdminClient({**broker.client_config})
        for future in admin.incremental_alter_configs([change]).values():
            future.result(30)
        seek(consumer)
        assert letters.use(batch_of(consumer, 1), fail) == 1
    assert [len(record.value or b"") for record in broker.read("in.dlq", minimum=1)] == [900]


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_a_topic_that_does_not_exist_loses_no_record(
    start_broker: Callable[..., KafkaBroker], sqlite_engine: Engine, producer: Any
) -> None:
    broker = start_broker(**{"auto.create.topics.enable": "false"})
    fill(broker.bootstrap_servers, 0, 1)
    config = {**broker.client_config, "delivery.timeout.ms": "3000", "request.timeout.ms": "2000"}
    with (
        DualWrite(sqlite_engine, config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers) as consumer,
    ):
        consumer.subscribe(["in"], on_assign=dual_write.seek_to_stored)
        letters = DeadLetters(dual_write, consumer, "in.dlq", offsets="stored", attempts=1)
        with pytest.raises(DeadLetterError, match=r"in\.dlq' \(UNKNOWN_TOPIC_OR_PART"):
            letters.use(batch_of(consumer, 1), fail)
        broker.create_topic("in.dlq")

    # The worker is restarted: a librdkafka producer remembers for a while that the topic does not exist.
    with (
        DualWrite(sqlite_engine, config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers) as consumer,
    ):
        consumer.subscribe(["in"], on_assign=dual_write.seek_to_stored)
        letters = DeadLetters(dual_write, consumer, "in.dlq", offsets="stored", attempts=1)
        assert letters.use(batch_of(consumer, 1), fail) == 1


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("offsets", PLACES)
@pytest.mark.parametrize("place", ["between", "PREPARE_KAFKA", "COMMIT_DATABASE", "COMMIT_KAFKA"])
def test_a_killed_worker_leaves_one_dead_letter_and_its_offset(
    start_broker: Callable[..., KafkaBroker], sqlite_engine: Engine, offsets: str, place: str
) -> None:
    broker = start_broker()
    broker.create_topic("in.dlq")
    fill(broker.bootstrap_servers, 0, 3)
    for dies_at, code in ((place, -signal.SIGKILL), ("", 0)):
        arguments = [str(sqlite_engine.url), broker.bootstrap_servers, offsets, dies_at]
        done = subprocess.run([*PROGRAM, *arguments], env=environment(), check=False, timeout=90)
        assert done.returncode == code
    assert values_of(broker, 2) == stored_values(sqlite_engine) == ["0", "2"]
    assert [record.value for record in broker.read("in.dlq", minimum=1)] == [b"1"]


def test_the_pattern_without_the_helper(start_broker: Callable[..., KafkaBroker], sqlite_engine: Engine) -> None:
    """As docs/dead-letters.md has it: the second unit needs no seek, if the first one began with the offset."""
    broker = start_broker()
    broker.create_topic("in.dlq")
    fill(broker.bootstrap_servers, 0, 3)

    def use(message: Any, *, is_last: bool = False) -> None:
        after = [TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
        try:
            with dual_write.transaction() as tx:
                if not is_last:
                    tx.store_offsets(consumer, after)
                if message.value() != b"0":
                    fail(tx, message)
                if is_last:
                    tx.store_offsets(consumer, after)
        except IntegrityError:
            with dual_write.transaction() as tx:
                tx.store_offsets(consumer, after)
                tx.produce("in.dlq", message.value(), message.key(), headers=message.headers())

    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker") as dual_write,
        reading(broker.bootstrap_servers) as consumer,
    ):
        consumer.subscribe(["in"], on_assign=dual_write.seek_to_stored)
        first, second, third = batch_of(consumer, 3)
        use(first)
        use(second)
        with pytest.raises(InvalidTransactionStateError, match="has failed since"):
            use(third, is_last=True)
    assert [record.value for record in broker.read("in.dlq", minimum=1)] == [b"1"]
