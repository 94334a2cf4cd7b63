"""Topics that a consumer group reads while units of work commit its offsets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer

from dualwrite.testing.kafka import KafkaBroker
from tests.support.peer_clients.kafka_helpers import quick

BROKER = {"group.min.session.timeout.ms": "100", "group.initial.rebalance.delay.ms": "0"}


def fill(servers: str, begin: int, end: int) -> None:
    producer = Producer(quick(servers))
    for number in range(begin, end):
        producer.produce("in", str(number))
    assert producer.flush(30) == 0


@contextmanager
def reading(servers: str, group: str = "group", **settings: Any) -> Iterator[Any]:
    consumer = Consumer(
        {
            **quick(servers),
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
            **settings,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def values_of(broker: KafkaBroker, minimum: int) -> list[str]:
    return [(record.value or b"").decode() for record in broker.read("out", minimum=minimum)]
