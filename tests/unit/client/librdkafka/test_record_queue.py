"""Records on their way into librdkafka's queue: how a full one is waited for, and which callbacks are called."""

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.librdkafka.deadline_calls import DeadlineCalls, HeldCallbacks
from dualwrite.client.librdkafka.record_queue import RECORDS_PER_POLL, RecordQueue
from dualwrite.errors import KafkaUnavailableError
from dualwrite.records.outgoing import OnDelivery, OutgoingRecord

RECORD = OutgoingRecord("t", b"v")


class QueueOfTwo:
    """A producer whose queue has room for two records; a poll that may wait delivers one."""

    def __init__(self) -> None:
        self.queue: list[Callable[[Any, Any], None]] = []
        self.polls: list[float] = []

    def produce(self, topic: str, *_: Any, on_delivery: Callable[[Any, Any], None], **__: Any) -> None:
        if len(self.queue) == 2:
            raise BufferError
        self.queue.append(on_delivery)

    def poll(self, timeout: float) -> None:
        self.polls.append(timeout)
        if timeout and self.queue:
            self.queue.pop(0)(None, self)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 5


def queue_of(on_delivery: OnDelivery | None = None, timeout: float = 20.0) -> tuple[RecordQueue, HeldCallbacks]:
    callbacks = HeldCallbacks()
    return RecordQueue(timeout, on_delivery, callbacks), callbacks


def test_a_full_queue_is_polled_until_it_has_room() -> None:
    (queue, _), producer = queue_of(), QueueOfTwo()
    for _ in range(3):
        queue.add(producer, RECORD)
    assert len(producer.polls) == 1
    assert (queue.deliveries.produced, queue.deliveries.acknowledged) == (3, 1)


def test_a_record_that_a_full_queue_did_not_take_is_not_counted() -> None:
    (queue, _), producer = queue_of(timeout=0.0), QueueOfTwo()
    assert [queue.add_at_once(producer, RECORD) for _ in range(3)] == [True, True, False]
    with pytest.raises(KafkaUnavailableError, match="produce to t: the queue stayed full"):
        queue.add(producer, RECORD)
    assert (queue.deliveries.produced, queue.deliveries.missing) == (2, 2)
    assert producer.polls == []


def test_a_poll_is_due_once_in_many_records() -> None:
    (queue, _), producer = queue_of(), QueueOfTwo()
    due = []
    for _ in range(2 * RECORDS_PER_POLL):
        due.append(queue.polls_next)
        producer.polls.clear()
        producer.queue.clear()
        queue.add(producer, RECORD)
        assert bool(producer.polls) == due[-1]
    assert due.count(True) == 2


def test_the_reports_of_an_earlier_transaction_are_counted_no_longer() -> None:
    (queue, _), producer = queue_of(), QueueOfTwo()
    queue.add(producer, RECORD)
    queue.begin()
    producer.poll(1.0)
    assert (queue.deliveries.produced, queue.deliveries.acknowledged) == (0, 0)


def test_a_users_callback_is_held_while_another_thread_calls_and_the_report_is_counted_at_once() -> None:
    told: list[str] = []
    (queue, callbacks), producer = queue_of(lambda _error, _message: told.append("default")), QueueOfTwo()
    queue.add(producer, RECORD)
    queue.add(producer, OutgoingRecord("t", b"v", on_delivery=lambda _error, _message: told.append("own")))
    calls = DeadlineCalls(grace=20)
    with callbacks.held(calls):
        for _ in range(2):
            producer.poll(1.0)
        assert (told, queue.deliveries.acknowledged) == ([], 2)
    calls.close()
    assert told == ["default", "own"]


def test_a_report_is_counted_although_the_users_callback_raises() -> None:
    def fails(_error: Any, _message: Any) -> None:
        raise ZeroDivisionError

    (queue, _), producer = queue_of(fails), QueueOfTwo()
    queue.add(producer, RECORD)
    with pytest.raises(ZeroDivisionError):
        producer.poll(1.0)
    assert queue.deliveries.missing == 0
