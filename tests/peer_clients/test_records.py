"""What clients write is what clients read: idempotence, codecs, headers, nulls, sizes, positions."""

from collections.abc import Callable

import pytest

from tests.support.peer_clients.client import Got, PeerAdministrator, PeerRefusedError, PeerSender, Receiver
from tests.support.peer_clients.reading import read, read_to_end, values
from tests.support.requests.calls import unique
from tests.support.waiting import eventually

Producer = Callable[..., PeerSender]
Consumer = Callable[..., Receiver]

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def wide(admin: PeerAdministrator) -> str:
    """A topic of five partitions."""
    name = unique("topic")
    admin.create_topic(name, 5)
    return name


def by_partition(records: list[Got], partitions: int) -> list[list[bytes | None]]:
    """The values of each partition."""
    return [values([record for record in records if record.partition == index]) for index in range(partitions)]


def test_records_of_every_codec_come_back(wide: str, producer: Producer, consumer: Consumer) -> None:
    written = [b"%d " % number * 50 for number in range(200)]
    for index, codec in enumerate(CODECS):
        sender = producer(compression=codec, linger_ms=20)
        for value in written:
            sender.send(wide, value, partition=index)
        sender.flush()
    places = [(wide, index) for index in range(len(CODECS))]
    assert by_partition(read_to_end(consumer(), *places), len(CODECS)) == [written] * len(CODECS)


def test_an_idempotent_producer_keeps_the_order_of_each_partition(
    wide: str, producer: Producer, consumer: Consumer
) -> None:
    sender = producer(idempotent=True)
    for number in range(900):
        sender.send(wide, b"%d" % number, partition=number % 3)
    delivered = sender.flush()
    written = [[b"%d" % number for number in range(index, 900, 3)] for index in range(3)]
    for index in range(3):
        assert [offset for partition, offset in delivered if partition == index] == list(range(300))
    assert by_partition(read_to_end(consumer(), *[(wide, index) for index in range(3)]), 3) == written


def test_keys_headers_and_timestamps_come_back(topic: str, producer: Producer, consumer: Consumer) -> None:
    headers = [("trace", b"\x00\xff"), ("empty", b""), ("trace", b"again"), ("ünï", b"code")]
    sender = producer()
    sender.send(topic, b"value", key=b"key", headers=headers, timestamp=1_700_000_000_123)
    sender.flush()
    (got,) = read_to_end(consumer(), (topic, 0))
    assert (got.key, got.value, got.headers, got.timestamp) == (b"key", b"value", headers, 1_700_000_000_123)


def test_null_and_empty_are_two_things(topic: str, producer: Producer, consumer: Consumer) -> None:
    written = [(None, b"v"), (b"k", None), (b"", b"v"), (b"k", b"")]
    sender = producer()
    for key, value in written:
        sender.send(topic, value, key=key)
    sender.flush()
    assert [(got.key, got.value) for got in read_to_end(consumer(), (topic, 0))] == written


def test_a_compacted_log_is_read_over_the_empty_batches_of_removed_records(
    admin: PeerAdministrator, producer: Producer, consumer: Consumer
) -> None:
    name = unique("topic")
    configs = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0"}
    admin.create_topic(name, configs=configs)
    sender = producer()
    for number in range(60):
        sender.send(name, bytes(100_000), key=b"%d" % number if number % 5 == 0 else b"again")
        sender.flush()
    left = [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 49, *range(50, 60)]
    """A segment has room for ten records, and the last segment is not compacted."""
    receiver = consumer()

    def offsets() -> list[int]:
        receiver.seek((name, 0), 0)
        return [got.offset for got in read_to_end(receiver, (name, 0))]

    receiver.assign([(name, 0)])
    assert eventually(offsets, lambda found: found == left) == left
    for start, expected in ((1, 5), (5, 5), (46, 49)):
        receiver.seek((name, 0), start)
        assert read(receiver, 1)[0].offset == expected


def test_a_big_message_comes_back(topic: str, producer: Producer, consumer: Consumer) -> None:
    value = bytes(range(256)) * 20_000  # five megabytes: more than one fetch wants
    sender = producer(largest=8_000_000)
    sender.send(topic, value)
    sender.send(topic, b"after")
    sender.flush()
    assert values(read_to_end(consumer(), (topic, 0))) == [value, b"after"]


def test_a_message_that_is_too_big_is_refused_by_name(admin: PeerAdministrator, producer: Producer) -> None:
    topic = unique("topic")
    admin.create_topic(topic, configs={"max.message.bytes": "2000"})
    sender = producer()
    sender.send(topic, b"x" * 3000)
    with pytest.raises(PeerRefusedError, match=r"^(MSG_SIZE_TOO_LARGE|MESSAGE_TOO_LARGE|MESSAGE_SIZE_TOO_LARGE)$"):
        sender.flush()


# --- where a consumer is


@pytest.fixture
def ten(topic: str, producer: Producer) -> str:
    """A topic with ten records, a second apart."""
    sender = producer()
    for number in range(10):
        sender.send(topic, b"%d" % number, timestamp=1_700_000_000_000 + 1000 * number)
        sender.flush()
    return topic


def test_a_consumer_learns_where_a_partition_begins_and_ends(ten: str, consumer: Consumer) -> None:
    assert consumer().watermarks((ten, 0)) == (0, 10)


def test_a_consumer_finds_a_moment(ten: str, consumer: Consumer) -> None:
    receiver = consumer()
    assert receiver.offset_for_time((ten, 0), 1_700_000_003_500) == 4
    assert receiver.offset_for_time((ten, 0), 1_700_000_004_000) == 4
    assert receiver.offset_for_time((ten, 0), 1_700_000_009_001) is None


def test_a_consumer_seeks_to_an_offset(ten: str, consumer: Consumer) -> None:
    receiver = consumer()
    receiver.assign([(ten, 0)])
    assert len(read(receiver, 10)) == 10
    receiver.seek((ten, 0), 7)
    assert values(read(receiver, 3)) == [b"7", b"8", b"9"]
    assert receiver.position((ten, 0)) == 10


def test_a_position_out_of_range_is_reset_to_the_beginning(ten: str, consumer: Consumer) -> None:
    receiver = consumer(reset="earliest")
    receiver.assign([(ten, 0)])
    assert len(read(receiver, 10)) == 10
    receiver.seek((ten, 0), 5000)
    assert values(read(receiver, 1))[0] == b"0"


def test_a_position_out_of_range_is_reset_to_the_end(ten: str, producer: Producer, consumer: Consumer) -> None:
    receiver, sender = consumer(reset="latest"), producer()
    receiver.assign([(ten, 0)])
    receiver.seek((ten, 0), 5000)

    def next_records() -> list[Got]:
        sender.send(ten, b"new")  # the consumer gives no sign when it has reached the end
        sender.flush()
        return receiver.poll()

    assert set(values(eventually(next_records, bool))) == {b"new"}


def test_a_paused_partition_waits(admin: PeerAdministrator, producer: Producer, consumer: Consumer) -> None:
    topic = unique("topic")
    admin.create_topic(topic, 2)
    receiver = consumer()
    receiver.assign([(topic, 0), (topic, 1)])
    receiver.pause((topic, 0))
    sender = producer()
    for index in (0, 1):
        sender.send(topic, b"%d" % index, partition=index)
    sender.flush()
    assert values(read(receiver, 1)) == [b"1"]
    assert receiver.poll(0.2) == []
    receiver.resume((topic, 0))
    assert values(read(receiver, 1)) == [b"0"]
