"""Idempotent produce (KIP-98, KIP-360): sequences, epochs, duplicates."""

from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.wire.apis import Message
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject
from tests.support.requests.calls import batch, init, new_producer, produce

LAST_SEQUENCE = 2**31 - 1


def send(broker: Subject, step: str, topic: str, producer: ProducerIdentity, sequence: int, values: int = 1) -> Message:
    """Produce a batch of ``values`` records and note the answer."""
    answer = produce(broker.client, topic, batch([b"v"] * values, producer, sequence))
    broker.note(step, error=answer.error_code, offset=answer.base_offset)
    return answer


def bumped(producer: ProducerIdentity, by: int = 1) -> ProducerIdentity:
    """The same producer id in a later epoch."""
    return ProducerIdentity(producer.producer_id, producer.epoch + by)


@case
def sequences_go_up_by_one(broker: Subject) -> None:
    topic, producer = broker.topic(), new_producer(broker.client, version=4)
    send(broker, "first", topic, producer, 0, 2)
    send(broker, "next", topic, producer, 2)
    send(broker, "a gap", topic, producer, 4)
    send(broker, "after the gap was refused", topic, producer, 3)
    send(broker, "back to zero", topic, producer, 0)


@case
def duplicates_of_the_last_five_batches_get_their_offsets(broker: Subject) -> None:
    topic, producer = broker.topic(), new_producer(broker.client, version=4)
    for sequence in range(7):
        send(broker, f"batch {sequence}", topic, producer, sequence)
    for sequence in reversed(range(7)):
        send(broker, f"batch {sequence} again", topic, producer, sequence)
    send(broker, "the next", topic, producer, 7)


@case
def a_batch_that_overlaps_is_no_duplicate(broker: Subject) -> None:
    topic, producer = broker.topic(), new_producer(broker.client, version=4)
    send(broker, "three", topic, producer, 0, 3)
    send(broker, "its last two", topic, producer, 1, 2)
    send(broker, "its first two", topic, producer, 0, 2)
    send(broker, "it and one more", topic, producer, 0, 4)
    send(broker, "it", topic, producer, 0, 3)


@case
def an_unknown_producer_may_begin_anywhere(broker: Subject) -> None:
    topic, stranger = broker.topic(), ProducerIdentity(new_producer(broker.client, version=4).producer_id, 3)
    send(broker, "sequence 17 of nobody known", topic, stranger, 17)
    send(broker, "the next", topic, stranger, 18)
    send(broker, "a gap", topic, stranger, 20)


@case
def a_new_epoch_begins_at_zero_and_fences_the_old(broker: Subject) -> None:
    topic, producer = broker.topic(), new_producer(broker.client, version=4)
    send(broker, "epoch 0", topic, producer, 0)
    send(broker, "epoch 1 at 1", topic, bumped(producer), 1)
    send(broker, "epoch 1 at 0", topic, bumped(producer), 0)
    send(broker, "epoch 0 again", topic, producer, 0)
    send(broker, "epoch 0 next", topic, producer, 1)
    send(broker, "epoch 1 at 0 again", topic, bumped(producer), 0)
    send(broker, "epoch 9 at 0", topic, bumped(producer, 9), 0)
    send(broker, "epoch 1 at 1 late", topic, bumped(producer), 1)


@case
def sequences_wrap(broker: Subject) -> None:
    topic, producer = broker.topic(), new_producer(broker.client, version=4)
    send(broker, "the last but one", topic, producer, LAST_SEQUENCE - 1)
    send(broker, "two across the end", topic, producer, LAST_SEQUENCE, 2)
    send(broker, "after it", topic, producer, 1)
    send(broker, "two across the end again", topic, producer, LAST_SEQUENCE, 2)
    send(broker, "one too far", topic, producer, 3)


@case
def partitions_count_by_themselves(broker: Subject) -> None:
    topic, producer = broker.topic(2), new_producer(broker.client, version=4)
    for partition in (0, 1):
        answer = produce(broker.client, topic, batch([b"v"], producer, 0), partition=partition)
        broker.note(f"partition {partition}", error=answer.error_code, offset=answer.base_offset)


@case
def batches_without_a_producer_do_not_count(broker: Subject) -> None:
    topic, producer = broker.topic(), new_producer(broker.client, version=4)
    send(broker, "first", topic, producer, 0)
    send(broker, "nobody", topic, NO_PRODUCER, -1)
    send(broker, "second", topic, producer, 1)
    send(broker, "first again", topic, producer, 0)


@case
def every_producer_id_is_new(broker: Subject) -> None:
    seen = {}
    for version in range(7):
        answer = init(broker.client, None, version=version)
        seen[answer.producer_id] = version
        broker.note(f"v{version}", error=answer.error_code, epoch=answer.producer_epoch)
    broker.note("ids", distinct=len(seen))


@case
def timeouts_matter_with_a_transactional_id_only(broker: Subject) -> None:
    for timeout in (-1, 0, 1, 900_000, 900_001, 2**31 - 1):
        answer = init(broker.client, None, version=4, timeout_ms=timeout)
        broker.note(f"no id, {timeout}", error=answer.error_code, epoch=answer.producer_epoch)
        answer = init(broker.client, broker.name("tx"), version=4, timeout_ms=timeout)
        broker.note(f"an id, {timeout}", error=answer.error_code, epoch=answer.producer_epoch)


@case
def the_identity_that_a_producer_expects_without_a_transactional_id(broker: Subject) -> None:
    producer = new_producer(broker.client, version=4)
    for label, expected in {"its own": producer, "half": ProducerIdentity(producer.producer_id, -1)}.items():
        answer = init(broker.client, None, version=4, expected=expected)
        broker.note(label, error=answer.error_code, same=answer.producer_id == producer.producer_id)
