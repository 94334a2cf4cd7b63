"""The native producer: KIP-939's verbs on KIP-890 part 2, with the methods of confluent_kafka.Producer.

A unit of work with one record takes two round trips, Produce and EndTxn. Every transaction has an identity of its own.
So ``producerId:epoch`` names it for ever, and a late request cannot reach another transaction.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.drivers.blocking import BlockingDriver
from dualwrite.client.engine.contract import NEVER, Driver, Operation
from dualwrite.client.engine.engine import Engine
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.producer.arguments import member_of, offsets_of, one_callback
from dualwrite.client.producer.base_producer import REFUSED, SYSTEM_RUNTIME, BaseProducer, ProducerRuntime
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState, require_prepared_state
from dualwrite.records.outgoing import HeadersGiven, OnDelivery, OutgoingRecord


class TwoPhaseProducer(BaseProducer):
    """A transactional producer in two-phase commit. Not thread-safe. Usable only in the process that made it.

    The producer gathers records until a batch is full, or the transaction is prepared or committed. ``linger.ms`` sends
    them sooner, at the next call. Every method that waits gives up after delivery.timeout.ms.

    After an error of produce, flush, send_offsets or prepare, call abort_transaction(). This includes a delivery
    callback's error and an interrupt, and also an interrupt of poll. Only an argument of a wrong type or value leaves
    the transaction unharmed. After an error of init, commit, abort or complete, call close() and make a new producer:
    its init_transactions(keep_prepared_txn=True) and complete_transaction(state) end the transaction. After
    FencedError, another process has the transactional id; if the commit raised it, the transaction may be committed all
    the same, so do not run the unit again.

    Differences from confluent_kafka.Producer: init, send_offsets, commit and abort take no timeout; produce and flush
    raise the error that ended the transaction; a delivery callback gets a DualWriteError.

    :param config: librdkafka's keys; docs/reference/producer.md describes each of them.
    :param make_driver: makes the driver of the sockets, and ``runtime`` has the clocks and the randomness; others are
        for tests.
    :raises ConfigurationError: if a setting is missing, unknown, refused, or out of its range; the message names it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        make_driver: Callable[[Engine, ClientSettings], Driver] = BlockingDriver,
        runtime: ProducerRuntime = SYSTEM_RUNTIME,
    ) -> None:
        super().__init__(config, runtime)
        self._driver = make_driver(self._engine, self._client)
        self._commit: Operation | None = None
        """A commit that was sent, and whose answer was not collected."""

    def __enter__(self) -> "TwoPhaseProducer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def init_transactions(self, keep_prepared_txn: bool = False, *, refuse_open: bool = False) -> None:
        """Fence every earlier producer of the transactional id, and abort the transaction that it left open.

        :param keep_prepared_txn: keep the open transaction instead (KIP-939). Then only complete, commit and abort are
            allowed, and after them init_transactions() again.
        :param refuse_open: raise FencedError if a transaction is open, and leave it open: for a caller that has ended
            the predecessor's transaction by other means. Apache Kafka 4.4 cannot keep a transaction, and aborts it.
        :raises FencedError: if a transaction is open, with ``refuse_open``.
        :raises TwoPhaseCommitUnavailableError: if the cluster has no two-phase commit, or does not grant it to this
            client.
        :raises ConfigurationError: if the cluster does not speak TV2, or refuses TLS or SASL.
        """
        self._enter("init_transactions()")
        self._wait(self._engine.init_transactions, keep_prepared_txn=keep_prepared_txn, refuse_open=refuse_open)

    def begin_transaction(self) -> None:
        """Begin a transaction. Local: no request is sent."""
        self._begin()

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: HeadersGiven | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Add a record to the transaction. Waits only while the buffer is full.

        :param partition: -1 lets the partitioner choose.
        :param timestamp: milliseconds since the epoch; 0 is now.
        :param on_delivery: a later call of this producer calls ``on_delivery(error, record)`` once the record is
            acknowledged or given up. It may call produce(), and no other method. Must not be a coroutine function.
        :param callback: another name of ``on_delivery``, as in confluent-kafka.
        :raises TypeError: if an argument has a wrong type. The record is not in the transaction, and the transaction is
            unharmed.
        :raises ValueError: if an argument has a value that no record can have; otherwise as TypeError.
        :raises PrepareFailedError: if the buffer stayed full for delivery.timeout.ms, or the transaction failed
            meanwhile.
        :raises KafkaRefusedError: if the record is larger than message.max.bytes (MESSAGE_TOO_LARGE), or no topic can
            have this name (INVALID_TOPIC_EXCEPTION). Abort.
        """
        if callback is not None:
            on_delivery = one_callback(on_delivery, callback)
        if self._process != os.getpid():
            self._check_process("produce()")
        self._add((OutgoingRecord(topic, value, key, partition, timestamp, headers, on_delivery),))

    def produce_record(self, record: OutgoingRecord) -> None:
        """As :meth:`produce`."""
        if self._process != os.getpid():
            self._check_process("produce()")
        self._add((record,))

    def produce_many(self, records: Iterable[OutgoingRecord]) -> None:
        """As :meth:`produce_record` for one record after the other, but faster."""
        self._check_process("produce()")
        self._add(list(records))

    def _add(self, records: Sequence[OutgoingRecord]) -> None:
        taken, timestamp_ms = 0, self._time_ns() // 1_000_000
        try:
            while taken < len(records):
                taken += self._engine.produce_many(records, taken, timestamp_ms, self._monotonic())
                if self._engine.has_news:
                    self._driver.pump()
                    self._report()
                elif taken < len(records):
                    self._wait(self._engine.room)  # delivery callbacks that produce may have filled the buffer again
        except BaseException as error:
            self._mark_abortable("produce()", error)
            raise

    def produce_at_once(self, record: OutgoingRecord) -> bool:
        """As :meth:`produce_record`, if that would neither wait, nor send or receive, nor call a delivery callback.
        Made for the thread of an event loop.

        :returns: False if that would do one of these: nothing was added. Then call produce_record() in another thread.
        """
        if self._engine.has_news or self._engine.has_reports:
            return False
        self._check_process("produce()")
        try:
            return self._engine.produce(record, self._time_ns() // 1_000_000, self._monotonic())
        except BaseException as error:
            self._mark_abortable("produce()", error)
            raise

    def send_offsets_to_transaction(self, positions: Iterable[Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447).

        :param positions: the next offset to read of each partition, as confluent_kafka.TopicPartition or a similar
            object. Positions without an offset, as for a partition that was not read, are left out.
        :param group_metadata: the result of the consumer's ``consumer_group_metadata()``, or the group's name.
        :raises KafkaRefusedError: if the group has moved on (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION), or there is no
            such topic. Abort.
        """
        self._enter("send_offsets_to_transaction()")
        self._wait(self._engine.send_offsets_to_transaction, offsets_of(positions), member_of(group_metadata))

    def poll(self, timeout: float = 0.0) -> int:
        """Send and receive without waiting, and call the delivery callbacks that are due; return how many.

        If the transaction or the producer has failed, poll() does not raise: the next verb does, as with
        confluent-kafka.

        :param timeout: seconds to wait for a callback while a record is not acknowledged; None and -1 mean for ever.
            Waiting sends the gathered records, unless they linger (linger.ms).
        :raises InvalidTransactionStateError: if the producer is closed.
        """
        before = self._reported
        if self._is_driven():
            self._driver.pump()
        self._report()
        if timeout != 0 and self._reported == before and self._can_wait_for_a_report:
            self._wait(self._engine.await_report, until=self._deadline_of(timeout))
        return self._reported - before

    def send_records(self) -> None:
        """Send every record of the transaction, as far as that needs no waiting. A later verb waits for the answers, so
        that other work can be done meanwhile. Calls no delivery callback.

        :raises DualWriteError: the error that has ended the transaction meanwhile. Abort.
        """
        self._enter("send_records()")
        try:
            self._engine.send_records()
            self._driver.pump()
        except BaseException as error:
            self._mark_abortable("send_records()", error, InvalidTransactionStateError)
            raise

    def flush(self, timeout: float | None = None) -> int:
        """Send every record of the transaction, and wait until all are acknowledged; return how many are not. This
        covers records that delivery callbacks produce, as in prepare and commit.

        :param timeout: seconds; None and -1 mean until delivery.timeout.ms.
        :raises DualWriteError: if a record was not acknowledged. Abort.
        """
        self._enter("flush()")
        self._flush("flush()", self._deadline_of(timeout))
        return len(self)

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and return the state that names the transaction. Every record is acknowledged then. The state is empty
        if the transaction is. Afterwards only complete, commit and abort are allowed.

        Without two-phase commit the transaction may time out while it is prepared; KIP-939 refuses the call there
        (docs/decisions/0022).

        :raises PrepareFailedError: if a record was not acknowledged. Abort, and run the unit of work again.
        :raises KafkaRefusedError: if the brokers will never accept a record.
        :raises FencedError: if another producer has taken over.
        """
        self._enter("prepare_transaction()")
        if self._engine.has_callbacks and self._engine.state is ProducerState.IN_TRANSACTION:
            self._flush("prepare_transaction()")
        prepared: PreparedTxnState = self._wait(self._engine.prepare_transaction)
        return prepared

    def complete_transaction(self, state: PreparedTxnState) -> TransactionResult:
        """Commit the open transaction if ``state`` names it, abort it otherwise. Allowed only after
        prepare_transaction() or init_transactions(keep_prepared_txn=True). If no transaction is open, the call
        succeeds: an earlier EndTxn was carried out, and its answer was lost (apache/kafka PR 20039).

        :raises TypeError: if ``state`` is not a PreparedTxnState: make one from the stored text,
            ``PreparedTxnState(text)``.
        """
        self._enter("complete_transaction()")
        require_prepared_state(state)
        if self._is_anchored(state):
            state = self._look_up_anchor(state)
        ended: TransactionResult = self._wait(self._engine.complete_transaction, PreparedTxnState(state.producer))
        return ended

    def commit_transaction(self) -> TransactionResult:
        """Flush, and commit.

        :raises AnswerLostError: if no answer came: the outcome is unknown. Call close(), and recover.
        """
        self._enter("commit_transaction()")
        if self._engine.has_callbacks and self._engine.state is ProducerState.IN_TRANSACTION:
            self._flush("commit_transaction()")  # a callback that raises does so before the transaction is decided
        ended: TransactionResult = self._wait(self._engine.commit_transaction)
        return ended

    def send_commit(self) -> None:
        """Like :meth:`commit_transaction`, but return as soon as the request is sent. Until :meth:`collect_commit` has
        returned True, every other verb but close() is refused. Waits only for a coordinator without a connection.

        :raises AnswerLostError: if it waited in vain: the outcome is unknown. Call close(), and recover.
        """
        self._enter("send_commit()")
        if self._engine.has_callbacks and self._engine.state is ProducerState.IN_TRANSACTION:
            self._flush("send_commit()")
        before, operation = self._engine.under_way, None
        try:
            operation = self._begin_verb(self._engine.commit_transaction)
            self._driver.pump()
            if not operation.is_done and not self._engine.awaits_coordinator:
                self._driver.wait(operation)
        except BaseException:
            self._after(operation, before)
            raise
        self._commit = operation

    @property
    def is_committing(self) -> bool:
        """True from :meth:`send_commit` until its answer was collected."""
        return self._commit is not None

    def collect_commit(self, *, wait: bool) -> bool:
        """Collect the answer to :meth:`send_commit`. True once the transaction is committed, or if none was sent.

        :param wait: False to look only whether the answer has arrived.
        :raises AnswerLostError: if no answer came in delivery.timeout.ms, or the call was interrupted: the outcome is
            unknown. Call close(), and recover.
        """
        self._enter("collect_commit()")
        operation = self._commit
        if operation is None:
            return True
        if not operation.is_done:
            if wait:
                self._wait(lambda now: operation)
            else:
                self._driver.pump()
                if not operation.is_done:
                    return False
        operation.outcome()
        self._commit = None
        return True

    def abort_transaction(self) -> TransactionResult:
        """Drop the records that were not sent, and abort. An error leaves the outcome unknown: call close(), and
        recover. But the error of a delivery callback is raised after the transaction was aborted: the state is READY
        then."""
        self._enter("abort_transaction()")
        ended: TransactionResult = self._wait(self._engine.abort_transaction)
        return ended

    def close(self) -> None:
        """Close every connection, and report unacknowledged records to their delivery callbacks. Does not end an open
        transaction. Safe to call twice."""
        is_step_error = self._close_engine()
        self._driver.close()
        if is_step_error:
            self._report_all()

    def _flush(self, verb: str, until: float = NEVER) -> None:
        """Flush the records of ``verb``, and then those that delivery callbacks have produced."""
        try:
            self._wait(self._engine.flush, until=until)
            while len(self) and self._monotonic() < until:
                self._wait(self._engine.flush, until=until)
        except BaseException as error:
            self._mark_abortable(verb, error, *REFUSED)
            raise

    def _wait(self, verb: Callable[..., Operation], *arguments: Any, **options: Any) -> Any:
        before, operation = self._engine.under_way, None
        try:
            operation = self._begin_verb(verb, *arguments, **options)
            return self._driver.wait(operation)
        finally:
            self._after(operation, before)
