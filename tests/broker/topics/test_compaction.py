"""Compaction while the broker runs: which log is cleaned and when, the swap, and what clients see of it."""

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.log.cleaner import Cleaned
from dualwrite.broker.log.settings import LogSettings
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchFields, peek_header, seal_batch
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.compactions import CompactedHouse
from tests.support.broker.simulated import DATA_DIR, run
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import CONSUMER
from tests.support.requests.calls import (
    describe,
    end,
    identity,
    new_producer,
    new_topic,
    open_transaction,
    read_all,
    unique,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

DAY = 86_400_000
COMPACT: dict[str, str | None] = {"cleanup.policy": "compact"}


def compacted(keys: str, configs: dict[str, str | None] | None = None, waited: int = 0, **settings: int) -> list[int]:
    """The offsets left of records with ``keys``, after a house-keeping."""

    async def main() -> list[int]:
        house = CompactedHouse(MemoryFiles(), configs, **settings)
        await house.write(*(key.encode() for key in keys))
        house.rooms.clock.now_ms += waited
        await house.compaction.run_once()
        return house.left()

    return run(main())


def test_all_but_the_active_segment_is_compacted() -> None:
    assert compacted("abaca") == [1, 2, 3, 4], "the last a is not looked at: its segment is active"
    assert compacted("abacaz") == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("configs", "waited", "left"),
    [
        pytest.param({"min.compaction.lag.ms": "1000"}, 999, [0, 1, 2, 3], id="too young"),
        pytest.param({"min.compaction.lag.ms": "1000"}, 1000, [2, 3], id="old enough"),
        pytest.param({"cleanup.policy": "delete"}, 0, [0, 1, 2, 3], id="not to be compacted"),
        pytest.param({"cleanup.policy": "compact,delete"}, 0, [2, 3], id="compacted and deleted"),
        pytest.param({"min.cleanable.dirty.ratio": "1.0"}, 0, [0, 1, 2, 3], id="never dirty enough"),
        pytest.param(
            {"min.cleanable.dirty.ratio": "1.0", "max.compaction.lag.ms": "1000"}, 1000, [0, 1, 2, 3], id="not overdue"
        ),
        pytest.param({"min.cleanable.dirty.ratio": "1.0", "max.compaction.lag.ms": "1000"}, 1001, [2, 3], id="overdue"),
    ],
)
def test_a_log_is_compacted_as_its_settings_and_lags_require(
    configs: dict[str, str | None], waited: int, left: list[int]
) -> None:
    assert compacted("aaaz", configs, waited) == left


def test_the_cleaner_can_be_turned_off() -> None:
    assert compacted("aaaz", enable=False) == [0, 1, 2, 3]


def test_little_memory_takes_more_rounds_to_the_same_end() -> None:
    assert compacted("abcdefabcdefz", dedupe_bytes=400, configs={"min.cleanable.dirty.ratio": "0.0"}) == [
        6, 7, 8, 9, 10, 11, 12,
    ]  # fmt: skip


def test_a_clean_log_is_left_alone_until_it_is_dirty_again() -> None:
    async def main() -> None:
        house = CompactedHouse(MemoryFiles())
        await house.write(b"a", b"a", b"a", b"z")
        await house.compaction.run_once()
        appends = house.files.appends.count
        await house.compaction.run_once()
        assert house.files.appends.count == appends
        await house.write(b"b", b"b", b"b", b"z")
        await house.compaction.run_once()
        assert house.left() == [2, 3, 6, 7]

    run(main())


def test_an_open_transaction_bounds_the_cleaning_and_an_aborted_one_vanishes() -> None:
    producer = ProducerIdentity(7, 0)

    async def main() -> None:
        house = CompactedHouse(MemoryFiles(), {"min.cleanable.dirty.ratio": "0.0"})
        await house.write(b"a", b"a")
        await house.write(b"b", producer=producer)
        await house.write(b"a", b"z")
        await house.compaction.run_once()
        assert house.left() == [1, 2, 3, 4]
        await house.end(producer, Marker.ABORT)
        await house.write(b"y")
        await house.compaction.run_once()
        assert house.left() == [3, 4, 5, 6], "the marker stays for now"
        assert len(house.partition.state.aborted) == 1
        house.partition.state.expire_producers(house.rooms.clock.now_ms + 1)
        for key in (b"x", b"w", b"v"):
            house.rooms.clock.now_ms += DAY
            await house.write(key)
            await house.compaction.run_once()
        assert house.left() == [3, 4, 6, 7, 8, 9]
        assert not house.partition.state.aborted

    run(main())


def test_a_bound_within_a_segment_is_come_to_once() -> None:
    async def main() -> None:
        house = CompactedHouse(MemoryFiles(), {"min.cleanable.dirty.ratio": "0.0"})
        house.partition.log.settings = LogSettings()
        await house.write(b"a", b"a")
        await house.write(b"b", producer=ProducerIdentity(7, 0))
        await house.write(b"a")
        house.partition.log.settings = LogSettings(segment_bytes=0)
        await house.write(b"z")
        await house.compaction.run_once()
        assert house.left() == [1, 2, 3, 4]
        appends = house.files.appends.count
        await house.compaction.run_once()
        assert house.files.appends.count == appends

    run(main())


def test_a_batch_that_cannot_be_opened_keeps_the_log_as_it_is() -> None:
    async def main() -> None:
        house = CompactedHouse(MemoryFiles())
        nonsense = seal_batch(b"\xff" * 20, BatchFields(), 1, 0, 0)
        house.partition.append(nonsense, peek_header(nonsense))
        await house.write(b"a", b"a", b"z")
        await house.compaction.run_once()
        assert house.partition.end_offset == 4
        assert len(house.partition.log.sealed_segments()) == 3
        appends = house.files.appends.count
        await house.compaction.run_once()
        assert house.files.appends.count == appends, "a failed log is not tried again"

    run(main())


def test_a_recreated_topic_is_compacted_even_if_its_predecessor_was_uncleanable() -> None:
    async def main() -> None:
        files = MemoryFiles()
        house = CompactedHouse(files)
        nonsense = seal_batch(b"\xff" * 20, BatchFields(), 1, 0, 0)
        house.partition.append(nonsense, peek_header(nonsense))
        await house.write(b"a", b"a", b"z")
        await house.compaction.run_once()
        assert len(house.partition.log.sealed_segments()) == 3
        await house.rooms.cluster.delete_topic("c")
        assert house.rooms.cluster.create_topic(CreateTopic("c", configs=COMPACT)).fact is not None
        anew = house.rooms.cluster.partition(TopicPartition("c", 0))
        assert anew is not None
        anew.log.settings = LogSettings(segment_bytes=0)
        house.partition = anew
        await house.write(b"a", b"a", b"z")
        await house.compaction.run_once()
        assert house.left() == [1, 2]

    run(main())


def test_a_full_disk_is_tried_again_later() -> None:
    async def main() -> None:
        house = CompactedHouse(MemoryFiles())
        await house.write(b"a", b"a", b"z")
        house.files.appends.fail()
        await house.compaction.run_once()
        assert house.left() == [0, 1, 2]
        assert not [name for name in house.files.list(DATA_DIR / "c-0") if name.endswith(".cleaned")]
        await house.compaction.run_once()
        assert house.left() == [1, 2]

    run(main())


class KeepingFiles(MemoryFiles):
    """A disk that cannot remove what a cleaning has left, for a while."""

    keeps = False

    def remove(self, path: Path) -> None:
        if self.keeps and path.name.endswith(".cleaned"):
            raise OSError(errno.EIO, "injected")
        super().remove(path)


def test_the_files_of_a_failed_cleaning_are_not_reused() -> None:
    async def main() -> None:
        files = KeepingFiles()
        house = CompactedHouse(files)
        await house.write(b"a", b"b", b"a", b"z")
        files.keeps = True
        files.appends.fail(2)
        await house.compaction.run_once()
        assert "00000000000000000000.cleaned" in files.list(DATA_DIR / "c-0")
        files.keeps = False
        await house.compaction.run_once()
        assert house.left() == [1, 2, 3]
        assert CompactedHouse(files).left() == [1, 2, 3], "after a restart"

    run(main())


@pytest.mark.parametrize(("after_batches", "value"), [(1, b"v"), (7, b"v"), (7, bytes(600_000))])
def test_a_log_that_lost_its_oldest_segments_meanwhile_throws_the_cleaning_away(
    after_batches: int, value: bytes
) -> None:
    async def main() -> None:
        house = CompactedHouse(MemoryFiles(), {"segment.bytes": "1048576"})
        await house.write(b"a", b"b", b"a", b"y", b"z", value=value)
        left = after_batches

        def pause() -> None:
            nonlocal left
            left -= 1
            if not left:
                house.partition.truncate_before(2)

        house.thread.pause = pause
        await house.compaction.run_once()
        assert left <= 0
        assert house.left() == [2, 3, 4]
        assert not [name for name in house.files.list(DATA_DIR / "c-0") if name.endswith(".cleaned")]

    run(main())


def test_a_topic_that_is_deleted_while_it_is_cleaned_takes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        house = CompactedHouse(MemoryFiles())
        await house.write(b"a", b"a", b"z")
        run_in_thread = house.thread.run

        async def run_and_delete(clean: Callable[[Callable[[], None]], Cleaned]) -> Cleaned:
            cleaned = await run_in_thread(clean)
            await house.rooms.cluster.delete_topic("c")
            assert house.rooms.cluster.create_topic(CreateTopic("c")).fact is not None
            return cleaned

        monkeypatch.setattr(house.thread, "run", run_and_delete)
        await house.compaction.run_once()
        assert house.files.list(DATA_DIR / "c-0") == ["00000000000000000000.log"]

    run(main())


@pytest.mark.slow_cases
@pytest.mark.parametrize("producers", [1, 3])
def test_clients_read_the_last_value_of_every_key_and_nothing_is_lost_by_a_kill(tmp_path: Path, producers: int) -> None:
    config = {"log.cleaner.backoff.ms": "20", "log.segment.bytes": "1048576"}
    expected: dict[bytes, bytes] = {}
    rng = random.Random(5)
    with ForkedBroker(tmp_path, config=config) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            topic = new_topic(client, cleanup_policy="compact")
        for number in range(producers):
            codec = ["lz4", "gzip", "zstd"][number]
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec})
            for index in range(4000):
                key, value = b"key-%d" % rng.randrange(100), b"%d-" % index + rng.randbytes(1000)
                expected[key] = value
                producer.produce(topic, value, key, partition=0)
                if index % 500 == 0:
                    producer.flush(PATIENCE_SECONDS)
            assert producer.flush(PATIENCE_SECONDS) == 0
        directory = tmp_path / f"{topic}-0"
        bound = 1_048_576 + producers * 4000 * 1000 / 2
        assert eventually(lambda: log_bytes(directory), lambda size: size < bound) < bound
        assert last_values(broker.bootstrap_servers, topic) == expected
        broker.kill()
    with ForkedBroker(tmp_path, config=config) as broker:
        assert last_values(broker.bootstrap_servers, topic) == expected
        assert log_bytes(directory) < bound


def test_the_transaction_log_stays_short_and_keeps_every_transactional_id(tmp_path: Path) -> None:
    config = {"log.cleaner.backoff.ms": "20", "transaction.state.log.segment.bytes": "4096"}
    directory = tmp_path / "__transaction_state-0"
    with ForkedBroker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic, idle, busy = new_topic(client), unique("idle"), unique("busy")
        waiting = new_producer(client, idle, two_phase=True)
        open_transaction(client, idle, waiting, {(topic, 0): [b"prepared"]})
        producer = new_producer(client, busy)
        for _ in range(100):
            open_transaction(client, busy, producer, {(topic, 0): [b"done"]})
            producer = identity(end(client, busy, producer))
        assert eventually(lambda: log_bytes(directory), lambda size: size < 3 * 4096) < 3 * 4096
        broker.kill()
    with ForkedBroker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        assert describe(client, idle).transaction_state == "Ongoing"
        assert end(client, idle, waiting).error_code == ErrorCode.NONE
        open_transaction(client, busy, producer, {(topic, 0): [b"one more"]})
        assert end(client, busy, producer).error_code == ErrorCode.NONE
        assert read_all(client, topic).count(b"done") == 100


@pytest.mark.slow
def test_the_log_of_groups_stays_short_and_loses_no_committed_offset(tmp_path: Path) -> None:
    config = {"log.cleaner.backoff.ms": "20", "offsets.topic.segment.bytes": "4096"}
    config["group.initial.rebalance.delay.ms"] = "0"
    quiet: dict[str, object] = {"log_level": 0}  # librdkafka would tell of the kill
    position = [Position("in", 0)]
    with ForkedBroker(tmp_path, config=config) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers, **quiet}
        producer = Producer({**servers, "transactional.id": "mover"})
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce("in", b"something to be assigned for", partition=0)
        producer.commit_transaction(PATIENCE_SECONDS)
        consumer = Consumer({**servers, **CONSUMER, "group.id": "movers"})
        consumer.subscribe(["in"])
        assert consumer.poll(PATIENCE_SECONDS) is not None
        for offset in range(150):
            consumer.commit(offsets=[Position("in", 0, offset)], asynchronous=False)
        for offset in range(150, 200):
            producer.begin_transaction()
            offsets = [Position("in", 0, offset)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
            (producer.abort_transaction if offset % 2 else producer.commit_transaction)(PATIENCE_SECONDS)
        written = 200 * 110
        directory = tmp_path / "__consumer_offsets-0"
        assert eventually(lambda: log_bytes(directory), lambda size: size < written * 2 / 3) < written * 2 / 3
        assert consumer.committed(position, PATIENCE_SECONDS)[0].offset == 198
        broker.kill()
    with ForkedBroker(tmp_path, config=config) as broker:
        reader = Consumer({**CONSUMER, "bootstrap.servers": broker.bootstrap_servers, "group.id": "movers"})
        assert reader.committed(position, PATIENCE_SECONDS)[0].offset == 198
        reader.close()


def log_bytes(directory: Path) -> int:
    size = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):  # a cleaning has just replaced it
            size += path.stat().st_size
    return size


def last_values(servers: str, topic: str) -> dict[bytes, bytes]:
    """What a consumer that reads everything ends with."""
    consumer = Consumer({"bootstrap.servers": servers, **CONSUMER})
    values: dict[bytes, bytes] = {}
    try:
        consumer.assign([Position(topic, 0, 0)])
        while True:
            for message in consumer.consume(500, 0.05):
                if message.error() is not None:
                    return values
                values[message.key()] = message.value()
    finally:
        consumer.close()
