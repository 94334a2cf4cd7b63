"""Sends records to the leaders of their partitions: it carries the accumulator's batches by Metadata and Produce."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dualwrite.client.encoding.batches import Headers, record_size
from dualwrite.client.engine.accumulator import OnDelivery, ProducerBatch, RecordAccumulator
from dualwrite.client.engine.connection_states import ConnectionState, ConnectionStates, InFlight
from dualwrite.client.engine.contract import NEVER, EngineSettings
from dualwrite.client.engine.coordinator_requests import BUSY_PAUSE
from dualwrite.client.engine.delivery_reports import DeliveredRecord
from dualwrite.client.engine.producer_metadata import ProducerMetadata
from dualwrite.client.engine.transaction_state import TransactionManager
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import Cost, cost_of, error_of_record
from dualwrite.client.terms.versions import METADATA_CAP, NoCommonVersionError
from dualwrite.errors import DualWriteError, KafkaRefusedError, PrepareFailedError
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name
from dualwrite.wire.producing import ProduceBatch, TransactionalProduce

PRODUCE_VERSION = 12
"""The version of Produce in TV2 that names topics."""
_OLDEST_METADATA = 4
_NEVER_DROPPED = 1024 * 1024
"""Bytes of a request that every broker accepts (Kafka: message.max.bytes; socket.request.max.bytes is larger)."""
_LOSSES = 5
"""How many connections must be lost in a row over a larger request before it counts as refused."""
Report = tuple[OnDelivery, DualWriteError | None, DeliveredRecord]


class _WaitingRecord(NamedTuple):
    """A record whose partition is unknown until the metadata of its topic is known."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    on_delivery: OnDelivery | None
    since: float


class Sender:
    """The records of the open transaction.

    :param doom: called with the error and the cost when the transaction cannot be committed any more.
    """

    def __init__(
        self,
        settings: EngineSettings,
        machine: TransactionManager,
        peers: ConnectionStates,
        directory: ProducerMetadata,
        doom: Callable[[DualWriteError, Cost], None],
    ) -> None:
        self.reports: list[Report] = []
        self.has_news = False
        """True if the driver has something to send."""
        self._settings = settings
        self._machine = machine
        self._peers = peers
        self._directory = directory
        self._doom = doom
        self._sender = RecordAccumulator(
            settings.batch_size, settings.delivery_timeout, settings.linger, settings.batch_records
        )
        self._waiting: dict[str, list[_WaitingRecord]] = {}
        self._waiting_bytes = 0
        self._topic_errors: dict[str, int] = {}
        self._flushed_at: dict[str, float] = {}
        """By topic that is not known: when a verb began to wait for its records."""
        self._asked_metadata_at: float | None = None
        self._metadata_attempts = 0
        self._metadata_retry_at = 0.0

    # --- records in

    @property
    def is_empty(self) -> bool:
        """True if every record is acknowledged."""
        return self._sender.is_empty and not self._waiting

    @property
    def unacknowledged(self) -> int:
        """How many records are not acknowledged."""
        waiting = sum(map(len, self._waiting.values())) if self._waiting else 0
        return self._sender.records + waiting

    @property
    def _records(self) -> str:
        count = self.unacknowledged
        return "1 record" if count == 1 else f"{count} records"

    @property
    def is_full(self) -> bool:
        """True if there is no room for another record until some are acknowledged."""
        settings, buffered = self._settings, self._sender.buffered + self._waiting_bytes
        return buffered >= settings.buffer_bytes or self.unacknowledged >= settings.buffer_records

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        on_delivery: OnDelivery | None,
        now: float,
    ) -> None:
        """Add a record; ``partition`` -1 lets the partitioner choose."""
        known = self._directory.topics.get(topic)
        if known is None or partition >= len(known.leaders) or topic in self._waiting:
            self._waiting_bytes += record_size(key, value, headers)  # raises now what encoding would raise later
            record = _WaitingRecord(partition, key, value, headers, timestamp_ms, on_delivery, now)
            self._waiting.setdefault(topic, []).append(record)
            self._directory.want(topic)
            self.has_news = True
            return
        known.used_at = now
        if partition < 0:
            partition = known.choose(key, len(known.leaders))
        lane = self._sender.lane(topic, partition)
        if self._sender.append(lane, key, value, headers, timestamp_ms, on_delivery, now):
            known.sticky.renew()
            self.has_news = True

    def flush(self, now: float) -> None:
        """Make every record due to be sent."""
        self._sender.flush(now)
        for topic in self._waiting:
            self._flushed_at.setdefault(topic, now)

    def drop(self, error: DualWriteError | None) -> None:
        """Forget the records, because the transaction has ended. Reports unacknowledged ones with ``error``."""
        for batch in self._sender.drop():
            self._report(batch, -1, error)
        for topic, records in self._waiting.items():
            for each in records:
                if each.on_delivery is not None:
                    place, content = (topic, each.partition, -1), (each.key, each.value, each.headers)
                    self.reports.append(
                        (each.on_delivery, error, DeliveredRecord(place, content, each.timestamp_ms, error))
                    )
        self._waiting.clear()
        self._waiting_bytes = 0
        self._topic_errors.clear()
        self._flushed_at.clear()
        self._directory.forget_unused()

    # --- time

    def step(self, now: float, is_flushing: bool) -> None:
        """Send the batches that can be sent now."""
        self.has_news = False
        if self.is_empty and not self._directory.is_stale:
            return
        self._sender.close_lingering(now)
        if is_flushing:
            self._sender.flush(now)
        self._give_up_overdue(now)
        if not self._sender.is_empty:
            self._send(now)
        if self._directory.is_stale or self._is_aged(now):
            self._ask_metadata(now)

    def wake_at(self, now: float) -> float:
        """When :meth:`step` can do something that it cannot do now."""
        wake_at = NEVER if self._sender.is_empty else self._sender.wake_at(now)
        if self._directory.is_stale and self._metadata_retry_at > now:
            wake_at = min(wake_at, self._metadata_retry_at)
        for topic, records in self._waiting.items():
            wake_at = min(wake_at, *self._patience(topic, records[0].since))
        return wake_at

    def _patience(self, topic: str, since: float) -> tuple[float, float]:
        """When to give up records for an unknown topic: the metadata propagation deadline, and the delivery deadline,
        which starts when a verb waits for the records."""
        flushed_at = self._flushed_at.get(topic, NEVER)
        return since + self._settings.topic_propagation, flushed_at + self._settings.delivery_timeout

    def _give_up_overdue(self, now: float) -> None:
        batch = self._sender.overdue(now)
        if batch is not None:
            seconds = self._settings.delivery_timeout
            self._give_up(f"{batch.lane.topic}-{batch.lane.partition}", batch.last_code, batch.last_error, seconds)
        for topic, records in self._waiting.items():
            unknown_too_long, taken_too_long = self._patience(topic, records[0].since)
            if now >= min(unknown_too_long, taken_too_long):
                settings, code = self._settings, self._topic_errors.get(topic, 0)
                is_first = unknown_too_long <= taken_too_long
                seconds = settings.topic_propagation if is_first else settings.delivery_timeout
                self._give_up(topic, code, "the topic is not known", seconds)
                break

    def _give_up(self, where: str, code: int, why: str, seconds: float) -> None:
        what = f"{self._records} not acknowledged in {seconds:g} s: {where}"
        reasons = ": ".join(reason for reason in (why, self._peers.why_not()) if reason)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._doom(KafkaRefusedError(what, code, error_name(code)), Cost.TRANSACTION)
        else:
            self._doom(PrepareFailedError(f"{what}: {reasons or 'no answer'}"), Cost.TRANSACTION)

    # --- metadata

    def _is_aged(self, now: float) -> bool:
        max_age = self._settings.metadata_max_age
        return max_age is not None and not self.is_empty and now >= self._directory.fetched_at + max_age

    def _ask_metadata(self, now: float) -> None:
        if self._asked_metadata_at is not None or now < self._metadata_retry_at or not self._directory.wanted:
            return
        peer = self._peers.any_open_peer(self._directory.candidates(), now)
        if peer is None:
            return
        try:
            version = peer.version(ApiKey.METADATA, _OLDEST_METADATA, METADATA_CAP)
        except NoCommonVersionError as error:
            self._doom(PrepareFailedError(f"broker {peer.endpoint}: {error}"), Cost.TRANSACTION)
            return
        self._peers.send(peer, ApiKey.METADATA, version, self._directory.metadata_request(), None, now)
        self._asked_metadata_at = now

    def told_metadata(self, answer: Message, now: float) -> None:
        """Take an answer to Metadata."""
        asked_at, self._asked_metadata_at = self._asked_metadata_at, None
        refused = self._directory.learn(answer, now)
        self._peers.forget_troubles(self._directory.endpoints())
        self._topic_errors = {entry.name: entry.error_code for entry in answer.topics if entry.error_code}
        for topic in [topic for topic in self._waiting if topic in refused]:
            what = f"{self._records} not acknowledged: topic {topic!r}"
            self._doom(error_of_record(what, refused[topic]), Cost.TRANSACTION)
            return
        for topic in [topic for topic in self._waiting if topic in self._directory.topics]:
            self._assign(topic, asked_at or now)
        waiting = (each for records in self._waiting.values() for each in records)
        self._waiting_bytes = sum(record_size(each.key, each.value, each.headers) for each in waiting)
        if any(self._directory.leader(lane.topic, lane.partition) is None for lane in self._sender.lanes_to_send()):
            self._directory.is_stale = True  # a partition has no leader now
        if self._directory.is_stale:
            self._pause_metadata(now)
        else:
            self._metadata_attempts = 0
            self._metadata_retry_at = 0.0
        if self._waiting.keys() - {entry.name for entry in answer.topics}:
            self._directory.is_stale = True  # a topic is wanted that the request did not contain

    def _assign(self, topic: str, asked_at: float) -> None:
        """Assign the records for ``topic`` to their partitions, now that it is known."""
        records = self._waiting.get(topic, [])  # none are left once the transaction is doomed
        place = 0
        try:
            self._waiting.pop(topic, None)
            self._flushed_at.pop(topic, None)
            for place, each in enumerate(records):
                if each.partition >= len(self._directory.topics[topic].leaders):
                    self._waiting[topic] = records[place:]
                    self._lacks_partition(topic, each, asked_at)
                    return
                self.append(
                    topic,
                    each.partition,
                    each.key,
                    each.value,
                    each.headers,
                    each.timestamp_ms,
                    each.on_delivery,
                    each.since,
                )
        except BaseException as error:  # after an interrupt, one of them may be in no batch and would be lost
            self._waiting[topic] = records[place:]
            what = f"{self._records} not acknowledged: {topic}: {type(error).__name__}"
            self._doom(PrepareFailedError(what), Cost.TRANSACTION)
            raise

    def _lacks_partition(self, topic: str, record: _WaitingRecord, asked_at: float) -> None:
        if record.since > asked_at:
            self._directory.is_stale = True  # the answer may be older than the partition
        else:
            what = f"{self._records} not acknowledged: {topic}-{record.partition}"
            self._doom(error_of_record(what, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), Cost.TRANSACTION)

    def _pause_metadata(self, now: float) -> None:
        self._metadata_attempts += 1
        self._metadata_retry_at = now + self._settings.pause_after(self._metadata_attempts)

    # --- Produce

    def _send(self, now: float) -> None:
        while carried := self._fill_requests(now):
            for peer, batches in carried.values():
                self._ask_produce(peer, batches, now)

    def _fill_requests(self, now: float) -> dict[Endpoint, tuple[ConnectionState, list[ProducerBatch]]]:
        """One request to each leader that can take one, with one batch of each partition, up to the size limit of a
        request."""
        carried: dict[Endpoint, tuple[ConnectionState, list[ProducerBatch]]] = {}
        room: dict[Endpoint, int] = {}
        settings, producer = self._settings, self._machine.identity
        for lane in self._sender.lanes_to_send():
            leader = self._directory.leader(lane.topic, lane.partition)
            if leader is None:
                self._directory.want(lane.topic)
                continue
            if not lane.may_send(leader, now, settings.max_in_flight):
                continue
            peer = self._peers.open_peer(leader, now)
            if peer is None or peer.producing >= settings.max_in_flight:
                continue
            left = room.get(leader, settings.max_message_bytes)
            if leader in carried and lane.queue[0].builder.size > left:
                continue
            batch = self._sender.take(lane, leader, producer, settings.codec, settings.compression_level)
            room[leader] = left - len(batch.data)
            if leader in carried:
                carried[leader][1].append(batch)
            else:
                carried[leader] = peer, [batch]
        return carried

    def _ask_produce(self, peer: ConnectionState, batches: list[ProducerBatch], now: float) -> None:
        try:
            peer.version(ApiKey.PRODUCE, PRODUCE_VERSION, PRODUCE_VERSION)
        except NoCommonVersionError as error:
            self._doom(PrepareFailedError(f"broker {peer.endpoint}: {error}"), Cost.TRANSACTION)
            return
        message = TransactionalProduce(
            self._settings.transactional_id,
            self._settings.ack_timeout_ms,
            [ProduceBatch(batch.lane.topic, batch.lane.partition, batch.data) for batch in batches],
        )
        self._machine.may_be_open = True
        self._peers.send(peer, ApiKey.PRODUCE, PRODUCE_VERSION, message, batches, now)

    def told_produced(self, batches: list[ProducerBatch], answer: Message, now: float) -> None:
        """Take an answer to Produce."""
        missing = {(batch.lane.topic, batch.lane.partition): batch for batch in batches}
        for topic in answer.responses:
            for entry in topic.partition_responses:
                batch = missing.pop((topic.name, entry.index), None)
                if batch is not None and self._sender.is_waiting_for(batch):
                    self._told_batch(batch, entry, answer.node_endpoints, now)
        for batch in missing.values():
            if self._sender.is_waiting_for(batch):
                self._again(batch, now, "the broker's answer leaves it out")

    def _told_batch(self, batch: ProducerBatch, entry: Message, nodes: Sequence[Message], now: float) -> None:
        code = entry.error_code
        cost = cost_of(ApiKey.PRODUCE, code)
        batch.losses = 0
        if cost is Cost.NOTHING:
            self._sender.acknowledge(batch)
            self._machine.acknowledged(batch.lane.topic, batch.lane.partition, entry.base_offset)
            self._report(batch, entry.base_offset, None, now)
        elif self._sender.is_out_of_order(batch, code):
            self._sender.send_again(batch, now, "an earlier batch is missing")
        elif cost in (Cost.RETRY, Cost.MOVE):
            pause = BUSY_PAUSE if code == ErrorCode.CONCURRENT_TRANSACTIONS else None
            if cost is Cost.MOVE:
                lane = batch.lane
                self._directory.want(lane.topic)
                leader = self._directory.hear(lane.topic, lane.partition, entry.current_leader, nodes)
                pause = None if leader in (None, lane.sent_to) else 0.0
            self._again(batch, now, error_name(code), pause, code)
        else:
            where = f"{batch.lane.topic}-{batch.lane.partition}"
            reason = f": {entry.error_message}" if entry.error_message else ""
            what = f"{self._records} not acknowledged: {where}{reason}"
            self._doom(error_of_record(what, code), cost)

    def lost(self, asked: list[InFlight], why: str, now: float, is_broken: bool = True) -> None:
        """A connection is lost, and with it the answers to ``asked``.

        :param is_broken: False if this client closed it.
        """
        for each in asked:
            if each.api_key is ApiKey.METADATA:
                self._asked_metadata_at = None
                self._directory.is_stale = True
                self._pause_metadata(now)
            elif each.api_key is ApiKey.PRODUCE and not (is_broken and self._is_dropped_for_size(each.about)):
                for batch in each.about:
                    if self._sender.is_waiting_for(batch):
                        self._again(batch, now, why)

    def _is_dropped_for_size(self, batches: list[ProducerBatch]) -> bool:
        """True if a broker has dropped the connection over ``batches`` so often, and they are so large, that they must
        exceed its socket.request.max.bytes: a broker refuses such a request by closing the connection, without an
        answer. Then the transaction is lost."""
        waiting = [batch for batch in batches if self._sender.is_waiting_for(batch)]
        for batch in waiting:
            batch.losses += 1
        size = sum(len(batch.data) for batch in batches)
        if not waiting or size < _NEVER_DROPPED or min(batch.losses for batch in waiting) < _LOSSES:
            return False
        where = f"{waiting[0].lane.topic}-{waiting[0].lane.partition}"
        what = (
            f"{self._records} not acknowledged: {where}: the broker has closed the connection {waiting[0].losses} times"
            f" over {size} bytes of records; its socket.request.max.bytes may be less"
        )
        self._doom(error_of_record(what, ErrorCode.MESSAGE_TOO_LARGE), Cost.TRANSACTION)
        return True

    def _again(self, batch: ProducerBatch, now: float, why: str, pause: float | None = None, code: int = 0) -> None:
        if batch.attempts > self._settings.retries:
            where = f"{batch.lane.topic}-{batch.lane.partition}"
            what = f"{self._records} not acknowledged after {batch.attempts} attempts: {where}"
            self._doom(PrepareFailedError(f"{what}: {why}"), Cost.TRANSACTION)
            return
        if pause is None:
            pause = self._settings.pause_after(batch.attempts)
        self._sender.send_again(batch, now + pause, why, code)

    def _report(
        self, batch: ProducerBatch, base_offset: int, error: DualWriteError | None, acknowledged_at: float | None = None
    ) -> None:
        for each in batch.tracked:
            offset = base_offset + each.place if base_offset >= 0 else -1
            place = batch.lane.topic, batch.lane.partition, offset
            content = each.key, each.value, each.headers
            latency = None if acknowledged_at is None else acknowledged_at - each.since
            record = DeliveredRecord(place, content, each.timestamp_ms, error, latency)
            self.reports.append((each.on_delivery, error, record))
