"""The records of one transaction on their way into librdkafka's queue, and their delivery reports."""

import time
from typing import Any

from dualwrite.client.librdkafka.deadline_calls import HeldCallbacks
from dualwrite.client.librdkafka.deliveries import Deliveries, reporter
from dualwrite.errors import KafkaUnavailableError
from dualwrite.records.outgoing import OnDelivery, OutgoingRecord

_FULL_POLL = 0.1
"""Seconds of one poll while the queue is full."""

RECORDS_PER_POLL = 100
"""Records between two polls for delivery reports; a poll costs as much as half a produce."""


class RecordQueue:
    """Hands records to a confluent_kafka.Producer, and counts their reports. It keeps no reference to the producer,
    which is destroyed with its last reference.

    :param delivery_timeout: seconds to wait while the queue is full.
    :param on_delivery: the callback of records without their own.
    :param callbacks: holds users' callbacks while another thread calls the producer.
    """

    def __init__(self, delivery_timeout: float, on_delivery: OnDelivery | None, callbacks: HeldCallbacks) -> None:
        self._delivery_timeout = delivery_timeout
        self._on_delivery = on_delivery
        self._callbacks = callbacks
        self.begin()

    def begin(self) -> None:
        """Begin a transaction: earlier records are no longer counted."""
        self.deliveries = Deliveries()
        self._report = reporter(self.deliveries)

    def add(self, producer: Any, record: OutgoingRecord) -> None:
        """Add ``record``, waiting while the queue is full. May call delivery callbacks.

        :raises KafkaUnavailableError: if the queue stayed full.
        """
        report, deadline = self._reporter(record), 0.0
        while not self._is_taken(producer, record, report):
            deadline = deadline or time.monotonic() + self._delivery_timeout
            if time.monotonic() >= deadline:
                raise KafkaUnavailableError(f"produce to {record.topic}: the queue stayed full")
            producer.poll(_FULL_POLL)
        if self.deliveries.produced % RECORDS_PER_POLL == 0:
            producer.poll(0)

    @property
    def polls_next(self) -> bool:
        """True if :meth:`add` will poll after the next record, which calls callbacks."""
        return (self.deliveries.produced + 1) % RECORDS_PER_POLL == 0

    def add_at_once(self, producer: Any, record: OutgoingRecord) -> bool:
        """Add ``record``; False if the queue is full."""
        return self._is_taken(producer, record, self._reporter(record))

    def _reporter(self, record: OutgoingRecord) -> OnDelivery:
        own = record.on_delivery
        callback = self._on_delivery if own is None else own
        return self._report if callback is None else reporter(self.deliveries, self._callbacks.to(callback))

    def _is_taken(self, producer: Any, record: OutgoingRecord, report: OnDelivery) -> bool:
        topic, value, key, partition, timestamp, headers, _ = record
        more = {"headers": list(headers)} if headers else {}
        try:
            producer.produce(topic, value, key, partition, on_delivery=report, timestamp=timestamp, **more)
        except BufferError:
            return False
        self.deliveries.sent()
        return True
