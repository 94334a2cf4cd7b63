"""Fetch: isolation, long polls, sizes, positions, aborted transactions, topic ids."""

import time
import uuid

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.records.header import iterate_batches
from dualwrite.wire.apis import ApiKey, FetchRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import (
    batch,
    consumed,
    end,
    fetch,
    fetch_request,
    identity,
    new_producer,
    new_topic,
    only_partition,
    open_transaction,
    produce,
    read_all,
    topic_id,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

FOR_EVER_MS = int(PATIENCE_SECONDS * 2000)
"""Longer than any test waits: an answer that comes was not caused by the time."""


def filled(client: RawClient, count: int, size: int = 1) -> str:
    """A topic with ``count`` batches of one record of ``size`` bytes."""
    topic = new_topic(client)
    for number in range(count):
        assert produce(client, topic, batch([b"%d" % number * size])).error_code == ErrorCode.NONE
    return topic


def began(client: RawClient, topic: str, *values: bytes) -> tuple[str, ProducerIdentity]:
    """An open transaction with ``values`` in ``topic``."""
    transactional_id = unique("tx")
    producer = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, producer, {(topic, 0): list(values)})
    return transactional_id, producer


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("committed", [False, True])
def test_records_are_fetched_in_every_version(client: RawClient, version: int, committed: bool) -> None:
    topic = filled(client, 2)
    part = fetch(client, topic, version=version, committed=committed, by_id=topic_id(client, topic))
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (ErrorCode.NONE, 2, 2)
    assert consumed(part, 0) == [b"0", b"1"]
    if version >= 5:
        assert part.log_start_offset == 0


def test_a_fetch_from_inside_a_batch_returns_the_whole_batch(client: RawClient) -> None:
    topic = new_topic(client)
    produce(client, topic, batch([b"a", b"b", b"c"]))
    part = fetch(client, topic, 1)
    ((header, _),) = iterate_batches(part.records)
    assert (header.base_offset, consumed(part, 1)) == (0, [b"b", b"c"])


def test_a_fetch_at_the_end_returns_no_records(client: RawClient) -> None:
    part = fetch(client, filled(client, 2), 2)
    assert (part.error_code, part.high_watermark, part.records) == (ErrorCode.NONE, 2, b"")


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
def test_an_offset_out_of_range_is_answered_at_once(client: RawClient, offset: int) -> None:
    part = fetch(client, filled(client, 2), offset, max_wait_ms=FOR_EVER_MS)
    assert (part.error_code, part.high_watermark, part.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1, b"")


def test_an_unknown_partition_topic_and_id_are_refused(client: RawClient) -> None:
    topic = new_topic(client)
    assert fetch(client, topic, partition=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, topic, partition=-1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, unique("missing")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, topic, version=13, by_id=uuid.UUID(int=5)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_leader_epoch_from_the_future_is_refused(client: RawClient) -> None:
    topic = filled(client, 1)
    assert fetch(client, topic, current_leader_epoch=0).error_code == ErrorCode.NONE
    assert fetch(client, topic, current_leader_epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_session_of_another_broker_is_unknown_here(client: RawClient) -> None:
    answer = client.ask(fetch_request(filled(client, 1), session_id=5, session_epoch=7), 12)
    assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def test_a_new_session_is_declined_with_a_whole_answer(client: RawClient) -> None:
    answer = client.ask(fetch_request(filled(client, 1), session_id=0, session_epoch=0), 12)
    assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, 0)
    assert consumed(only_partition(answer), 0) == [b"0"]


# --- sizes


def test_one_batch_is_returned_however_small_the_limits_are(client: RawClient) -> None:
    topic = filled(client, 3, size=5000)
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0, "partition_max_bytes": 0}):
        assert consumed(fetch(client, topic, 1, **limits), 1) == [b"1" * 5000]


def test_whole_batches_up_to_the_limit_are_returned(client: RawClient) -> None:
    topic = filled(client, 4, size=100)
    size = len(fetch(client, topic, partition_max_bytes=1).records)
    for limit, count in [(size - 1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (3 * size + 1, 3)]:
        assert len(consumed(fetch(client, topic, partition_max_bytes=limit), 0)) == count
        assert len(consumed(fetch(client, topic, max_bytes=limit), 0)) == count


def test_only_the_first_partition_with_records_may_exceed_the_limit(client: RawClient) -> None:
    empty, first, second = new_topic(client), filled(client, 2, size=2000), filled(client, 2, size=2000)
    requests = [fetch_request(topic) for topic in (empty, first, second)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=100,
        topics=[entry for one in requests for entry in one.topics],
        forgotten_topics_data=[],
    )
    answer = client.ask(request, 12)
    sizes = {topic.topic: len(topic.partitions[0].records) for topic in answer.responses}
    assert (sizes[empty], sizes[second]) == (0, 0)
    assert sizes[first] > 2000


# --- long polls


def wait_for(client: RawClient, topic: str, **more: int) -> int:
    """Send a fetch that waits for more; its correlation id."""
    return client.send(fetch_request(topic, max_wait_ms=FOR_EVER_MS, **more), 12)


def answer_of(client: RawClient, correlation: int, offset: int = 0) -> list[bytes | None]:
    return consumed(only_partition(client.receive(ApiKey.FETCH, 12, correlation)), offset)


def test_a_long_poll_wakes_when_a_record_is_produced(client: RawClient, shared_broker: EmbeddedBroker) -> None:
    topic = new_topic(client)
    with RawClient(shared_broker.bootstrap_servers) as reader:
        waiting = wait_for(reader, topic)
        produce(client, topic, batch([b"woken"]))
        assert answer_of(reader, waiting) == [b"woken"]


def test_a_long_poll_waits_for_min_bytes(client: RawClient, shared_broker: EmbeddedBroker) -> None:
    topic = filled(client, 1, size=100)
    size = len(fetch(client, topic).records)
    with RawClient(shared_broker.bootstrap_servers) as reader:
        waiting = wait_for(reader, topic, min_bytes=3 * size)
        for value in (b"1" * 100, b"2" * 100):
            produce(client, topic, batch([value]))
        assert answer_of(reader, waiting) == [b"0" * 100, b"1" * 100, b"2" * 100]


def test_a_long_poll_ends_with_its_time(client: RawClient) -> None:
    topic = filled(client, 1)
    began_at = time.monotonic()
    part = fetch(client, topic, max_wait_ms=120, min_bytes=100_000)
    assert time.monotonic() - began_at >= 0.12
    assert consumed(part, 0) == [b"0"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_fetch_that_a_segment_s_end_stops_does_not_wait_for_min_bytes(client: RawClient, committed: bool) -> None:
    topic = new_topic(client, segment_bytes="1048576")
    for number in range(12):
        assert produce(client, topic, batch([b"%d" % number + bytes(100_000)])).error_code == ErrorCode.NONE
    part = fetch(client, topic, 9, max_wait_ms=FOR_EVER_MS, min_bytes=500_000, committed=committed)
    assert [header.base_offset for header, _ in iterate_batches(part.records)] == [9], "a segment has room for ten"


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
def test_a_fetch_whose_limits_leave_no_room_for_the_next_batch_does_not_wait_for_min_bytes(
    client: RawClient, limit: str, committed: bool
) -> None:
    topic = filled(client, 3, size=100)
    size = len(fetch(client, topic, partition_max_bytes=1).records)
    limits = {limit: 2 * size - 1, "min_bytes": (2 * size - 1) * (10 if limit == "max_bytes" else 1)}
    assert consumed(fetch(client, topic, max_wait_ms=FOR_EVER_MS, committed=committed, **limits), 0) == [b"0" * 100]


def test_a_fetch_waits_for_min_bytes_that_only_several_limits_allow(
    client: RawClient, shared_broker: EmbeddedBroker
) -> None:
    full, other = filled(client, 3, size=100), new_topic(client)
    size = len(fetch(client, full, partition_max_bytes=1).records)
    request = fetch_request(full, max_wait_ms=FOR_EVER_MS, min_bytes=2 * size, partition_max_bytes=size)
    request.topics += fetch_request(other).topics
    with RawClient(shared_broker.bootstrap_servers) as reader:
        waiting = reader.send(request, 12)
        produce(client, other, batch([b"x" * 100]))
        answers = reader.receive(ApiKey.FETCH, 12, waiting).responses
        assert [consumed(topic.partitions[0], 0) for topic in answers] == [[b"0" * 100], [b"x" * 100]]


@pytest.mark.parametrize("commit", [True, False])
def test_a_committed_reader_wakes_when_the_transaction_ends(
    client: RawClient, shared_broker: EmbeddedBroker, commit: bool
) -> None:
    topic = new_topic(client)
    transactional_id, producer = began(client, topic, b"inside")
    produce(client, topic, batch([b"behind"]))
    assert read_all(client, topic) == []
    with RawClient(shared_broker.bootstrap_servers) as reader:
        waiting = wait_for(reader, topic, committed=True)
        assert end(client, transactional_id, producer, commit).error_code == ErrorCode.NONE
        assert answer_of(reader, waiting) == ([b"inside", b"behind"] if commit else [b"behind"])


def test_a_reader_that_disconnects_while_it_waits_harms_no_other_client(
    client: RawClient, shared_broker: EmbeddedBroker
) -> None:
    topic = new_topic(client)
    with RawClient(shared_broker.bootstrap_servers) as reader:
        wait_for(reader, topic)
    for value in (b"a", b"b"):
        assert produce(client, topic, batch([value])).error_code == ErrorCode.NONE
    assert read_all(client, topic) == [b"a", b"b"]


# --- transactions


def test_an_open_transaction_hides_itself_and_what_follows_from_committed_readers(client: RawClient) -> None:
    topic = filled(client, 1)
    transactional_id, producer = began(client, topic, b"open")
    produce(client, topic, batch([b"behind"]))
    assert read_all(client, topic, committed=False) == [b"0", b"open", b"behind"]
    part = fetch(client, topic, committed=True)
    assert (part.last_stable_offset, part.high_watermark) == (1, 3)
    assert consumed(part, 0) == [b"0"]
    assert end(client, transactional_id, producer).error_code == ErrorCode.NONE
    assert read_all(client, topic) == [b"0", b"open", b"behind"]


def test_the_first_open_transaction_bounds_committed_readers(client: RawClient) -> None:
    topic = new_topic(client)
    first = began(client, topic, b"first")
    second = began(client, topic, b"second")
    end(client, *second)
    assert read_all(client, topic) == []
    end(client, *first)
    assert read_all(client, topic) == [b"first", b"second"]


def test_aborted_transactions_are_listed_where_they_have_records(client: RawClient) -> None:
    topic = new_topic(client, segment_ms=str(2**62))  # so that records of 1970 and markers of today share a segment
    aborted = []
    for name in (b"a", b"b"):  # offsets 0 1, then 2 3: each record is followed by its marker
        transactional_id, producer = began(client, topic, name)
        end(client, transactional_id, producer, commit=False)
        aborted.append(producer.producer_id)
    end(client, *began(client, topic, b"c"))

    def listed(offset: int, **limits: int) -> list[tuple[int, int]]:
        part = fetch(client, topic, offset, committed=True, **limits)
        return [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions]

    assert listed(0) == [(aborted[0], 0), (aborted[1], 2)]
    assert listed(1) == [(aborted[0], 0), (aborted[1], 2)], "the marker at 1 still belongs to the first"
    assert listed(2) == [(aborted[1], 2)]
    assert listed(4) == []
    assert listed(0, partition_max_bytes=1) == [(aborted[0], 0)]
    assert fetch(client, topic).aborted_transactions is None, "readers of everything skip nothing"
    assert read_all(client, topic) == [b"c"]


def test_an_aborted_transaction_is_skipped_between_others_of_the_same_producer(client: RawClient) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    for number, commit in enumerate([True, False, True, False, False, True]):
        open_transaction(client, transactional_id, producer, {(topic, 0): [b"%d" % number]})
        producer = identity(end(client, transactional_id, producer, commit))
    assert read_all(client, topic) == [b"0", b"2", b"5"]
    assert read_all(client, topic, committed=False) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_interleaved_transactions_are_told_apart(client: RawClient) -> None:
    topic = new_topic(client)
    kept, dropped = began(client, topic, b"k0"), began(client, topic, b"d0")
    for sequence in (1, 2):
        for name, (transactional_id, producer) in {b"k": kept, b"d": dropped}.items():
            content = tx_batch([name + b"%d" % sequence], producer, sequence)
            assert produce(client, topic, content, transactional_id, version=12).error_code == ErrorCode.NONE
    end(client, *dropped, commit=False)
    assert read_all(client, topic) == []
    end(client, *kept)
    assert read_all(client, topic) == [b"k0", b"k1", b"k2"]
