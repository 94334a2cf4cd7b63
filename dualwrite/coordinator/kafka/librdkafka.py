"""confluent-kafka as a participant: librdkafka writes the records, the control plane sends the requests that librdkafka
cannot.

librdkafka uses the older transaction protocol: one producer epoch for a whole session. So a prepared state carries an
anchor (ids.py), and the control plane ends the open transaction of a dead process (prepared_predecessor.py).
"""

import ctypes
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from confluent_kafka import KafkaError, KafkaException, Producer

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.config.librdkafka_settings import LibrdkafkaSettings
from dualwrite.client.config.reading import BOOTSTRAP_KEY, names_of, step_timeout
from dualwrite.client.fate.transaction_fate import TopicIds, started_ms
from dualwrite.client.librdkafka.deadline_calls import DeadlineCalls, HeldCallbacks
from dualwrite.client.librdkafka.errors import ConnectionWatch, translated, translating
from dualwrite.client.librdkafka.record_queue import RecordQueue
from dualwrite.client.librdkafka.sent_offsets import SentOffsets
from dualwrite.client.producer.arguments import member_of
from dualwrite.client.terms.verbs import AFTER_FAILURE, ProducerState, Verb, VerbOrder, init_verb
from dualwrite.coordinator.kafka.librdkafka_session import LibrdkafkaSession
from dualwrite.coordinator.kafka.timeout_watch import TimeoutWatch
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.recovery.predecessor import PredecessorTransaction, predecessor_transactions
from dualwrite.coordinator.recovery.previous_transaction import PreviousTransaction
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.errors import (
    ConfigurationError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.ids import PreparedTxnState, require_prepared_state
from dualwrite.records.outgoing import OutgoingRecord

_GRACE = 2.0

_REPORT_GRACE = 2.0
"""Seconds after the delivery timeout in which librdkafka delivers the last delivery reports."""

_log = logging.getLogger("dualwrite.librdkafka")
_log.addHandler(logging.NullHandler())


_participants: "WeakSet[LibrdkafkaProducer]" = WeakSet()
"""Those of this process, without those that it inherited."""


def _keep_inherited_producers() -> None:
    """In a forked child: let no reference count of the parent's producers reach zero, not even as the interpreter ends.
    To destroy one would wait for ever, for locks and threads that the fork did not copy."""
    for participant in list(_participants):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(participant._producer))
    _participants.clear()


os.register_at_fork(after_in_child=_keep_inherited_producers)


class LibrdkafkaProducer:
    """A KafkaParticipant on confluent_kafka.Producer. Not thread-safe; only for the process that made it.

    A transaction without records has the empty PreparedTxnState, and ending it sends no request.

    :param config: librdkafka's keys, transactional.id among them; LibrdkafkaSettings says which are refused or set.
    :param timeout: seconds that init, send_offsets, commit and abort may take each; None for step_timeout().
    :param grace: seconds that librdkafka has to return after its own timeout, before it is abandoned.
    :param make_producer: makes librdkafka's producer, and ``make_control`` the control plane; others are for tests.
    :raises ConfigurationError: if a setting is missing, unknown, or contradicts a dual write.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout: float | None = None,
        grace: float = _GRACE,
        make_producer: Callable[[dict[str, Any]], Any] = Producer,
        make_control: Callable[..., ControlPlane] = ControlPlane,
    ) -> None:
        made = LibrdkafkaSettings.of(config)
        self._transactional_id = made.transactional_id
        self._delivery_timeout = made.delivery_timeout
        self._timeout = step_timeout(made.delivery_timeout) if timeout is None else timeout
        self._deadline_calls = DeadlineCalls(grace)
        self._callbacks = HeldCallbacks()
        self._process = os.getpid()
        self._order = VerbOrder()
        self._left: PredecessorTransaction | None = None
        self._prepared = PreparedTxnState()
        self._queue = RecordQueue(made.delivery_timeout, made.on_delivery, self._callbacks)
        self._offsets = SentOffsets()
        self._two_phase = made.two_phase
        self._left_transaction = predecessor_transactions(config, THIS_PROCESS)
        self._watch = TimeoutWatch(made.transaction_timeout_ms, THIS_PROCESS.monotonic)
        self._control = make_control(config, timeout=self._timeout)
        self._session = LibrdkafkaSession(self._control, made.transactional_id)
        self._topic_ids = TopicIds(self._control, THIS_PROCESS.monotonic)
        self._before = PreviousTransaction(self._control, self._timeout, THIS_PROCESS)
        self._connections = ConnectionWatch(made.librdkafka.get("logger", _log))
        self._producer: Any = _made(make_producer, {**made.librdkafka, "logger": self._connections})
        _participants.add(self)

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """See KafkaParticipant. After ``keep_prepared_txn`` only complete, commit and abort are allowed, and then
        init_transactions() again.

        :raises TwoPhaseCommitUnavailableError: if the cluster has no two-phase commit, or not for this client.
        :raises FencedError: as NativeProducer.init_transactions.
        """
        if init_verb(keep_prepared_txn) is Verb.INIT_KEEPING:
            with self._calling(Verb.INIT_KEEPING):
                self._left = self._left_transaction(self._control, self._transactional_id)
            return
        with self._calling(Verb.INIT):
            if self._two_phase and self._left is None:
                self._abort_open()
            self._call(Verb.INIT, self._producer.init_transactions)
            self._session.look_up()

    @property
    def state(self) -> ProducerState:
        """Which calls are allowed now."""
        return self._order.state

    @property
    def is_reusable(self) -> bool:
        """See KafkaParticipant. False once librdkafka has lost a connection, got no answer about offsets, or has not
        returned from a call: its requests may still be in flight. Also once the cluster was found restored."""
        if self._deadline_calls.is_wedged or self._offsets.may_be_in_flight:
            return False
        if self._before.is_lost:
            return False
        if self._producer is not None and self._process == os.getpid():
            self._producer.poll(0)  # serve librdkafka's log and delivery reports
        return not self._connections.has_lost_connection

    def name_left_transaction(self) -> PreparedTxnState:
        """Name the transaction that was left open; see NamesLeftTransaction."""
        return PreparedTxnState() if self._left is None else self._left.name()

    def has_committed(self, state: PreparedTxnState) -> bool:
        """True if Kafka has committed the transaction of ``state``; see LooksUpCommits."""
        return self._left is not None and self._left.has_committed(state)

    def begin_transaction(self) -> None:
        """Begin a transaction, without a request; see KafkaParticipant."""
        with self._calling(Verb.BEGIN):
            self._before.await_next_start_time()
            self._producer.begin_transaction()
            self._watch.begin()
            self._queue.begin()
            self._offsets.begin()
            self._prepared = PreparedTxnState()

    def produce(self, record: OutgoingRecord) -> None:
        """See KafkaParticipant. Waits while librdkafka's queue is full.

        :raises KafkaUnavailableError: if the queue stayed full for the delivery timeout.
        """
        self._check_process(Verb.PRODUCE)
        self._order.require(Verb.PRODUCE)
        try:
            self._queue.add(self._producer, record)
        except BaseException as error:
            self._spoil(error)
            raise

    def produce_at_once(self, record: OutgoingRecord) -> bool:
        """Add a record if that does not wait; see ProducesAtOnce."""
        if self._queue.polls_next:
            return False
        self._check_process(Verb.PRODUCE)
        self._order.require(Verb.PRODUCE)
        try:
            return self._queue.add_at_once(self._producer, record)
        except BaseException as error:
            self._spoil(error)
            raise

    def _spoil(self, error: BaseException) -> None:
        """Let the transaction only be aborted, because produce() raised ``error``. Also if a delivery callback raised:
        the record may be sent, and a repeated one must not commit beside it."""
        self._order.state = AFTER_FAILURE[Verb.PRODUCE]
        if isinstance(error, KafkaException):
            meant = translated(f"{Verb.PRODUCE.value} of {self._transactional_id}", self._cause(error.args[0]))
            with self._watch.explaining(self._transactional_id):
                raise meant from error

    def _cause(self, error: KafkaError) -> KafkaError:
        """The cause of ``error``. _FATAL only says that an earlier error (e.g. a fencing) has ended the producer:
        then it is that one, which confluent-kafka raises at the next poll."""
        if error.code() == KafkaError._FATAL:
            try:
                self._producer.poll(0)
            except KafkaException as first:
                error = first.args[0]
        return error

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """See KafkaParticipant.

        :raises WedgedError: if librdkafka does not return; then close this.
        """
        with self._watch.explaining(self._transactional_id), self._calling(Verb.SEND_OFFSETS):
            group = member_of(group_metadata).group_id
            if group in self._offsets.groups and not self.is_reusable:
                # A broker knows which of two offsets is newer only by their transactions.
                raise PrepareFailedError(
                    f"offsets of group {group}: a connection was lost after this transaction sent offsets of the "
                    "group, and a copy of that request may still arrive"
                )
            with self._offsets.sending(f"{Verb.SEND_OFFSETS.value} of {self._transactional_id}", group):
                send = self._producer.send_offsets_to_transaction
                self._call(Verb.SEND_OFFSETS, send, list(positions), group_metadata)

    @property
    def open_transaction(self) -> PreparedTxnState:
        """The state that names the open transaction; see NamesOpenTransaction."""
        if self._session.identity is None or self._is_empty:
            return PreparedTxnState()
        return PreparedTxnState(self._session.identity, self._queue.deliveries.anchor())

    @property
    def _is_empty(self) -> bool:
        return not (self._queue.deliveries.produced or self._offsets.groups)

    def prepare_transaction(self) -> PreparedTxnState:
        """See KafkaParticipant. Not only must every record be acknowledged: the coordinator must agree that the
        transaction is open, under this session's identity, in all the partitions that acknowledged a record."""
        with self._watch.explaining(self._transactional_id), self._calling(Verb.PREPARE):
            # confluent-kafka 2.16 raises SystemError if the producer is fenced or its transaction fails meanwhile. The
            # delivery reports show what became of the records; the coordinator describes the transaction.
            with suppress(SystemError):
                self._producer.flush(self._delivery_timeout + _REPORT_GRACE)
            session, sent = self._session, self._queue.deliveries
            session.require_delivered(sent)
            if not self._is_empty:
                self._before.note_begun()
                described = session.require_ongoing(sent, has_offsets=bool(self._offsets.groups))
                anchor = session.anchor(sent, described)
                named = PreparedTxnState(described.producer, anchor, started_ms=started_ms(described))
                self._before.require_kept(self._transactional_id)
                self._prepared = self._topic_ids.added(named)
            self._watch.require_time(self._transactional_id)
            return self._prepared

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise; see KafkaParticipant."""
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
        """Commit the transaction; see KafkaParticipant."""
        with self._calling(Verb.COMMIT) as before:
            if before is ProducerState.KEPT:
                self._predecessors().end(RecoveryDecision.COMMIT)
            else:
                self._commit()

    def abort_transaction(self) -> None:
        """Abort the transaction; see KafkaParticipant.

        :raises KafkaUnavailableError: also if librdkafka reports success and has left the transaction open.
        """
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
        is_own = self._process == os.getpid()
        # A wedged producer is destroyed by its call, if that ever returns.
        if is_own and not self._deadline_calls.is_wedged:
            with suppress(Exception):  # of a user's callback, or librdkafka's: no caller can handle it any more
                self._producer.purge(blocking=False)
                self._producer.poll(0)
        self._producer = None
        self._deadline_calls.close()
        self._control.close()

    def _check_process(self, verb: Verb) -> None:
        if self._process != os.getpid():
            raise InvalidTransactionStateError(
                f"{verb.value}: the producer belongs to process {self._process}; make a new one after a fork"
            )

    @contextmanager
    def _calling(self, verb: Verb) -> Iterator[ProducerState]:
        self._check_process(verb)
        operation = f"{verb.value} of {self._transactional_id}"
        with self._order.calling(verb) as before, translating(operation, two_phase=self._two_phase):
            yield before

    def _abort_open(self) -> None:
        """Abort what a predecessor left open: the bundled broker lets librdkafka's own init abort nothing, because that
        may be a successor's. Apache Kafka lets it, and has no request that would do it here."""
        with suppress(TwoPhaseCommitUnavailableError):
            self._left_transaction(self._control, self._transactional_id).end(RecoveryDecision.ABORT)

    def _predecessors(self) -> PredecessorTransaction:
        assert self._left is not None
        return self._left

    def _call(self, verb: Verb, method: Callable[..., Any], *arguments: Any) -> None:
        """Call ``method`` in a thread of its own; it takes its timeout as its last argument."""
        operation, timeout = f"{verb.value} of {self._transactional_id}", self._timeout
        with self._callbacks.held(self._deadline_calls):
            self._deadline_calls.call(operation, timeout, lambda: method(*arguments, timeout))

    def _commit(self) -> None:
        self._producer.commit_transaction(self._timeout)
        self._before.was_committed(self._prepared)

    def _abort(self) -> None:
        self._call(Verb.ABORT, self._producer.abort_transaction)
        # librdkafka bumps its epoch in the abort if it had lost track of a sequence. And if the answer to the first
        # AddPartitionsToTxn comes after the abort has begun, it leaves the transaction open, and reports success.
        if self._session.look_up():
            raise KafkaUnavailableError(
                f"{Verb.ABORT.value} of {self._transactional_id}: librdkafka has left the transaction open, and "
                "recovery ends it"
            )


def require_valid_settings(config: Mapping[str, Any]) -> None:
    """Refuse settings that librdkafka refuses, without a request: a producer that knows no broker takes them, and ends.
    Settings with an ``oauth_cb`` are not checked, as such a producer would ask for a token.

    :raises ConfigurationError: naming the setting.
    """
    settings = LibrdkafkaSettings.of(config).librdkafka
    if "oauth_cb" not in settings:
        others = {name: value for name, value in settings.items() if name not in (*names_of(BOOTSTRAP_KEY), "logger")}
        _made(Producer, {**others, "log_level": 0})


def _made(make_producer: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    try:
        return make_producer(settings)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigurationError(f"Kafka configuration: {reason}") from error
