"""Consume, transform, produce: records and offsets in one transaction, while the broker is killed again and again."""

import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, new_topic, produce, read_all
from tests.support.requests.raw_client import RawClient

RECORDS, PARTITIONS, AT_ONCE, KILLS = 120, 2, 7, 4
CONFIG = {"group.initial.rebalance.delay.ms": "0"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class StreamApplication:
    """One life of it: it dies with the first error, as a stream processor may, and a new one goes on."""

    def __init__(self, servers: str, source: str, target: str) -> None:
        self._target = target
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "app",
                "group.instance.id": "app-0",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": "app-0",
                "reconnect.backoff.max.ms": 200,
                # Otherwise librdkafka 2.16 forgets the one broker while it is down, and send_offsets_to_transaction
                # waits for ever for what it was.
                "metadata.recovery.strategy": "none",
            }
        )
        self.producer.init_transactions(30)
        self.consumer.subscribe([source])

    def step(self, abort: bool) -> int:
        """One transaction; how many records it has moved for good."""
        messages = self.consumer.consume(AT_ONCE, timeout=0.3)
        good = [message for message in messages if message.error() is None]
        if not good:
            return 0
        self.producer.begin_transaction()
        for message in good:
            self.producer.produce(self._target, message.value() + b"!")
        positions = self.consumer.position(self.consumer.assignment())
        self.producer.send_offsets_to_transaction(positions, self.consumer.consumer_group_metadata(), 30)
        if abort:
            self.producer.abort_transaction(30)
            raise KafkaException("it changed its mind, and its consumer must go back")
        self.producer.commit_transaction(30)
        return len(good)


def lives(servers: str, source: str, target: str) -> Iterator[StreamApplication]:
    """One application after the other; each takes the place of the one before."""
    while True:
        application = StreamApplication(servers, source, target)
        try:
            yield application
        finally:
            application.consumer.close()


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_record_is_moved_exactly_once_through_kills_of_the_broker(tmp_path: Path, seed: int) -> None:
    rng, listen = random.Random(seed), f"127.0.0.1:{free_port()}"
    with ForkedBroker(tmp_path / "broker", listen=listen, config=CONFIG) as broker:
        with RawClient(listen) as client:
            source, target = new_topic(client, PARTITIONS), new_topic(client)
            for number in range(RECORDS):
                produce(
                    client,
                    source,
                    batch([b"%d" % number], timestamp=time.time_ns() // 1_000_000),
                    partition=number % PARTITIONS,
                )
        moved = kills = 0
        fifth = RECORDS // (KILLS + 1)
        due = [fifth * number + rng.randrange(-fifth // 2, fifth // 2) for number in range(1, KILLS + 1)]
        for application in lives(listen, source, target):
            try:
                for _ in range(200):
                    moved += application.step(abort=rng.random() < 0.1)
                    if moved >= RECORDS:
                        break
                    if kills < KILLS and moved >= due[kills]:
                        kills += 1
                        broker.kill()
                        broker.start()
            except KafkaException:
                continue
            break
        assert kills == KILLS, "it was killed in the middle"
        with RawClient(listen) as client:
            values = [value.removesuffix(b"!") for value in read_all(client, target) if value is not None]
    assert sorted(map(int, values)) == list(range(RECORDS))
