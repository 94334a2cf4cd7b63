"""``dualwrite move`` while applications write, abort and compact, and retention deletes, in both clusters."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.forked import ForkedKafkaBroker
from tests.support.moving.move_site import (
    Copied,
    MoveEnd,
    MoveSite,
    commit_offset,
    create_topic,
    producer_of,
    read,
    rest_of,
)
from tests.support.peer_clients.kafka_helpers import PATIENCE, quick

PARTITIONS, RUNS = 2, 3
BUSY = {"log.retention.check.interval.ms": "50", "log.cleaner.backoff.ms": "50"}
SMALL = {"segment.bytes": "1048576"}


class RestlessWriter(threading.Thread):
    """Transactions of random length, of which some are aborted, and records outside of them, until it is stopped."""

    def __init__(self, cluster: MoveEnd, topic: str, seed: int) -> None:
        super().__init__()
        self._cluster, self._topic = cluster, topic
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        producer, plain = producer_of(self._cluster), Producer(quick(self._cluster.bootstrap_servers))
        while not self._stopped.is_set():
            producer.begin_transaction()
            for _ in range(self._random.randint(1, 40)):
                self._produce(producer, self._random.randint(0, 3_000))
            ends = producer.commit_transaction if self._random.random() < 0.7 else producer.abort_transaction
            ends(PATIENCE)
            self._produce(plain, 10)
            self.rounds += 1
        assert plain.flush(PATIENCE) == 0

    def _produce(self, producer: Producer, size: int) -> None:
        key, partition = f"k{self._random.randint(0, 100)}", self._random.randint(0, PARTITIONS - 1)
        value = None if self._random.random() < 0.05 else f"{self.rounds} " + "x" * size
        producer.produce(self._topic, key=key, value=value, partition=partition)

    def stop(self) -> None:
        self._stopped.set()
        self.join(PATIENCE)


@contextmanager
def writers(cluster: MoveEnd, topics: list[str], seed: int) -> Iterator[None]:
    started = [RestlessWriter(cluster, topic, seed + number) for number, topic in enumerate(topics)]
    for writer in started:
        writer.start()
    try:
        yield
    finally:
        for writer in started:
            writer.stop()
    assert all(writer.rounds for writer in started)


def partitions_of(cluster: MoveEnd, topic: str) -> list[list[Copied]]:
    records = read(cluster, topic, PARTITIONS)
    return [[record for record in records if record.partition == number] for number in range(PARTITIONS)]


def last_values(cluster: MoveEnd, topic: str) -> dict[tuple[int, bytes | None], bytes]:
    last = {(record.partition, record.key): record.value for record in read(cluster, topic, PARTITIONS)}
    return {key: value for key, value in last.items() if value is not None}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_last_run_finds_every_record_once(tmp_path: Path, seed: int) -> None:
    with (
        ForkedKafkaBroker(tmp_path / "a", config=BUSY) as source,
        ForkedKafkaBroker(tmp_path / "b", config=BUSY) as target,
    ):
        site = MoveSite(source, target)
        kept = create_topic(source, partitions=PARTITIONS)
        short = create_topic(source, partitions=PARTITIONS, config={"retention.bytes": "1500000", **SMALL})
        compacting = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200", **SMALL}
        compacted = create_topic(source, partitions=PARTITIONS, config=compacting)
        with writers(source, [kept, short, compacted], seed):
            for _ in range(RUNS):
                assert site.run().code == 0
        commit_offset(source, "group", kept, 77)
        result = site.run("--finish")
        assert result.code == 0, result
        assert site.run("--verify", "--topics", f"{kept},{compacted}").code == 0
        assert read(target, kept, PARTITIONS) == read(source, kept, PARTITIONS)
        assert rest_of(target, "group", kept) == rest_of(source, "group", kept)
        for here, there in zip(partitions_of(source, short), partitions_of(target, short), strict=True):
            both = min(len(here), len(there))  # each cluster deletes whole segments of its own
            assert both
            assert there[-both:] == here[-both:]
        assert last_values(target, compacted) == last_values(source, compacted)
