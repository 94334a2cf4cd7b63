"""The records of one transaction, per partition: gathered in batches, numbered, in flight, acknowledged or sent again.

A broker checks the order of a producer's batches by their sequence numbers (KIP-98). A batch gets its sequence number,
and is encoded, when it is first sent, and keeps both. A batch that must be sent again waits until its partition has no
other unanswered batch, and then goes first. So batches of one partition never overtake each other, not even when the
leader moves. The sequence numbers begin at 0 with each transaction, because each has an epoch of its own (KIP-890 part
2).
"""

from bisect import bisect
from collections import deque
from collections.abc import Iterator
from typing import Any

from dualwrite.client.encoding.batches import RECORD_OVERHEAD, BatchBuilder, headers_size
from dualwrite.client.engine.contract import NEVER
from dualwrite.ids import ProducerIdentity
from dualwrite.records.compression import Codec
from dualwrite.records.header import MAX_SEQUENCE
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.error_codes import ErrorCode

_RECORD_WEIGHT = 40
"""Bytes of memory that a buffered record is assumed to take beside its key and value."""


class ProducerBatch:
    """Records of one partition that are sent together."""

    __slots__ = (
        "attempts",
        "builder",
        "data",
        "deadline",
        "dropped_connections",
        "last_code",
        "last_error",
        "number",
        "queue",
        "sequence",
        "since",
        "tracked",
        "weight",
    )

    def __init__(self, queue: "PartitionQueue", limit: int, now: float) -> None:
        self.queue = queue
        self.builder = BatchBuilder(limit)
        self.since = now
        self.deadline = 0.0
        """When the batch is given up; set when it becomes due to be sent."""
        self.sequence = -1
        """The sequence number of its first record, before it wraps for the wire format; -1 until it is sent."""
        self.data = b""
        self.attempts = 0
        self.number = -1
        """The batch's number in its queue; set when it becomes due to be sent."""
        self.last_code = 0
        self.last_error = ""
        self.dropped_connections = 0
        """How many connections were lost with this batch since a broker last answered."""
        self.weight = 0
        self.tracked: list[Any] = []
        """What :meth:`tracked_records` returns, one after the other: a container for each record would cost the garbage
        collector time."""

    @property
    def count(self) -> int:
        """How many records it has."""
        return self.builder.count

    def tracked_records(self) -> Iterator[tuple[OutgoingRecord, int, int, float]]:
        """The records whose delivery is reported, each with its number in the batch, its timestamp, and the time at
        which it was added."""
        return zip(*[iter(self.tracked)] * 4, strict=True)


class PartitionQueue:
    """The batches that one partition has to send, in order."""

    __slots__ = (
        "in_flight",
        "is_recovering",
        "next_number",
        "next_sequence",
        "partition",
        "retry_at",
        "sent_to",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.next_number = self.next_sequence = 0
        self.retry_at = 0.0
        self.is_recovering = False
        """True from a failure until the failed batch is sent again."""
        self.sent_to: Any = None
        """The broker to which ``in_flight`` was sent."""

    def may_send(self, to: Any, now: float, max_in_flight: int) -> bool:
        """True if its next batch may go ``to`` that broker now.

        A broker recognizes duplicates only among a producer's last batches. So no batch may be too many ahead of the
        first unacknowledged one, however few are in flight: the broker may have appended that one, and must recognize
        it when it is sent again.
        """
        if not self.waiting or now < self.retry_at:
            return False
        if not self.in_flight:
            return True
        if self.is_recovering or self.sent_to != to:
            return False
        return self.waiting[0].number - self.in_flight[0].number < max_in_flight

    def first_unacknowledged(self) -> ProducerBatch:
        """The batch with the lowest number that is not acknowledged. Batches are sent in the order of their numbers."""
        return min([*self.waiting, *self.in_flight], key=lambda batch: batch.number)


class RecordAccumulator:
    """The batches of one transaction.

    :param batch_size: bytes of a batch past which it takes no more records.
    :param delivery_timeout: seconds that a batch which is to be sent may stay unacknowledged.
    :param linger: seconds that a batch may wait for more records; None: until the next flush.
    :param batch_records: records of a batch at which it takes no more.
    :param tracks_all: records without a delivery callback are tracked, too.
    """

    def __init__(
        self,
        batch_size: int,
        delivery_timeout: float,
        linger: float | None,
        batch_records: int,
        *,
        tracks_all: bool,
    ) -> None:
        self.buffered = 0
        """Bytes of the unacknowledged records."""
        self.records = 0
        """How many records are not acknowledged."""
        self._batch_size = batch_size
        self._batch_records = batch_records
        self._delivery_timeout = delivery_timeout
        self._linger = linger
        self._tracks_all = tracks_all
        self._lanes: dict[tuple[str, int], PartitionQueue] = {}
        self._filling: dict[PartitionQueue, ProducerBatch] = {}
        self._sending: dict[PartitionQueue, None] = {}
        """Lanes that have batches to send."""
        self._unacknowledged: dict[ProducerBatch, None] = {}
        """Unacknowledged batches in the order in which they were closed. The deadline of the first stands for all:
        behind one that was sent early, a batch may get more time, and never less."""

    # --- records in

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition."""
        queue = self._lanes.get((topic, partition))
        if queue is None:
            queue = self._lanes[topic, partition] = PartitionQueue(topic, partition)
        return queue

    def append(
        self, queue: PartitionQueue, record: OutgoingRecord, content_size: int, timestamp_ms: int, now: float
    ) -> bool:
        """Add a record; True if a batch can be sent now because it is full, or has lingered.

        :param content_size: bytes of its key and value.
        :param timestamp_ms: its timestamp if it has none of its own.
        """
        _, value, key, _, timestamp, headers, on_delivery = record
        timestamp_ms = timestamp or timestamp_ms
        size = RECORD_OVERHEAD + content_size + (headers_size(headers) if headers else 0)
        batch, has_closed = self._filling.get(queue), False
        if batch is not None and (batch.builder.count >= self._batch_records or not batch.builder.has_room(size)):
            self._close(queue, batch, now + self._delivery_timeout)
            batch, has_closed = None, True
        if batch is None:
            batch = ProducerBatch(queue, self._batch_size, now)
        builder = batch.builder
        builder.append(key, value, headers, timestamp_ms)  # first: if it raises, nothing has changed
        if builder.count == 1:
            self._filling[queue] = batch
        if on_delivery is not None or self._tracks_all:
            batch.tracked += record, builder.count - 1, timestamp_ms, now
        weight = _RECORD_WEIGHT + content_size
        batch.weight += weight
        self.buffered += weight
        self.records += 1
        return has_closed or (self._linger is not None and now >= batch.since + self._linger)

    def flush(self, now: float) -> None:
        """Make every batch that is being filled due to be sent, as a verb waits for them from now on."""
        self.begin_time(now)
        for queue, batch in list(self._filling.items()):
            self._close(queue, batch, now + self._delivery_timeout)

    def send_early(self) -> None:
        """Make every batch that is being filled due to be sent. No verb waits for them yet: see :meth:`begin_time`."""
        for queue, batch in list(self._filling.items()):
            self._close(queue, batch, NEVER)

    def close_lingering(self, now: float) -> None:
        """Make batches due that have lingered long enough."""
        if self._linger is None:
            return
        for queue, batch in list(self._filling.items()):
            if now >= batch.since + self._linger:
                self._close(queue, batch, now + self._delivery_timeout)

    def _close(self, queue: PartitionQueue, batch: ProducerBatch, deadline: float) -> None:
        batch.deadline = deadline
        self._unacknowledged[batch] = None  # first: after an interrupt, is_empty must still see the batch
        del self._filling[queue]
        batch.number = queue.next_number
        queue.next_number += 1
        queue.waiting.append(batch)
        self._sending[queue] = None

    # --- batches out

    @property
    def is_empty(self) -> bool:
        """True if every record is acknowledged. Looks at the batches, not at :attr:`records`: an interrupt in
        :meth:`append` may leave a record uncounted."""
        return not self._unacknowledged and not self._filling

    def queues_to_send(self) -> list[PartitionQueue]:
        """Lanes with something to send, the one served longest ago first."""
        return list(self._sending)

    def take(
        self, queue: PartitionQueue, to: Any, producer: ProducerIdentity, codec: Codec, level: int | None
    ) -> ProducerBatch:
        """The next batch of ``queue``, numbered, as bytes, and in flight. Ask :meth:`PartitionQueue.may_send` first."""
        batch = queue.waiting.popleft()
        del self._sending[queue]
        if queue.waiting:
            self._sending[queue] = None  # at the end: other queues come first
        if batch.sequence < 0:
            batch.sequence = queue.next_sequence
            queue.next_sequence += batch.count
            batch.data = batch.builder.seal(codec, level, producer, batch.sequence & MAX_SEQUENCE)
        batch.attempts += 1
        queue.in_flight.append(batch)
        queue.sent_to, queue.is_recovering = to, False
        return batch

    # --- answers

    def is_waiting_for(self, batch: ProducerBatch) -> bool:
        """False if ``batch`` was acknowledged, or dropped with its transaction."""
        return batch in self._unacknowledged

    def acknowledge(self, batch: ProducerBatch) -> None:
        """A broker has appended ``batch``."""
        batch.queue.in_flight.remove(batch)
        del self._unacknowledged[batch]
        self.buffered -= batch.weight
        self.records -= batch.count
        if self.is_empty:
            self.buffered = self.records = 0

    def send_again(self, batch: ProducerBatch, at: float, why: str, code: int = 0) -> None:
        """Send ``batch`` again at ``at`` or later, before everything that follows it.

        :param code: the error code of its broker's answer; 0 if there was no answer.
        """
        queue = batch.queue
        queue.in_flight.remove(batch)
        batch.last_code, batch.last_error = code, why
        queue.waiting.insert(bisect(queue.waiting, batch.number, key=lambda other: other.number), batch)
        queue.is_recovering = True
        queue.retry_at = max(queue.retry_at, at)
        self._sending[queue] = None

    def is_out_of_order(self, batch: ProducerBatch, code: int) -> bool:
        """True if ``code`` only says that an earlier batch, which will be sent again, is missing."""
        is_about_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return is_about_order and batch.queue.first_unacknowledged() is not batch

    # --- time

    def begin_time(self, now: float) -> None:
        """Begin the delivery timeout of the batches that were sent early, as a verb waits from now on."""
        for batch in self._unacknowledged:
            if batch.deadline == NEVER:
                batch.deadline = now + self._delivery_timeout

    def overdue(self, now: float) -> ProducerBatch | None:
        """A batch whose deadline has passed, if there is one."""
        batch = next(iter(self._unacknowledged), None)
        return batch if batch is not None and now >= batch.deadline else None

    def wake_at(self, now: float) -> float:
        """When a batch is overdue, has lingered long enough, or can be sent again; infinity if never."""
        oldest = next(iter(self._unacknowledged), None)
        wake_at = NEVER if oldest is None else oldest.deadline
        for queue in self._sending:
            if now < queue.retry_at:
                wake_at = min(wake_at, queue.retry_at)
        if self._linger is not None:
            for batch in self._filling.values():
                wake_at = min(wake_at, batch.since + self._linger)
        return wake_at

    # --- the end

    def drop(self) -> list[ProducerBatch]:
        """Forget every record and sequence number, because the transaction has ended; return the unacknowledged
        batches."""
        dropped = [*self._unacknowledged, *self._filling.values()]
        self._lanes.clear()
        self._filling.clear()
        self._sending.clear()
        self._unacknowledged.clear()
        self.buffered = self.records = 0
        return dropped
