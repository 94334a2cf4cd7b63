"""confluent-kafka as a participant: librdkafka writes the records, the control plane sends the requests that librdkafka
cannot.

librdkafka uses the older transaction protocol: one producer epoch for a whole session. So a prepared state carries an
anchor (ids.py), and the control plane ends the open transaction of a dead process (prepared_predecessor.py).
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from dualwrite.client.admin.control_plane import ONGOING, ControlPlane, TransactionDescription
from dualwrite.client.admin.transaction_fate import TopicIds, started_ms
from dualwrite.client.librdkafka.bounded_calls import BoundedCalls, HeldCallbacks
from dualwrite.client.librdkafka.deliveries import Deliveries, reporter
from dualwrite.client.librdkafka.errors import (
    ConnectionWatch,
    is_fenced,
    is_permanent,
    is_purged,
    translated,
    translating,
)
from dualwrite.client.librdkafka.producer_config import ProducerConfig
from dualwrite.client.producer.arguments import checked_on_delivery, member_of
from dualwrite.client.terms.error_classes import FENCED
from dualwrite.client.terms.verbs import AFTER_FAILURE, ProducerState, Verb, VerbOrder, init_verb
from dualwrite.coordinator.ports import Headers, Outcome
from dualwrite.coordinator.recovery.succession import TransactionBefore
from dualwrite.coordinator.recovery.two_phase import LeftTransaction, TimeoutWatch, left_transactions, step_timeout
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.errors import (
    ConfigurationError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition, require_prepared_state

_GRACE = 2.0
"""Seconds that librdkafka has to return after its own timeout, before it is abandoned."""

_OFFSETS = "__consumer_offsets"

_REPORT_GRACE = 2.0
"""Seconds after the delivery timeout in which librdkafka delivers the last delivery reports."""

_QUEUE_POLL = 0.1

_RECORDS_PER_POLL = 100
"""Records between two polls for delivery reports; a poll costs as much as half a produce."""

_inherited: list[Any] = []
"""Producers that a forked process inherited. Destroying one waits for threads that the fork did not copy, so they are
kept for as long as the process lives."""

_log = logging.getLogger("dualwrite.librdkafka")
_log.addHandler(logging.NullHandler())


class LibrdkafkaProducer:
    """A KafkaParticipant on confluent_kafka.Producer. Not thread-safe; only for the process that made it.

    A transaction without records has the empty PreparedTxnState, and ending it sends no request.

    :param config: librdkafka's keys, transactional.id among them; see ProducerConfig for those that are refused or set.
    :param timeout: seconds that init, send_offsets, commit and abort may take each; None for step_timeout().
    :raises ConfigurationError: if a setting is missing, unknown, or contradicts a dual write.
    """

    def __init__(self, config: Mapping[str, Any], *, timeout: float | None = None) -> None:
        made = ProducerConfig.of(config)
        self._transactional_id = made.transactional_id
        self._default_on_delivery = made.on_delivery
        self._delivery_timeout = made.delivery_timeout
        self._timeout = step_timeout(made.delivery_timeout) if timeout is None else timeout
        self._bounded = BoundedCalls(_GRACE)
        self._callbacks = HeldCallbacks()
        self._process = os.getpid()
        self._order = VerbOrder()
        self._session: ProducerIdentity | None = None
        self._left: LeftTransaction | None = None
        self._prepared = PreparedTxnState()
        self._deliveries = Deliveries()
        self._report = reporter(self._deliveries)
        self._groups: set[str] = set()
        """The groups whose offsets are in the open transaction."""
        self._has_stray_offsets = False
        """True if sent offsets may still be in flight: in a later transaction they would overwrite newer ones."""
        self._two_phase = made.two_phase
        self._left_transaction = left_transactions(config)
        self._watch = TimeoutWatch(made.librdkafka["transaction.timeout.ms"])
        self._control = ControlPlane(config, timeout=self._timeout)
        self._topic_ids = TopicIds(self._control)
        self._before = TransactionBefore(self._control, self._timeout)
        try:
            self._connections = ConnectionWatch(made.librdkafka.get("logger", _log))
            self._producer: Any = Producer({**made.librdkafka, "logger": self._connections})
        except (KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else error
            raise ConfigurationError(f"Kafka configuration: {reason}") from error

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """See KafkaParticipant. After ``keep_prepared_txn`` only complete, commit and abort are allowed, and then
        init_transactions() again.

        :raises TwoPhaseCommitUnavailableError: if the cluster has no two-phase commit, or not for this client.
        """
        if init_verb(keep_prepared_txn) is Verb.INIT_KEEPING:
            with self._calling(Verb.INIT_KEEPING):
                self._left = self._left_transaction(self._control, self._transactional_id)
            return
        with self._calling(Verb.INIT):
            self._call(Verb.INIT, self._producer.init_transactions)
            self._session = self._described_identity()

    @property
    def is_reusable(self) -> bool:
        """See KafkaParticipant. False once librdkafka has lost a connection, got no answer about offsets, or has not
        returned from a call: its requests may still be in flight. Also once the cluster was found restored."""
        if self._bounded.is_wedged or self._has_stray_offsets or self._before.is_lost:
            return False
        if self._producer is not None and self._process == os.getpid():
            self._producer.poll(0)  # what it has to tell
        return not self._connections.has_lost_one

    def name_left_transaction(self) -> PreparedTxnState:
        """See NamesLeftTransaction."""
        return PreparedTxnState() if self._left is None else self._left.name()

    def begin_transaction(self) -> None:
        """See KafkaParticipant."""
        with self._calling(Verb.BEGIN):
            self._before.let_the_clock_move_on()
            self._producer.begin_transaction()
            self._watch.begin()
            self._deliveries = Deliveries()
            self._report = reporter(self._deliveries)
            self._groups = set()
            self._prepared = PreparedTxnState()

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """See KafkaParticipant. Waits while librdkafka's queue is full.

        :raises KafkaUnavailableError: if the queue stayed full for the delivery timeout.
        """
        record = self._record(value, key, partition, timestamp, headers, on_delivery)
        with self._adding():
            self._enqueue(topic, record)
            self._deliveries.sent()
            if self._deliveries.produced % _RECORDS_PER_POLL == 0:
                self._producer.poll(0)

    def produce_at_once(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> bool:
        """See ProducesAtOnce."""
        if (self._deliveries.produced + 1) % _RECORDS_PER_POLL == 0:
            return False  # produce() polls then, which calls callbacks
        record = self._record(value, key, partition, timestamp, headers, on_delivery)
        with self._adding():
            try:
                self._producer.produce(topic, **record)
            except BufferError:
                return False
            self._deliveries.sent()
            return True

    def _record(
        self,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        timestamp: int,
        headers: Headers | None,
        on_delivery: Callable[[Any, Any], None] | None,
    ) -> dict[str, Any]:
        """The arguments of produce(), as confluent-kafka takes them."""
        self._check_process(Verb.PRODUCE)
        self._order.require(Verb.PRODUCE)
        callback = self._default_on_delivery if on_delivery is None else checked_on_delivery(on_delivery)
        report = self._report if callback is None else reporter(self._deliveries, self._callbacks.to(callback))
        record: dict[str, Any] = {
            "value": value,
            "key": key,
            "partition": partition,
            "timestamp": timestamp,
            "on_delivery": report,
        }
        if headers is not None:
            record["headers"] = dict(headers) if isinstance(headers, Mapping) else list(headers)
        return record

    @contextmanager
    def _adding(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # Also if a delivery callback raised: the record may be sent, and a repeated one must not commit beside it.
            self._order.state = AFTER_FAILURE[Verb.PRODUCE]
            if isinstance(error, KafkaException):
                cause = self._cause(error.args[0])
                raise translated(f"{Verb.PRODUCE.value} of {self._transactional_id}", cause) from error
            raise

    def _cause(self, error: KafkaError) -> KafkaError:
        """The cause of ``error``. _FATAL only says that an earlier error (e.g. a fencing) has ended the producer:
        then it is that one, which confluent-kafka raises at the next poll."""
        if error.code() == KafkaError._FATAL:
            try:
                self._producer.poll(0)
            except KafkaException as first:
                error = first.args[0]
        return error

    def _enqueue(self, topic: str, record: dict[str, Any]) -> None:
        """Hand a record to librdkafka, waiting while its queue is full."""
        deadline = 0.0
        while True:
            try:
                self._producer.produce(topic, **record)
                return
            except BufferError as error:
                deadline = deadline or time.monotonic() + self._delivery_timeout
                if time.monotonic() >= deadline:
                    raise KafkaUnavailableError(f"produce to {topic}: the queue stayed full") from error
                self._producer.poll(_QUEUE_POLL)

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """See KafkaParticipant.

        :raises WedgedError: if librdkafka does not return; then close this.
        """
        with self._calling(Verb.SEND_OFFSETS):
            group = member_of(group_metadata).group_id
            if group in self._groups and not self.is_reusable:
                # A broker knows which of two offsets is newer only by their transactions.
                raise PrepareFailedError(
                    f"offsets of group {group}: a connection was lost since some were sent, which may be under way"
                )
            self._groups.add(group)
            self._has_stray_offsets = True
            try:
                send = self._producer.send_offsets_to_transaction
                self._call(Verb.SEND_OFFSETS, send, list(positions), group_metadata)
            except KafkaException as error:
                refusal = translated(f"{Verb.SEND_OFFSETS.value} of {self._transactional_id}", error.args[0])
                if not isinstance(refusal, KafkaRefusedError):
                    raise refusal from error  # e.g. a timeout: the broker may have them, or get them later
                if refusal.code < 0:  # librdkafka's own error, after a record that was not acknowledged
                    raise KafkaUnavailableError(str(refusal)) from error
                self._has_stray_offsets = False
                raise refusal from error
            self._has_stray_offsets = False

    @property
    def open_transaction(self) -> PreparedTxnState:
        """See NamesOpenTransaction."""
        if self._session is None or not (self._deliveries.produced or self._groups):
            return PreparedTxnState()
        return PreparedTxnState(self._session, self._deliveries.anchor())

    def prepare_transaction(self) -> PreparedTxnState:
        """See KafkaParticipant. Not only must every record be acknowledged: the coordinator must agree that the
        transaction is open, under this session's identity, in all the partitions that acknowledged a record."""
        with self._calling(Verb.PREPARE):
            # confluent-kafka 2.16 raises SystemError if the producer is fenced or its transaction fails meanwhile. The
            # delivery reports show what became of the records; the coordinator describes the transaction.
            with suppress(SystemError):
                self._producer.flush(self._delivery_timeout + _REPORT_GRACE)
            self._require_deliveries()
            if self._deliveries.produced or self._groups:
                described = self._require_ongoing()
                anchor = self._deliveries.anchor() or self._found_anchor(described)
                named = PreparedTxnState(described.producer, anchor, started_ms=started_ms(described))
                self._before.require_kept(self._transactional_id)
                self._prepared = self._topic_ids.added(named)
                self._before.was_dated()
            self._watch.require_time(self._transactional_id)
            return self._prepared

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """See KafkaParticipant."""
        require_prepared_state(state)
        with self._calling(Verb.COMPLETE) as before:
            if before is ProducerState.KEPT:
                return self._predecessors().complete(state)
            if state == self._prepared:
                self._commit()
                return Outcome.COMMITTED if state else Outcome.NOTHING
            self._abort()
            return Outcome.ABORTED if self._prepared else Outcome.NOTHING

    def commit_transaction(self) -> None:
        """See KafkaParticipant."""
        with self._calling(Verb.COMMIT) as before:
            if before is ProducerState.KEPT:
                self._predecessors().end(RecoveryDecision.COMMIT)
            else:
                self._commit()

    def abort_transaction(self) -> None:
        """See KafkaParticipant."""
        with self._calling(Verb.ABORT) as before:
            if before is ProducerState.KEPT:
                self._predecessors().end(RecoveryDecision.ABORT)
            else:
                self._abort()

    def close(self) -> None:
        """See KafkaParticipant. Queued records are dropped, and their callbacks called with an error.

        confluent-kafka's own close() is not called: it would abort the open transaction.
        """
        if self._order.state is ProducerState.CLOSED:
            return
        self._order.state = ProducerState.CLOSED
        if self._process != os.getpid():
            _inherited.append(self._producer)
        elif not self._bounded.is_wedged:  # a wedged producer is destroyed by its call, if that ever returns
            with suppress(Exception):  # of a user's callback, or librdkafka's: no caller can handle it any more
                self._producer.purge(blocking=False)
                self._producer.poll(0)
        self._producer = None
        self._bounded.close()
        self._control.close()

    def _check_process(self, verb: Verb) -> None:
        if self._process != os.getpid():
            raise InvalidTransactionStateError(
                f"{verb.value}: the producer belongs to process {self._process}; make a new one after a fork"
            )

    @contextmanager
    def _calling(self, verb: Verb) -> Iterator[ProducerState]:
        self._check_process(verb)
        what = f"{verb.value} of {self._transactional_id}"
        with self._order.calling(verb) as before, translating(what, two_phase=self._two_phase):
            yield before

    def _require_deliveries(self) -> None:
        sent = self._deliveries
        count = f"of {sent.produced} records of {self._transactional_id} were not acknowledged"
        if sent.failed:
            error = sent.first_error
            if is_purged(error):
                self._require_session()  # a fenced librdkafka drops queued records without a reason
            if is_fenced(error):
                raise FencedError(f"{sent.failed} {count}: {error.str()}: {FENCED}")
            if is_permanent(error):
                raise KafkaRefusedError(
                    f"{sent.failed} {count}: topic {sent.first_topic!r}: {error.str()}", error.code(), error.name()
                )
            raise PrepareFailedError(f"{sent.failed} {count}: {error.str()} ({error.name()})")
        if sent.missing:
            self._require_session()
            raise PrepareFailedError(f"{sent.missing} {count} in time")

    def _require_session(self) -> TransactionDescription:
        """The coordinator's description of the transactional id, if it still belongs to this producer."""
        what = f"transaction of {self._transactional_id}"
        described = self._control.describe_transaction(self._transactional_id)
        if described is None:
            raise PrepareFailedError(f"{what}: the coordinator does not know it")
        if described.producer != self._session:
            raise FencedError(
                f"{what}: it belongs to producer {described.producer} now, not to {self._session}: another process has "
                f"taken over {self._transactional_id!r}, or a request of this one's came late"
            )
        return described

    def _require_ongoing(self) -> TransactionDescription:
        described = self._require_session()
        missing = [str(each) for each in sorted(self._deliveries.partitions - described.partitions)]
        if self._groups and not _of_offsets(described):
            missing.append(_OFFSETS)
        if described.state != ONGOING or missing:
            absent = f" without {', '.join(missing)}" if missing else ""
            raise PrepareFailedError(
                f"transaction of {self._transactional_id}: {described.state}{absent}, where it should be {ONGOING}"
            )
        return described

    def _found_anchor(self, described: TransactionDescription) -> Anchor:
        """The anchor according to the partition leaders, if no delivery report had a first offset, as with offsets.

        It is the beginning of this transaction: no partition joins a transaction before the previous one's markers are
        written.
        """
        partitions = self._deliveries.partitions or _of_offsets(described)
        starts = self._control.current_transaction_start_offsets(partitions, described.producer)
        if not starts:
            raise PrepareFailedError(f"transaction of {self._transactional_id}: no leader knows where it began")
        partition = min(starts)
        return Anchor.of(partition, starts[partition])

    def _predecessors(self) -> LeftTransaction:
        assert self._left is not None
        return self._left

    def _call(self, verb: Verb, method: Callable[..., Any], *arguments: Any) -> None:
        """Call ``method`` in a thread of its own; it takes its timeout as its last argument."""
        what, timeout = f"{verb.value} of {self._transactional_id}", self._timeout
        with self._callbacks.held():
            self._bounded.call(what, timeout, lambda: method(*arguments, timeout))

    def _commit(self) -> None:
        self._producer.commit_transaction(self._timeout)
        self._before.was_committed(self._prepared)

    def _abort(self) -> None:
        self._call(Verb.ABORT, self._producer.abort_transaction)
        # librdkafka bumps its epoch in the abort if it had lost track of a sequence.
        self._session = self._described_identity()

    def _described_identity(self) -> ProducerIdentity | None:
        described = self._control.describe_transaction(self._transactional_id)
        return None if described is None else described.producer


def _of_offsets(described: TransactionDescription) -> frozenset[TopicPartition]:
    """The partitions of the transaction that hold groups' offsets."""
    return frozenset(each for each in described.partitions if each.topic == _OFFSETS)
