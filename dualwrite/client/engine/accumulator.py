"""The records of one transaction, per partition: gathered in batches, numbered, in flight, acknowledged or sent again.

A broker checks the order of a producer's batches by their sequence numbers (KIP-98). A batch gets its number, and is
encoded, when it is first sent, and keeps both. A batch that must be sent again waits until its partition has no other
unanswered batch, and then goes first. So batches of one partition never overtake each other, not even when the leader
moves. The numbers begin at 0 with each transaction, because each has an epoch of its own (KIP-890 part 2).
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dualwrite.client.encoding.batches import BatchBuilder, Headers
from dualwrite.client.engine.contract import NEVER
from dualwrite.ids import ProducerIdentity
from dualwrite.records.compression import Codec
from dualwrite.records.header import MAX_SEQUENCE
from dualwrite.wire.error_codes import ErrorCode

OnDelivery = Callable[[Any, Any], None]

_RECORD_WEIGHT = 40
"""Bytes of memory that a buffered record is assumed to take beside its key and value."""


class TrackedRecord(NamedTuple):
    """A record with a delivery callback. ``place`` is its number in its batch."""

    on_delivery: OnDelivery
    place: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    since: float


class ProducerBatch:
    """Records of one partition that are sent together."""

    __slots__ = (
        "attempts",
        "builder",
        "data",
        "deadline",
        "lane",
        "last_code",
        "last_error",
        "losses",
        "number",
        "sequence",
        "since",
        "tracked",
        "weight",
    )

    def __init__(self, lane: "PartitionQueue", limit: int, now: float) -> None:
        self.lane = lane
        self.builder = BatchBuilder(limit)
        self.since = now
        self.deadline = 0.0
        """When the batch is given up; set when it becomes due to be sent."""
        self.sequence = -1
        """The sequence number of its first record, before it wraps for the wire format; -1 until it is sent."""
        self.data = b""
        self.attempts = 0
        self.number = -1
        """The batch's number in its lane; -1 until it is sent."""
        self.last_code = 0
        self.last_error = ""
        self.losses = 0
        """How many connections were lost with this batch since a broker last answered."""
        self.weight = 0
        self.tracked: list[TrackedRecord] = []

    @property
    def count(self) -> int:
        """How many records it has."""
        return self.builder.count


class PartitionQueue:
    """The batches that one partition has to send, in order."""

    __slots__ = (
        "in_flight",
        "is_recovering",
        "next_number",
        "next_sequence",
        "partition",
        "queue",
        "retry_at",
        "sent_to",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.queue: deque[ProducerBatch] = deque()
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
        if not self.queue or now < self.retry_at:
            return False
        if not self.in_flight:
            return True
        if self.is_recovering or self.sent_to != to:
            return False
        following = self.queue[0].number
        return (following if following >= 0 else self.next_number) - self.in_flight[0].number < max_in_flight

    def first_unacknowledged(self) -> ProducerBatch:
        """The batch with the lowest number that was sent and is not acknowledged."""
        sent_before = [batch for batch in self.queue if batch.sequence >= 0]
        return min([*sent_before, *self.in_flight], key=lambda batch: batch.sequence)


class RecordAccumulator:
    """The batches of one transaction.

    :param batch_size: bytes of a batch past which it takes no more records.
    :param batch_records: records at which it takes no more.
    :param delivery_timeout: seconds that a batch which is to be sent may stay unacknowledged.
    :param linger: seconds that a batch may wait for more records; None: until the next flush.
    """

    def __init__(
        self, batch_size: int, delivery_timeout: float, linger: float | None = None, batch_records: int = 10_000
    ) -> None:
        self.buffered = 0
        """Bytes of the unacknowledged records."""
        self.records = 0
        """How many records are not acknowledged."""
        self._batch_size = batch_size
        self._batch_records = batch_records
        self._delivery_timeout = delivery_timeout
        self._linger = linger
        self._lanes: dict[tuple[str, int], PartitionQueue] = {}
        self._filling: dict[PartitionQueue, ProducerBatch] = {}
        self._sending: dict[PartitionQueue, None] = {}
        """Lanes that have batches to send."""
        self._unacknowledged: dict[ProducerBatch, None] = {}
        """Unacknowledged batches in the order in which they were closed, so that the first has the nearest deadline."""

    # --- records in

    def lane(self, topic: str, partition: int) -> PartitionQueue:
        """The lane of a partition."""
        found = self._lanes.get((topic, partition))
        if found is None:
            found = self._lanes[topic, partition] = PartitionQueue(topic, partition)
        return found

    def append(
        self,
        lane: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        on_delivery: OnDelivery | None,
        now: float,
    ) -> bool:
        """Add a record; True if a batch can be sent now because it is full, or has lingered."""
        batch, has_closed = self._filling.get(lane), False
        if batch is not None and (
            batch.count >= self._batch_records or not batch.builder.has_room(key, value, headers)
        ):
            self._close(lane, batch, now)
            batch, has_closed = None, True
        if batch is None:
            batch = ProducerBatch(lane, self._batch_size, now)
        builder = batch.builder
        builder.append(key, value, headers, timestamp_ms)  # first: if it raises, nothing has changed
        if builder.count == 1:
            self._filling[lane] = batch
        if on_delivery is not None:
            batch.tracked.append(TrackedRecord(on_delivery, builder.count - 1, key, value, headers, timestamp_ms, now))
        weight = _RECORD_WEIGHT + (len(value) if value else 0) + (len(key) if key else 0)
        batch.weight += weight
        self.buffered += weight
        self.records += 1
        return has_closed or (self._linger is not None and now >= batch.since + self._linger)

    def flush(self, now: float) -> None:
        """Make every batch that is being filled due to be sent."""
        for lane, batch in list(self._filling.items()):
            self._close(lane, batch, now)

    def close_lingering(self, now: float) -> None:
        """Make batches due that have lingered long enough."""
        if self._linger is None:
            return
        for lane, batch in list(self._filling.items()):
            if now >= batch.since + self._linger:
                self._close(lane, batch, now)

    def _close(self, lane: PartitionQueue, batch: ProducerBatch, now: float) -> None:
        batch.deadline = now + self._delivery_timeout
        self._unacknowledged[batch] = None  # first: after an interrupt, is_empty must still see the batch
        del self._filling[lane]
        lane.queue.append(batch)
        self._sending[lane] = None

    # --- batches out

    @property
    def is_empty(self) -> bool:
        """True if every record is acknowledged. Looks at the batches, not at :attr:`records`: an interrupt in
        :meth:`append` may leave a record uncounted."""
        return not self._unacknowledged and not self._filling

    def lanes_to_send(self) -> list[PartitionQueue]:
        """Lanes with something to send, the one served longest ago first."""
        return list(self._sending)

    def take(
        self, lane: PartitionQueue, to: Any, producer: ProducerIdentity, codec: Codec, level: int | None
    ) -> ProducerBatch:
        """The next batch of ``lane``, numbered, as bytes, and in flight. Ask :meth:`PartitionQueue.may_send` first."""
        batch = lane.queue.popleft()
        del self._sending[lane]
        if lane.queue:
            self._sending[lane] = None  # at the end: other lanes come first
        if batch.sequence < 0:
            batch.sequence = lane.next_sequence
            batch.number = lane.next_number
            lane.next_number += 1
            lane.next_sequence += batch.count
            batch.data = batch.builder.seal(codec, level, producer, batch.sequence & MAX_SEQUENCE)
        batch.attempts += 1
        lane.in_flight.append(batch)
        lane.sent_to, lane.is_recovering = to, False
        return batch

    # --- answers

    def is_waiting_for(self, batch: ProducerBatch) -> bool:
        """False if ``batch`` was acknowledged, or dropped with its transaction."""
        return batch in self._unacknowledged

    def acknowledge(self, batch: ProducerBatch) -> None:
        """A broker has appended ``batch``."""
        batch.lane.in_flight.remove(batch)
        del self._unacknowledged[batch]
        self.buffered -= batch.weight
        self.records -= batch.count
        if self.is_empty:
            self.buffered = self.records = 0

    def send_again(self, batch: ProducerBatch, at: float, why: str, code: int = 0) -> None:
        """Send ``batch`` again at ``at`` or later, before everything that follows it.

        :param code: the error code of its broker's answer; 0 if there was no answer.
        """
        lane = batch.lane
        lane.in_flight.remove(batch)
        batch.last_code, batch.last_error = code, why
        place = 0
        for other in lane.queue:
            if other.sequence < 0 or other.sequence > batch.sequence:
                break
            place += 1
        lane.queue.insert(place, batch)
        lane.is_recovering = True
        lane.retry_at = max(lane.retry_at, at)
        self._sending[lane] = None

    def is_out_of_order(self, batch: ProducerBatch, code: int) -> bool:
        """True if ``code`` only says that an earlier batch, which will be sent again, is missing."""
        is_about_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return is_about_order and batch.lane.first_unacknowledged() is not batch

    # --- time

    def overdue(self, now: float) -> ProducerBatch | None:
        """A batch whose deadline has passed, if there is one."""
        batch = next(iter(self._unacknowledged), None)
        return batch if batch is not None and now >= batch.deadline else None

    def wake_at(self, now: float) -> float:
        """When a batch is overdue, has lingered long enough, or can be sent again; infinity if never."""
        oldest = next(iter(self._unacknowledged), None)
        wake_at = NEVER if oldest is None else oldest.deadline
        for lane in self._sending:
            if now < lane.retry_at < wake_at:
                wake_at = lane.retry_at
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
