"""Sends records to the leaders of their partitions: it carries the accumulator's batches by Metadata and Produce."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.encoding.batches import record_size
from dualwrite.client.engine.accumulator import ProducerBatch, RecordAccumulator
from dualwrite.client.engine.connection_states import ConnectionState, ConnectionStates, InFlight
from dualwrite.client.engine.contract import NEVER
from dualwrite.client.engine.coordinator_sender import BUSY_PAUSE
from dualwrite.client.engine.delivery_reports import DeliveredRecord
from dualwrite.client.engine.producer_metadata import ProducerMetadata
from dualwrite.client.engine.transaction_state import TransactionManager
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import ErrorClass, class_of, error_for
from dualwrite.client.terms.versions import NoCommonVersionError
from dualwrite.errors import DualWriteError, KafkaRefusedError, PrepareFailedError
from dualwrite.ids import is_legal_topic
from dualwrite.records.outgoing import OnDelivery, OutgoingRecord
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name
from dualwrite.wire.producing import ProduceBatch, TransactionalProduce

PRODUCE_VERSION = 12
"""The version of Produce in TV2 that names topics."""
_NEVER_DROPPED = 1024 * 1024
"""Bytes of a request that every broker accepts (Kafka: message.max.bytes; socket.request.max.bytes is larger)."""
_MOST_DROPS = 5
"""How many connections must be lost in a row over a larger request before it counts as refused."""
_RECORD_OVERHEAD = 70
"""The least number of bytes of a batch of one record, beside the record's key, value and headers."""
Report = tuple[OnDelivery, DualWriteError | None, DeliveredRecord]


class _WaitingRecord(NamedTuple):
    """A record whose partition is unknown until the metadata of its topic is known."""

    record: OutgoingRecord
    timestamp_ms: int
    since: float


class Sender:
    """The records of the open transaction.

    :param fail_transaction: called with the error and its class when the transaction cannot be committed any more.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        machine: TransactionManager,
        connections: ConnectionStates,
        metadata: ProducerMetadata,
        fail_transaction: Callable[[DualWriteError, ErrorClass], None],
    ) -> None:
        self.reports: list[Report] = []
        self.has_news = False
        """True if the driver has something to send."""
        self.has_callbacks = False
        """True if a record of this transaction has a delivery callback of its own."""
        self._settings = settings
        self._largest = settings.max_message_bytes - _RECORD_OVERHEAD
        self._machine = machine
        self._connections = connections
        self._metadata = metadata
        self._fail_transaction = fail_transaction
        self._accumulator = RecordAccumulator(
            settings.batch_size,
            settings.delivery_timeout,
            settings.linger,
            settings.batch_records,
            tracks_all=settings.on_delivery is not None,
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
        return self._accumulator.is_empty and not self._waiting

    @property
    def unacknowledged(self) -> int:
        """How many records are not acknowledged."""
        waiting = sum(map(len, self._waiting.values())) if self._waiting else 0
        return self._accumulator.records + waiting

    @property
    def _records(self) -> str:
        count = self.unacknowledged
        return "1 record" if count == 1 else f"{count} records"

    @property
    def is_full(self) -> bool:
        """True if there is no room for another record until some are acknowledged."""
        settings, sender = self._settings, self._accumulator
        if sender.buffered + self._waiting_bytes >= settings.buffer_bytes:
            return True
        return (self.unacknowledged if self._waiting else sender.records) >= settings.buffer_records

    def append(self, record: OutgoingRecord, timestamp_ms: int, now: float) -> None:
        """Add a record.

        :param timestamp_ms: its timestamp if it has none of its own.
        :raises KafkaRefusedError: if every broker would refuse it. The transaction can only be aborted.
        """
        topic, value, key, partition, _, headers, on_delivery = record
        known = self._metadata.topics.get(topic)
        if known is None and not is_legal_topic(topic):
            rule = "a name has 1 to 249 letters, digits, dots, underscores and hyphens"
            raise self._unfit(f"record for topic {topic!r}: {rule}", ErrorCode.INVALID_TOPIC_EXCEPTION)
        content_size = (len(value) if value else 0) + (len(key) if key else 0)
        if content_size > self._largest:
            raise self._unfit(f"record for {topic}: over message.max.bytes", ErrorCode.MESSAGE_TOO_LARGE)
        self._machine.has_content = True
        if on_delivery is not None:
            self.has_callbacks = True
        if known is None or partition >= len(known.leaders) or topic in self._waiting:
            self._waiting_bytes += record_size(key, value, headers)  # raises now what encoding would raise later
            self._waiting.setdefault(topic, []).append(_WaitingRecord(record, timestamp_ms, now))
            self._metadata.want(topic)
            self.has_news = True
            return
        known.used_at = now
        if partition < 0:
            partition = known.choose(key, len(known.leaders))
        queue = self._accumulator.queue(topic, partition)
        if self._accumulator.append(queue, record, content_size, timestamp_ms, now):
            known.sticky.renew()
            self.has_news = True

    def _unfit(self, operation: str, code: int) -> DualWriteError:
        error = error_for(ApiKey.PRODUCE, operation, code)
        self._fail_transaction(error, ErrorClass.ABORTABLE)
        return error

    def send_early(self) -> None:
        """Make every record of a known topic due to be sent, though no verb waits for it yet."""
        self._accumulator.send_early()

    def begin_time(self, now: float) -> None:
        """Begin the delivery timeout of the records that were sent early."""
        self._accumulator.begin_time(now)

    def flush(self, now: float) -> None:
        """Make every record due to be sent, as a verb waits for them from now on."""
        self._accumulator.flush(now)
        for topic in self._waiting:
            self._flushed_at.setdefault(topic, now)

    def drop(self, error: DualWriteError | None) -> None:
        """Forget the records, because the transaction has ended. Reports unacknowledged ones with ``error``."""
        for batch in self._accumulator.drop():
            self._report(batch, -1, error)
        for records in self._waiting.values():
            for record, timestamp_ms, _ in records:
                timestamp = record.timestamp or timestamp_ms
                self._report_record(record, error, DeliveredRecord(record, record.partition, -1, timestamp, error))
        self._waiting.clear()
        self._waiting_bytes = 0
        self._topic_errors.clear()
        self._flushed_at.clear()
        self._metadata.forget_unused()

    # --- time

    def step(self, now: float, is_flushing: bool) -> None:
        """Send the batches that can be sent now."""
        self.has_news = False
        if self.is_empty and not self._metadata.is_stale:
            return
        self._accumulator.close_lingering(now)
        if is_flushing:
            self._accumulator.flush(now)
        self._give_up_overdue(now)
        if not self._accumulator.is_empty:
            self._send(now)
        if self._metadata.is_stale or self._is_aged(now):
            self._ask_metadata(now)

    def wake_at(self, now: float) -> float:
        """When :meth:`step` can do something that it cannot do now."""
        wake_at = NEVER if self._accumulator.is_empty else self._accumulator.wake_at(now)
        if self._metadata.is_stale and self._metadata_retry_at > now:
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
        batch = self._accumulator.overdue(now)
        if batch is not None:
            seconds = self._settings.delivery_timeout
            self._give_up(f"{batch.queue.topic}-{batch.queue.partition}", batch.last_code, batch.last_error, seconds)
        for topic, records in self._waiting.items():
            unknown_too_long, taken_too_long = self._patience(topic, records[0].since)
            if now >= min(unknown_too_long, taken_too_long):
                settings, code = self._settings, self._topic_errors.get(topic, 0)
                is_first = unknown_too_long <= taken_too_long
                seconds = settings.topic_propagation if is_first else settings.delivery_timeout
                self._give_up(topic, code, "the topic is not known", seconds)
                break

    def _give_up(self, where: str, code: int, why: str, seconds: float) -> None:
        operation = f"{self._records} not acknowledged in {seconds:g} s: {where}"
        reasons = ": ".join(reason for reason in (why, "; ".join(self._connections.why_not())) if reason)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._fail_transaction(KafkaRefusedError(operation, code, error_name(code)), ErrorClass.ABORTABLE)
        else:
            self._fail_transaction(PrepareFailedError(f"{operation}: {reasons or 'no answer'}"), ErrorClass.ABORTABLE)

    # --- metadata

    def _is_aged(self, now: float) -> bool:
        max_age = self._settings.metadata_max_age
        return max_age is not None and not self.is_empty and now >= self._metadata.fetched_at + max_age

    def _ask_metadata(self, now: float) -> None:
        if self._asked_metadata_at is not None or now < self._metadata_retry_at or not self._metadata.wanted:
            return
        connection = self._connections.any_open_connection(self._metadata.candidates(), now)
        if connection is None:
            return
        request = self._metadata.metadata_request()
        try:
            version = connection.version(request.api_key, request.floor, request.cap)
        except NoCommonVersionError as error:
            self._fail_transaction(PrepareFailedError(f"broker {connection.endpoint}: {error}"), ErrorClass.ABORTABLE)
            return
        self._connections.send(connection, request.api_key, version, request.message, None, now)
        self._asked_metadata_at = now

    def metadata_answered(self, answer: Message, now: float) -> None:
        """Take an answer to Metadata."""
        asked_at, self._asked_metadata_at = self._asked_metadata_at, None
        refused = self._metadata.learn(answer, now)
        self._connections.forget_back_offs(self._metadata.endpoints())
        self._topic_errors = {entry.name: entry.error_code for entry in answer.topics if entry.error_code}
        for topic in [topic for topic in self._waiting if topic in refused]:
            operation = f"{self._records} not acknowledged: topic {topic!r}"
            self._fail_transaction(error_for(ApiKey.PRODUCE, operation, refused[topic]), ErrorClass.ABORTABLE)
            return
        for topic in [topic for topic in self._waiting if topic in self._metadata.topics]:
            self._assign(topic, asked_at or now)
        records = (waiting.record for topic in self._waiting.values() for waiting in topic)
        self._waiting_bytes = sum(record_size(record.key, record.value, record.headers) for record in records)
        if any(
            self._metadata.leader(queue.topic, queue.partition) is None for queue in self._accumulator.queues_to_send()
        ):
            self._metadata.is_stale = True  # a partition has no leader now
        if self._metadata.is_stale:
            self._pause_metadata(now)
        else:
            self._metadata_attempts = 0
            self._metadata_retry_at = 0.0
        if self._waiting.keys() - {entry.name for entry in answer.topics}:
            self._metadata.is_stale = True  # a topic is wanted that the request did not contain

    def _assign(self, topic: str, asked_at: float) -> None:
        """Assign the records for ``topic`` to their partitions, now that it is known."""
        records = self._waiting.get(topic, [])  # none are left once the transaction is doomed
        place = 0
        try:
            self._waiting.pop(topic, None)
            for place, waiting in enumerate(records):
                if waiting.record.partition >= len(self._metadata.topics[topic].leaders):
                    self._waiting[topic] = records[place:]
                    self._lacks_partition(waiting, asked_at)
                    return
                self.append(waiting.record, waiting.timestamp_ms, waiting.since)
            self._flushed_at.pop(topic, None)  # only now: a verb still waits for records that are left
        except BaseException as error:  # after an interrupt, one of them may be in no batch and would be lost
            self._waiting[topic] = records[place:]
            operation = f"{self._records} not acknowledged: {topic}: {type(error).__name__}"
            self._fail_transaction(PrepareFailedError(operation), ErrorClass.ABORTABLE)
            raise

    def _lacks_partition(self, waiting: _WaitingRecord, asked_at: float) -> None:
        if waiting.since > asked_at:
            self._metadata.is_stale = True  # the answer may be older than the partition
        else:
            operation = f"{self._records} not acknowledged: {waiting.record.topic}-{waiting.record.partition}"
            self._fail_transaction(
                error_for(ApiKey.PRODUCE, operation, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ErrorClass.ABORTABLE
            )

    def _pause_metadata(self, now: float) -> None:
        self._metadata_attempts += 1
        self._metadata_retry_at = now + self._settings.pause_after(self._metadata_attempts)

    # --- Produce

    def _send(self, now: float) -> None:
        while carried := self._fill_requests(now):
            for connection, batches in carried.values():
                self._ask_produce(connection, batches, now)

    def _fill_requests(self, now: float) -> dict[Endpoint, tuple[ConnectionState, list[ProducerBatch]]]:
        """One request to each leader that can take one, with one batch of each partition, up to the size limit of a
        request."""
        carried: dict[Endpoint, tuple[ConnectionState, list[ProducerBatch]]] = {}
        room: dict[Endpoint, int] = {}
        settings, producer = self._settings, self._machine.identity
        for queue in self._accumulator.queues_to_send():
            leader = self._metadata.leader(queue.topic, queue.partition)
            if leader is None:
                self._metadata.want(queue.topic)
                continue
            if not queue.may_send(leader, now, settings.max_in_flight):
                continue
            connection = self._connections.open_connection(leader, now)
            if connection is None or connection.producing >= settings.max_in_flight:
                continue
            left = room.get(leader, settings.max_message_bytes)
            if leader in carried and queue.waiting[0].builder.size > left:
                continue
            batch = self._accumulator.take(queue, leader, producer, settings.codec, settings.compression_level)
            room[leader] = left - len(batch.data)
            if leader in carried:
                carried[leader][1].append(batch)
            else:
                carried[leader] = connection, [batch]
        return carried

    def _ask_produce(self, connection: ConnectionState, batches: list[ProducerBatch], now: float) -> None:
        try:
            connection.version(ApiKey.PRODUCE, PRODUCE_VERSION, PRODUCE_VERSION)
        except NoCommonVersionError as error:
            self._fail_transaction(PrepareFailedError(f"broker {connection.endpoint}: {error}"), ErrorClass.ABORTABLE)
            return
        message = TransactionalProduce(
            self._settings.transactional_id,
            self._settings.ack_timeout_ms,
            [ProduceBatch(batch.queue.topic, batch.queue.partition, batch.data) for batch in batches],
        )
        self._machine.may_be_open = True
        self._connections.send(connection, ApiKey.PRODUCE, PRODUCE_VERSION, message, batches, now)

    def produce_answered(self, batches: list[ProducerBatch], answer: Message, now: float) -> None:
        """Take an answer to Produce."""
        missing = {(batch.queue.topic, batch.queue.partition): batch for batch in batches}
        for topic in answer.responses:
            for entry in topic.partition_responses:
                batch = missing.pop((topic.name, entry.index), None)
                if batch is not None and self._accumulator.is_waiting_for(batch):
                    self._batch_answered(batch, entry, answer.node_endpoints, now)
        for batch in missing.values():
            if self._accumulator.is_waiting_for(batch):
                self._again(batch, now, "the broker's answer leaves it out")

    def _batch_answered(self, batch: ProducerBatch, entry: Message, nodes: Sequence[Message], now: float) -> None:
        code = entry.error_code
        error_class = class_of(ApiKey.PRODUCE, code)
        batch.dropped_connections = 0
        if error_class is ErrorClass.SUCCESS:
            self._accumulator.acknowledge(batch)
            self._machine.acknowledged(batch.queue.topic, batch.queue.partition, entry.base_offset)
            self._report(batch, entry.base_offset, None, now)
        elif self._accumulator.is_out_of_order(batch, code):
            self._accumulator.send_again(batch, now, "an earlier batch is missing")
        elif error_class.is_retriable:
            pause = BUSY_PAUSE if code == ErrorCode.CONCURRENT_TRANSACTIONS else None
            if error_class is ErrorClass.REFRESH_RETRIABLE:
                queue = batch.queue
                self._metadata.want(queue.topic)
                leader = self._metadata.hear(queue.topic, queue.partition, entry.current_leader, nodes)
                pause = None if leader in (None, queue.sent_to) else 0.0
            self._again(batch, now, error_name(code), pause, code)
        else:
            where = f"{batch.queue.topic}-{batch.queue.partition}"
            reason = f": {entry.error_message}" if entry.error_message else ""
            operation = f"{self._records} not acknowledged: {where}{reason}"
            self._fail_transaction(error_for(ApiKey.PRODUCE, operation, code), error_class)

    def lost(self, asked: list[InFlight], why: str, now: float, is_broken: bool = True) -> None:
        """A connection was lost, so the requests ``asked`` will get no answers.

        :param is_broken: False if this client closed it.
        """
        for sent in asked:
            if sent.api_key is ApiKey.METADATA:
                self._asked_metadata_at = None
                self._metadata.is_stale = True
                self._pause_metadata(now)
            elif sent.api_key is ApiKey.PRODUCE and not (is_broken and self._is_dropped_for_size(sent.about)):
                for batch in sent.about:
                    if self._accumulator.is_waiting_for(batch):
                        self._again(batch, now, why)

    def _is_dropped_for_size(self, batches: list[ProducerBatch]) -> bool:
        """True if a broker has dropped the connection over ``batches`` so often, and they are so large, that they must
        exceed its socket.request.max.bytes: a broker refuses such a request by closing the connection, without an
        answer. Then the transaction is lost."""
        waiting = [batch for batch in batches if self._accumulator.is_waiting_for(batch)]
        for batch in waiting:
            batch.dropped_connections += 1
        size = sum(len(batch.data) for batch in batches)
        if not waiting or size < _NEVER_DROPPED or min(batch.dropped_connections for batch in waiting) < _MOST_DROPS:
            return False
        where = f"{waiting[0].queue.topic}-{waiting[0].queue.partition}"
        operation = (
            f"{self._records} not acknowledged: {where}: the broker has closed the connection"
            f" {waiting[0].dropped_connections} times over {size} bytes of records; its socket.request.max.bytes may be"
            " less"
        )
        self._fail_transaction(error_for(ApiKey.PRODUCE, operation, ErrorCode.MESSAGE_TOO_LARGE), ErrorClass.ABORTABLE)
        return True

    def _again(self, batch: ProducerBatch, now: float, why: str, pause: float | None = None, code: int = 0) -> None:
        if batch.attempts > self._settings.retries:
            where = f"{batch.queue.topic}-{batch.queue.partition}"
            operation = f"{self._records} not acknowledged after {batch.attempts} attempts: {where}"
            self._fail_transaction(PrepareFailedError(f"{operation}: {why}"), ErrorClass.ABORTABLE)
            return
        if pause is None:
            pause = self._settings.pause_after(batch.attempts)
        self._accumulator.send_again(batch, now + pause, why, code)

    def _report(
        self, batch: ProducerBatch, base_offset: int, error: DualWriteError | None, acknowledged_at: float | None = None
    ) -> None:
        partition = batch.queue.partition
        for record, place, timestamp_ms, since in batch.tracked_records():
            offset = base_offset + place if base_offset >= 0 else -1
            latency = None if acknowledged_at is None else acknowledged_at - since
            delivered = DeliveredRecord(record, partition, offset, timestamp_ms, error, latency)
            self._report_record(record, error, delivered)

    def _report_record(self, record: OutgoingRecord, error: DualWriteError | None, delivered: DeliveredRecord) -> None:
        own = record.on_delivery
        on_delivery = self._settings.on_delivery if own is None else own
        if on_delivery is not None:
            self.reports.append((on_delivery, error, delivered))
