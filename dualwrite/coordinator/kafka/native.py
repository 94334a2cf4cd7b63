"""The native producer as a participant: every transaction has its own epoch, so KIP-939's state identifies it.

A dead predecessor's transaction may be librdkafka's, with an anchor, so the control plane ends it (predecessor.py), as
for the other participant. The producer itself begins after that.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.reading import step_timeout
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.fate.transaction_fate import TopicIds
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.terms.verbs import ProducerState, Verb, VerbOrder, init_verb
from dualwrite.coordinator.kafka.timeout_watch import TimeoutWatch
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.recovery.predecessor import PredecessorTransaction, predecessor_transactions
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.errors import FencedError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState, require_prepared_state
from dualwrite.records.outgoing import OnDelivery, OutgoingRecord

_OUTCOMES = {
    TransactionResult.COMMITTED: Outcome.COMMITTED,
    TransactionResult.ABORTED: Outcome.ABORTED,
    TransactionResult.NOTHING: Outcome.NOTHING,
}


class NativeProducer:
    """A KafkaParticipant on TwoPhaseProducer. Not thread-safe; only for the process that made it.

    :param config: librdkafka's keys, transactional.id among them; see ProducerSettings for those that are refused.
    :param timeout: seconds for each step that ends a predecessor's transaction, None for step_timeout();
        delivery.timeout.ms limits all other calls.
    :param make_producer: makes the producer, and ``make_control`` the control plane, of the process ``runtime``;
        others are for tests.
    :raises ConfigurationError: if a setting is missing, unknown, refused, or contradicts a dual write.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout: float | None = None,
        make_producer: Callable[[Mapping[str, Any]], TwoPhaseProducer] = TwoPhaseProducer,
        make_control: Callable[..., ControlPlane] = ControlPlane,
        runtime: Runtime = THIS_PROCESS,
    ) -> None:
        made = ProducerSettings.of(config)
        self._transactional_id = made.transactional_id
        self._process = os.getpid()
        self._order = VerbOrder()
        """The state of a predecessor's transaction, unknown to the producer; UNINITIALIZED if there is none."""
        self._left: PredecessorTransaction | None = None
        self._ended: PredecessorTransaction | None = None
        """The same, once this participant has ended it."""
        self._left_transaction = predecessor_transactions(config, runtime)
        patience = step_timeout(made.delivery_timeout) if timeout is None else timeout
        self._control = make_control(config, timeout=patience)
        self._topic_ids = TopicIds(self._control, runtime.monotonic)
        self._watch = TimeoutWatch(made.transaction_timeout_ms, runtime.monotonic)
        default = made.on_delivery
        reporting = {} if default is None else {"dr_cb": None, "on_delivery": _reporter(default)}
        self._producer = make_producer({**config, **reporting})

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """See KafkaParticipant. After ``keep_prepared_txn`` only complete, commit and abort are allowed, and then
        init_transactions() again.

        :raises FencedError: if a transaction is open although this participant has ended the predecessor's: another
            process has begun it since, and may have decided to commit it. It stays open.
        :raises TwoPhaseCommitUnavailableError: if the cluster has no two-phase commit, or not for this client.
        :raises ConfigurationError: if the cluster does not speak transaction version 2.
        """
        if init_verb(keep_prepared_txn) is Verb.INIT:
            self._ready(Verb.INIT).init_transactions(refuse_open=self._ended is not None)
            return
        if self._producer.state is not ProducerState.UNINITIALIZED:
            self._producer.init_transactions(keep_prepared_txn=True)  # refuses, and says what is allowed
        with self._of_predecessor(Verb.INIT_KEEPING):
            self._left = self._left_transaction(self._control, self._transactional_id)

    @property
    def is_reusable(self) -> bool:
        """See KafkaParticipant. Always True: a request in flight carries the identity of a transaction that has ended,
        and every broker refuses that (KIP-890 part 2).

        tests/support/coordinator/searches searches for the opposite."""
        return True

    def name_left_transaction(self) -> PreparedTxnState:
        """Name the transaction that was left open; see NamesLeftTransaction."""
        return PreparedTxnState() if self._left is None else self._left.name()

    def has_committed(self, state: PreparedTxnState) -> bool:
        """True if Kafka has committed the transaction of ``state``; see LooksUpCommits."""
        return self._ended is not None and self._ended.has_committed(state)

    def begin_transaction(self) -> None:
        """Begin a transaction, without a request; see KafkaParticipant. Waits for the answer to a commit that was
        sent."""
        self._ready(Verb.BEGIN).collect_commit(wait=True)
        self._producer.begin_transaction()
        self._watch.begin()

    def produce(self, record: OutgoingRecord) -> None:
        """See KafkaParticipant. Waits while the buffer is full.

        :raises PrepareFailedError: if it stayed full for the delivery timeout.
        """
        try:
            self._ready(Verb.PRODUCE).produce_record(_reporting(record))
        except FencedError as error:
            self._watch.raise_explained(self._transactional_id, error)

    def produce_many(self, records: Iterable[OutgoingRecord]) -> None:
        """Produce many records at once; see ProducesMany."""
        try:
            self._ready(Verb.PRODUCE).produce_many(map(_reporting, records))
        except FencedError as error:
            self._watch.raise_explained(self._transactional_id, error)

    def produce_at_once(self, record: OutgoingRecord) -> bool:
        """Add a record if that does not wait; see ProducesAtOnce."""
        try:
            return self._ready(Verb.PRODUCE).produce_at_once(_reporting(record))
        except FencedError as error:
            self._watch.raise_explained(self._transactional_id, error)

    def send_records(self) -> None:
        """Send the records that were added, without waiting; see SendsRecords."""
        with self._watch.explaining(self._transactional_id):
            self._ready(Verb.PRODUCE).send_records()

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447); see KafkaParticipant."""
        with self._watch.explaining(self._transactional_id):
            self._ready(Verb.SEND_OFFSETS).send_offsets_to_transaction(positions, group_metadata)

    @property
    def open_transaction(self) -> PreparedTxnState:
        """The state that names the open transaction; see NamesOpenTransaction."""
        return self._producer.open_transaction

    def prepare_transaction(self) -> PreparedTxnState:
        """See KafkaParticipant. A broker that acknowledges a record has made its partition part of the transaction,
        under this identity; no further request is needed."""
        with self._watch.explaining(self._transactional_id):
            state = self._ready(Verb.PREPARE).prepare_transaction()
        state = self._topic_ids.added(state)
        self._watch.require_time(self._transactional_id)
        return state

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise; see KafkaParticipant."""
        require_prepared_state(state)
        if self._left is not None:
            return self._end_kept(Verb.COMPLETE, lambda left: left.complete(state))
        return _OUTCOMES[self._ready(Verb.COMPLETE).complete_transaction(state)]

    def commit_transaction(self) -> None:
        """Commit the transaction; see KafkaParticipant."""
        if self._left is not None:
            self._end_kept(Verb.COMMIT, lambda left: left.end(RecoveryDecision.COMMIT))
        else:
            self._ready(Verb.COMMIT).commit_transaction()

    @property
    def is_committing(self) -> bool:
        """True if a commit was sent, and its answer was not collected; see CommitsInBackground."""
        return self._producer.is_committing

    def send_commit(self) -> None:
        """Send the commit of the transaction, but do not wait; see CommitsInBackground."""
        self._ready(Verb.COMMIT).send_commit()

    def collect_commit(self, *, wait: bool) -> bool:
        """Collect the answer to a commit that was sent; see CommitsInBackground."""
        return self._producer.collect_commit(wait=wait)

    def abort_transaction(self) -> None:
        """Abort the transaction; see KafkaParticipant."""
        if self._left is not None:
            self._end_kept(Verb.ABORT, lambda left: left.end(RecoveryDecision.ABORT))
        else:
            self._ready(Verb.ABORT).collect_commit(wait=True)
            self._producer.abort_transaction()

    def close(self) -> None:
        """See KafkaParticipant. Buffered records are dropped, and their callbacks called with an error."""
        if self._order.state is not ProducerState.CLOSED:
            self._order.state = ProducerState.CLOSED
            with suppress(Exception):  # of a user's callback: no caller can handle it any more
                self._producer.close()
            self._control.close()

    def _ready(self, verb: Verb) -> TwoPhaseProducer:
        """The producer, unless a predecessor's transaction is still open."""
        if self._order.state is not ProducerState.UNINITIALIZED:
            self._order.require(verb)
        return self._producer

    def _end_kept(self, verb: Verb, end: Callable[[PredecessorTransaction], Outcome]) -> Outcome:
        assert self._left is not None
        with self._of_predecessor(verb):
            outcome = end(self._left)
            self._left, self._ended = None, self._left
            return outcome

    @contextmanager
    def _of_predecessor(self, verb: Verb) -> Iterator[None]:
        if self._process != os.getpid():
            raise InvalidTransactionStateError(
                f"{verb.value}: the producer belongs to process {self._process}; make a new one after a fork"
            )
        with self._order.calling(verb):
            yield


def _reporting(record: OutgoingRecord) -> OutgoingRecord:
    on_delivery = record.on_delivery
    return record if on_delivery is None else record.reporting_to(_reporter(on_delivery))


def _reporter(on_delivery: OnDelivery) -> OnDelivery:
    """``on_delivery``, called with confluent-kafka's errors: its author may not know which producer is in use."""

    def report(error: Any, record: Any) -> None:
        if error is not None:
            from dualwrite.client.librdkafka.errors import as_kafka_error  # loads librdkafka, for once in a while

            error = as_kafka_error(error)
            record = record.with_error(error)
        on_delivery(error, record)

    return report
