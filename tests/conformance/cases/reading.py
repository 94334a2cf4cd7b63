"""Fetch and ListOffsets: every edge of both isolations."""

import time
from uuid import UUID

from dualwrite.ids import ProducerIdentity
from dualwrite.records.header import iterate_batches
from dualwrite.wire.apis import ApiKey, ListOffsetsRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject
from tests.support.requests.calls import (
    batch,
    end,
    fetch,
    fetch_request,
    identity,
    init,
    list_offset,
    new_producer,
    produce,
    topic_id,
    tx_batch,
)
from tests.support.waiting import eventually


def note_fetched(broker: Subject, step: str, answer: Message) -> None:
    """Note a partition of a Fetch answer; of its records, the offsets of the batches."""
    if answer.error_code != ErrorCode.NONE:
        broker.note(step, error=answer.error_code)
        return
    aborted = answer.aborted_transactions
    broker.note(
        step,
        high_watermark=answer.high_watermark,
        stable=answer.last_stable_offset,
        start=answer.log_start_offset,
        aborted=None
        if aborted is None
        else sorted((broker.show(ProducerIdentity(entry.producer_id, 0)), entry.first_offset) for entry in aborted),
        batches=[header.base_offset for header, _ in iterate_batches(answer.records or b"")],
    )


def note_listed(broker: Subject, step: str, answer: Message) -> None:
    """Note a partition of a ListOffsets answer."""
    broker.note(
        step,
        error=answer.error_code,
        offset=answer.offset,
        timestamp=broker.moment(answer.timestamp),
        epoch=answer.leader_epoch,
    )


def _fetch_of_two(broker: Subject, topic: str, missing: str) -> Message:
    """A Fetch of the only partition of ``topic``, from its end, and of ``missing``."""
    first, second = (
        fetch_request(name, by_id=by_id, max_wait_ms=60_000)
        for name, by_id in ((missing, UUID(int=9)), (topic, topic_id(broker.client, topic)))
    )
    first.topics += second.topics
    return first


@case
def a_partition_that_is_missing_beside_one_that_waits(broker: Subject) -> None:
    for version in (12, 13):
        topic, waiting = broker.topic(), broker.connect()
        asked = _fetch_of_two(broker, topic, "no-such-topic")
        sent = waiting.send(asked, version)
        broker.note(f"answered at once in v{version}", answered=eventually(waiting.has_answer, patience=0.5))
        produce(broker.client, topic, batch([b"a"]))
        answers = waiting.receive(ApiKey.FETCH, version, sent).responses
        found, missing = sorted(answers, key=lambda answer: int(answer.partitions[0].error_code))
        note_fetched(broker, f"the missing one in v{version}", missing.partitions[0])
        note_fetched(broker, f"the other in v{version}", found.partitions[0])


def await_next_millisecond() -> None:
    """What happens from now on has a later timestamp than what has happened."""
    began = time.time_ns() // 1_000_000
    assert eventually(lambda: time.time_ns() // 1_000_000 > began)


def filled(broker: Subject) -> str:
    """A topic with a batch of two, an aborted, a committed and an open transaction, and one more batch between."""
    topic, client, start = broker.topic(), broker.client, broker.start_ms
    produce(client, topic, batch([b"a", b"b"], timestamp=start + 1000))
    for commit, timestamp in ((False, 5000), (True, 3000)):
        name = broker.name("tx")
        producer = new_producer(client, name, version=4)
        produce(client, topic, tx_batch([b"c"], producer, timestamp=start + timestamp), name, version=12)
        broker.settled(lambda name=name, producer=producer, commit=commit: end(client, name, producer, commit))  # type: ignore[misc]
        # Its markers are there before the next begins, and are older: a marker's timestamp is the broker's time.
        broker.settled(lambda name=name: init(client, name, version=4))  # type: ignore[misc]
        await_next_millisecond()
    name = broker.name("tx")
    producer = new_producer(client, name, version=4)
    produce(client, topic, tx_batch([b"open"], producer, timestamp=start + 4500), name, version=12)
    produce(client, topic, batch([b"last"], timestamp=start + 4000))
    return topic


@case
def both_isolations_from_every_offset(broker: Subject) -> None:
    topic = filled(broker)
    for committed in (False, True):
        for offset in range(-1, 10):
            answer = fetch(broker.client, topic, offset, committed=committed)
            note_fetched(broker, f"{'committed' if committed else 'all'} from {offset}", answer)


@case
def every_special_timestamp_in_both_isolations(broker: Subject) -> None:
    topic = filled(broker)
    for committed in (False, True):
        isolation = "committed" if committed else "all"
        for timestamp in (-1, -2, -3, -4, -7, 0, 2**50):
            answer = list_offset(broker.client, topic, timestamp, committed=committed)
            note_listed(broker, f"{isolation} at {timestamp}", answer)
        for after in (0, 1000, 1001, 3000, 3001, 4000, 4001, 4500, 4501, 5000, 5001):
            answer = list_offset(broker.client, topic, broker.start_ms + after, committed=committed)
            note_listed(broker, f"{isolation} at start+{after}", answer)


@case
def offsets_of_an_empty_partition(broker: Subject) -> None:
    topic = broker.topic()
    for timestamp in (-1, -2, -3, -4, 0, 5000):
        note_listed(broker, f"at {timestamp}", list_offset(broker.client, topic, timestamp))


@case
def special_timestamps_need_their_versions(broker: Subject) -> None:
    topic = broker.topic()
    produce(broker.client, topic, batch([b"a"], timestamp=broker.start_ms))
    for timestamp, versions in {-3: (6, 7), -4: (7, 8), -5: (8, 9), -6: (10, 11)}.items():
        for version in versions:
            answer = list_offset(broker.client, topic, timestamp, version=version)
            note_listed(broker, f"{timestamp} in v{version}", answer)


@case
def unknown_partitions_have_no_offsets(broker: Subject) -> None:
    topic = broker.topic()
    for label, (name, partition) in {"topic": ("no-such-topic", 0), "partition": (topic, 5)}.items():
        note_listed(broker, f"{label} to list", list_offset(broker.client, name, -1, partition=partition))
        note_fetched(broker, f"{label} to fetch", fetch(broker.client, name, 0, partition=partition))
    for label, identifier in {"none": UUID(int=0), "other": UUID(int=77)}.items():
        note_fetched(broker, f"id {label}", fetch(broker.client, topic, by_id=identifier, version=13))


@case
def a_partition_twice_in_one_request(broker: Subject) -> None:
    topic = broker.topic()
    produce(broker.client, topic, batch([b"a"], timestamp=broker.start_ms))
    entry = ListOffsetsRequest.ListOffsetsTopic
    wanted = [
        entry.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
        for timestamp in (-1, -2)
    ]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[entry(name=topic, partitions=wanted)])
    for answer in broker.client.ask(request, 8).topics:
        for number, partition in enumerate(answer.partitions):
            note_listed(broker, f"answer {number}", partition)


@case
def leader_epochs(broker: Subject) -> None:
    topic = broker.topic()
    produce(broker.client, topic, batch([b"a"], timestamp=broker.start_ms))
    for epoch in (-1, 0, 1):
        note_fetched(broker, f"epoch {epoch}", fetch(broker.client, topic, current_leader_epoch=epoch))


@case
def limits_of_size(broker: Subject) -> None:
    topic = broker.topic()
    for _ in range(3):
        produce(broker.client, topic, batch([b"x" * 1000]))
    size = len(batch([b"x" * 1000]))
    for label, more in {
        "partition: one byte": {"partition_max_bytes": 1},
        "partition: no byte": {"partition_max_bytes": 0},
        "partition: less than two": {"partition_max_bytes": 2 * size - 1},
        "partition: two": {"partition_max_bytes": 2 * size},
        "request: one byte": {"max_bytes": 1},
        "request: no byte": {"max_bytes": 0},
        "request: two": {"max_bytes": 2 * size},
        "the end": {"offset": 3},
        "the end, nothing wanted": {"offset": 3, "min_bytes": 0, "max_wait_ms": 5000},
        "past the end": {"offset": 4, "max_wait_ms": 5000},
    }.items():
        answer = fetch(broker.client, topic, more.pop("offset", 0), **more)
        sizes = [header.size for header, _ in iterate_batches(_whole(answer.records or b"", size))]
        broker.note(label, error=answer.error_code, whole_batches=len(sizes))


@case
def min_bytes_at_the_end_of_a_segment_and_of_the_log(broker: Subject) -> None:
    topic = broker.topic(segment_bytes="1048576")
    for _ in range(12):
        produce(broker.client, topic, batch([bytes(100_000)]))
    for step, offset, max_wait_ms in (("a segment", 9, 20_000), ("the log", 10, 200)):
        began = time.monotonic()
        answer = fetch(broker.client, topic, offset, max_wait_ms=max_wait_ms, min_bytes=500_000)
        waited = time.monotonic() - began >= max_wait_ms / 1000
        broker.note(step, waited=waited, batches=[header.base_offset for header, _ in iterate_batches(answer.records)])


@case
def min_bytes_near_the_limits_of_size(broker: Subject) -> None:
    topic = broker.topic()
    for _ in range(3):
        produce(broker.client, topic, batch([b"x" * 1000]))
    size = len(batch([b"x" * 1000]))
    less = 2 * size - 1
    for step, max_wait_ms, limits in (
        ("a partition's limit", 20_000, {"min_bytes": less, "partition_max_bytes": less}),
        ("the request's limit", 20_000, {"min_bytes": 20 * size, "max_bytes": less}),
        ("more than a partition's limit", 200, {"min_bytes": less + 1, "partition_max_bytes": less}),
    ):
        began = time.monotonic()
        answer = fetch(broker.client, topic, max_wait_ms=max_wait_ms, **limits)
        waited = time.monotonic() - began >= max_wait_ms / 1000
        broker.note(step, waited=waited, whole_batches=len(list(iterate_batches(_whole(answer.records, size)))))


def _whole(records: bytes, size: int) -> bytes:
    return records[: len(records) // size * size]


@case
def the_first_partition_may_exceed_the_limit_the_second_may_not(broker: Subject) -> None:
    topic = broker.topic(2)
    for partition in (0, 1):
        produce(broker.client, topic, batch([b"x" * 1000]), partition=partition)
    request = fetch_request(topic, max_bytes=1)
    (entry,) = request.topics
    second = fetch_request(topic, partition=1).topics[0].partitions[0]
    entry.partitions.append(second)
    for answer in broker.client.ask(request, 12).responses[0].partitions:
        broker.note(f"partition {answer.partition_index}", error=answer.error_code, some=bool(answer.records))


@case
def every_version_of_fetch(broker: Subject) -> None:
    topic = broker.topic()
    produce(broker.client, topic, batch([b"a"], timestamp=broker.start_ms))
    for version in range(4, 18):
        answer = fetch(broker.client, topic, by_id=topic_id(broker.client, topic), version=version)
        broker.note(f"v{version}", error=answer.error_code, stable=answer.last_stable_offset, some=bool(answer.records))


@case
def sessions_that_nobody_knows(broker: Subject) -> None:
    topic = broker.topic()
    for label, fields in {
        "no session, no epoch": {"session_id": 0, "session_epoch": -1},
        "a new session": {"session_id": 0, "session_epoch": 0},
        "unknown, going on": {"session_id": 12345, "session_epoch": 1},
        "unknown, ended": {"session_id": 12345, "session_epoch": -1},
        "none, going on": {"session_id": 0, "session_epoch": 5},
    }.items():
        answer = broker.client.ask(fetch_request(topic, **fields), 12)
        broker.note(label, error=answer.error_code, partitions=len(answer.responses))


@case
def aborted_transactions_among_many(broker: Subject) -> None:
    topic, client = broker.topic(), broker.client
    for number in range(4):
        name = broker.name("tx")
        producer = identity(init(client, name, version=4))
        content = tx_batch([b"v", b"w"], producer, timestamp=broker.start_ms)
        produce(client, topic, content, name, version=12)
        broker.settled(lambda name=name, producer=producer, number=number: end(client, name, producer, number == 2))  # type: ignore[misc]
        broker.settled(lambda name=name: init(client, name, version=4))  # type: ignore[misc]
    for offset in (0, 1, 2, 3, 5, 6, 8, 9, 11, 12):
        note_fetched(broker, f"from {offset}", fetch(client, topic, offset, committed=True))
    answer = fetch(client, topic, 0, committed=True, partition_max_bytes=len(content))
    note_fetched(broker, "only the first batch", answer)
