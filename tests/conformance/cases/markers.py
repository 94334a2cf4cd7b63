"""WriteTxnMarkers of an operator, and what partitions remember of producers that it is about."""

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import Message
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject
from tests.support.requests.calls import add, batch, describe, end, new_producer, produce, producers, tx_batch
from tests.support.requests.marker_calls import marker, write


def opened(broker: Subject, topic: str) -> tuple[str, ProducerIdentity]:
    """A transaction of the older protocol with one record, in the producer's second epoch."""
    transactional_id = broker.name("tx")
    new_producer(broker.client, transactional_id, version=4)
    producer = new_producer(broker.client, transactional_id, version=4)
    add(broker.client, transactional_id, producer, (topic, 0))
    produce(broker.client, topic, tx_batch([b"v"], producer), transactional_id)
    return transactional_id, producer


def bumped(producer: ProducerIdentity, by: int) -> ProducerIdentity:
    """The same producer id in another epoch."""
    return ProducerIdentity(producer.producer_id, producer.epoch + by)


def send(broker: Subject, step: str, topic: str, sent: Message, version: int = 2) -> None:
    """Write one marker; note the answer and what the partition says of its producer then."""
    errors = write(broker.client, sent, version=version)
    seen = producers(broker.client, topic).get(sent.producer_id)
    broker.note(step, errors=list(errors.values()), **_described(seen))


def _described(seen: Message | None) -> dict[str, object]:
    if seen is None:
        return {"producer": "unknown"}
    return {
        "epoch": seen.producer_epoch,
        "sequence": seen.last_sequence,
        "coordinator": seen.coordinator_epoch,
        "start": seen.current_txn_start_offset,
    }


@case
def markers_of_an_open_transaction(broker: Subject) -> None:
    topic = broker.topic()
    transactional_id, producer = opened(broker, topic)
    broker.note("open", **_described(producers(broker.client, topic)[producer.producer_id]))
    for version in (1, 2):
        send(broker, f"an older epoch in v{version}", topic, marker(bumped(producer, -1), (topic, 0)), version)
    send(broker, "no epoch", topic, marker(bumped(producer, -2), (topic, 0)))
    send(broker, "its epoch, as of TV2", topic, marker(producer, (topic, 0), version=2))
    send(broker, "abort", topic, marker(producer, (topic, 0), epoch=3))
    send(broker, "abort again", topic, marker(producer, (topic, 0), epoch=3))
    send(broker, "of an older coordinator", topic, marker(producer, (topic, 0), epoch=2))
    broker.note("the coordinator", state=describe(broker.client, transactional_id).transaction_state)


@case
def markers_of_the_second_version(broker: Subject) -> None:
    topic = broker.topic()
    _, producer = opened(broker, topic)
    after = bumped(producer, 1)
    send(broker, "the next epoch", topic, marker(after, (topic, 0), commit=True, version=2))
    send(broker, "the next epoch again", topic, marker(after, (topic, 0), commit=True, version=2))
    send(broker, "the first again", topic, marker(producer, (topic, 0), version=2))
    late = produce(broker.client, topic, batch([b"late"], producer, 1))
    broker.note("a record of the first", error=late.error_code)


@case
def markers_of_producers_that_are_unknown(broker: Subject) -> None:
    topic = broker.topic()
    for version in (0, 2):
        producer = new_producer(broker.client, version=4)
        send(broker, f"unknown, TV{version}", topic, marker(producer, (topic, 0), version=version))
    first = produce(broker.client, topic, batch([b"v"], producer, 5))
    broker.note("its first batch has sequence 5", error=first.error_code)
    errors = write(broker.client, marker(producer, ("no-such-topic", 0)))
    broker.note("an unknown topic", errors=list(errors.values()))
    broker.note("no markers", errors=write(broker.client))


@case
def markers_behind_which_a_commit_comes(broker: Subject) -> None:
    topic = broker.topic()
    transactional_id, producer = opened(broker, topic)
    send(broker, "aborted by hand", topic, marker(producer, (topic, 0)))
    broker.note("commit", error=end(broker.client, transactional_id, producer, version=3).error_code)


@case
def first_batches_of_unknown_producers(broker: Subject) -> None:
    for version in (11, 12):
        topic, transactional_id = broker.topic(), broker.name("tx")
        producer = new_producer(broker.client, transactional_id, version=4)
        add(broker.client, transactional_id, producer, (topic, 0))
        answer = produce(broker.client, topic, tx_batch([b"v"], producer, 7), transactional_id, version=version)
        broker.note(f"sequence 7 in v{version}", error=answer.error_code)


@case
def times_of_duplicates(broker: Subject) -> None:
    for kind in ("CreateTime", "LogAppendTime"):
        topic, producer = broker.topic(message_timestamp_type=kind), new_producer(broker.client, version=4)
        content = batch([b"v"], producer, 0, timestamp=broker.start_ms + 5)
        for step in ("first", "again"):
            answer = produce(broker.client, topic, content)
            broker.note(f"{kind} {step}", error=answer.error_code, time=broker.moment(answer.log_append_time_ms))
