"""The records of one transaction, per partition: gathered in batches, numbered, in flight, acknowledged or sent again.

The order that a broker holds a producer to is that of its sequence numbers (KIP-98). A batch gets its number, and its
bytes, when it is first sent, and keeps both. What has to be sent again waits until everything else that its partition
has in flight is answered, and then goes first: so batches of one partition never overtake each other, not even when the
leader moves. The numbers begin at 0 with each transaction, because each has an epoch of its own (KIP-890 part 2).
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
"""Bytes that a buffered record is taken to cost beside its key and value."""


class TrackedRecord(NamedTuple):
    """A record whose producer wants to hear what becomes of it. ``place`` is its number in its batch."""

    on_delivery: OnDelivery
    place: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    since: float


class ProducerBatch:
    """Records of one partition that travel together."""

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
        """When it is given up; set when it is to be sent."""
        self.sequence = -1
        """That of its first record, before it is wrapped for the wire; -1 until it is sent."""
        self.data = b""
        self.attempts = 0
        self.number = -1
        """Which batch of its lane it is; -1 until it is sent."""
        self.last_code = 0
        self.last_error = ""
        self.losses = 0
        """Connections that were lost with it since a broker answered."""
        self.weight = 0
        self.tracked: list[TrackedRecord] = []

    @property
    def count(self) -> int:
        """Its records."""
        return self.builder.count


class PartitionQueue:
    """What one partition has to send, in order."""

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
        """True from a failure until what failed is sent again."""
        self.sent_to: Any = None
        """Where ``in_flight`` was sent."""

    def may_send(self, to: Any, now: float, max_in_flight: int) -> bool:
        """True if its next batch may go ``to`` that broker now.

        A broker tells a duplicate only of a producer's last batches. So no batch may be so many ahead of the first that
        is not acknowledged, however few are in flight: that one may have been appended, and have to be sent again.
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
    :param linger: seconds that a batch may wait for more records; None: as long as nobody flushes.
    """

    def __init__(
        self, batch_size: int, delivery_timeout: float, linger: float | None = None, batch_records: int = 10_000
    ) -> None:
        self.buffered = 0
        """Bytes of the records that are not acknowledged."""
        self.records = 0
        """Records that are not acknowledged."""
        self._batch_size = batch_size
        self._batch_records = batch_records
        self._delivery_timeout = delivery_timeout
        self._linger = linger
        self._lanes: dict[tuple[str, int], PartitionQueue] = {}
        self._filling: dict[PartitionQueue, ProducerBatch] = {}
        self._sending: dict[PartitionQueue, None] = {}
        """Lanes with a queue."""
        self._unacknowledged: dict[ProducerBatch, None] = {}
        """In the order in which they were closed, so that the first has the nearest deadline."""

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
        """Take a record; True if that makes something that can be sent: a batch that is full, or has lingered."""
        batch, has_closed = self._filling.get(lane), False
        if batch is not None and (
            batch.count >= self._batch_records or not batch.builder.has_room(key, value, headers)
        ):
            self._close(lane, batch, now)
            batch, has_closed = None, True
        if batch is None:
            batch = ProducerBatch(lane, self._batch_size, now)
        builder = batch.builder
        builder.append(key, value, headers, timestamp_ms)  # first: what it raises leaves nothing
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
        """Whatever is being gathered is to be sent."""
        for lane, batch in list(self._filling.items()):
            self._close(lane, batch, now)

    def close_lingering(self, now: float) -> None:
        """Batches that have waited long enough for more records are to be sent."""
        if self._linger is None:
            return
        for lane, batch in list(self._filling.items()):
            if now >= batch.since + self._linger:
                self._close(lane, batch, now)

    def _close(self, lane: PartitionQueue, batch: ProducerBatch, now: float) -> None:
        batch.deadline = now + self._delivery_timeout
        self._unacknowledged[batch] = None  # first: an interrupt must not leave it where is_empty does not look
        del self._filling[lane]
        lane.queue.append(batch)
        self._sending[lane] = None

    # --- batches out

    @property
    def is_empty(self) -> bool:
        """True if every record was acknowledged. The batches tell, not :attr:`records`: an interrupt in
        :meth:`append` may have left a record that is not counted."""
        return not self._unacknowledged and not self._filling

    def lanes_to_send(self) -> list[PartitionQueue]:
        """Those with something to send, whoever was served longest ago first."""
        return list(self._sending)

    def take(
        self, lane: PartitionQueue, to: Any, producer: ProducerIdentity, codec: Codec, level: int | None
    ) -> ProducerBatch:
        """The next batch of ``lane``, numbered, as bytes, and in flight. Ask :meth:`PartitionQueue.may_send` first."""
        batch = lane.queue.popleft()
        del self._sending[lane]
        if lane.queue:
            self._sending[lane] = None  # at the end: the others first
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
        """A broker has ``batch``."""
        batch.lane.in_flight.remove(batch)
        del self._unacknowledged[batch]
        self.buffered -= batch.weight
        self.records -= batch.count
        if self.is_empty:
            self.buffered = self.records = 0

    def send_again(self, batch: ProducerBatch, at: float, why: str, code: int = 0) -> None:
        """``batch`` is to be sent again at ``at`` or later, before everything that follows it.

        :param code: what its broker has answered; 0 if nobody has.
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
        """True if ``code`` only says that an earlier batch, which is to be sent again, is missing."""
        is_about_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return is_about_order and batch.lane.first_unacknowledged() is not batch

    # --- time

    def overdue(self, now: float) -> ProducerBatch | None:
        """A batch whose time is up, if there is one."""
        batch = next(iter(self._unacknowledged), None)
        return batch if batch is not None and now >= batch.deadline else None

    def wake_at(self, now: float) -> float:
        """When something is overdue, or has lingered long enough, or can be sent again; infinity if that is never."""
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
        """Forget every record, and every number: the transaction has ended. What was not acknowledged."""
        dropped = [*self._unacknowledged, *self._filling.values()]
        self._lanes.clear()
        self._filling.clear()
        self._sending.clear()
        self._unacknowledged.clear()
        self.buffered = self.records = 0
        return dropped
