"""The native producer without its sockets: verbs and events in, commands out.

Its parts are pure as well: the transaction's state, the sender of records with their accumulator, the requests to
coordinators, the metadata, and the states of connections. A unit of work with one record takes two round trips, Produce
and EndTxn; its partition and its group join the transaction by being written to (KIP-890 part 2).
"""

from collections.abc import Callable, Sequence
from functools import partial

from dualwrite.client.encoding.batches import Headers, Record
from dualwrite.client.engine.accumulator import OnDelivery
from dualwrite.client.engine.connection_states import ConnectionStates, InFlight
from dualwrite.client.engine.contract import NEVER, Command, EngineSettings, Operation
from dualwrite.client.engine.coordinator_calls import CommittedOffset, GroupMember, end_call, init_call, offsets_call
from dualwrite.client.engine.coordinator_requests import CoordinatorRequests
from dualwrite.client.engine.pending_operation import PendingOperation
from dualwrite.client.engine.producer_metadata import ProducerMetadata
from dualwrite.client.engine.sender import Report, Sender
from dualwrite.client.engine.transaction_state import TransactionManager, TransactionResult, require_unanchored
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import Cost, error_of_record
from dualwrite.client.terms.verbs import UNFINISHED, ProducerState, Verb, init_verb
from dualwrite.client.terms.versions import TRANSACTION_VERSION, TV2, Versions
from dualwrite.errors import (
    AnswerLostError,
    ConfigurationError,
    DualWriteError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import NO_PRODUCER, PreparedTxnState, ProducerIdentity, is_legal_topic
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

_RECORD_OVERHEAD = 70
"""The least number of bytes of a batch of one record, beside the record's key, value and headers."""


class Engine:
    """One transactional producer. Not thread-safe. ``contract.py`` describes how a driver uses it.

    :param settings: the engine's settings, with the brokers to begin with.
    :param randrange: the source of randomness; ``random.randrange`` outside of tests.
    """

    def __init__(self, settings: EngineSettings, randrange: Callable[[int], int]) -> None:
        self._settings, self._randrange = settings, randrange
        self.transaction = self._machine = TransactionManager()
        """The state of the transaction, for reading."""
        self._running: PendingOperation | None = None
        self._stepped_at = 0.0
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        """Start without connections, requests, records or metadata; only the bootstrap brokers are known."""
        settings, machine = self._settings, self._machine
        self._peers = ConnectionStates(settings)
        self._directory = ProducerMetadata(settings, self._randrange)
        self._traffic = Sender(settings, machine, self._peers, self._directory, self._doom)
        self._caller = CoordinatorRequests(settings, machine, self._peers, self._directory, self._call_failed)

    # --- verbs

    @property
    def state(self) -> ProducerState:
        """The producer's current state; while a verb is in progress, the state to which its failure would lead."""
        return self._machine.state

    @property
    def kept(self) -> ProducerIdentity:
        """The identity of the predecessor's transaction that was kept; falsy if there is none."""
        return self._machine.kept

    @property
    def has_news(self) -> bool:
        """True if :meth:`produce` has left a batch that can be sent before the records are flushed."""
        return self._traffic.has_news

    @property
    def has_reports(self) -> bool:
        """True if a delivery callback is due."""
        return bool(self._traffic.reports)

    @property
    def unacknowledged(self) -> int:
        """How many records of the transaction are not acknowledged yet."""
        return self._traffic.unacknowledged

    @property
    def under_way(self) -> Operation | None:
        """The operation of the verb in progress; None if there is none."""
        return None if self._running is None else self._running.operation

    def init_transactions(self, now: float, keep_prepared_txn: bool = False) -> Operation:
        """Fence every earlier producer of the transactional id, and abort or keep its open transaction (KIP-939).
        Result: None."""
        self._start(init_verb(keep_prepared_txn))
        initialized = partial(self._initialized, keep_prepared_txn, now)
        self._caller.call(init_call(self._settings, keep_prepared_txn, initialized), now)
        return self._run().operation

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is sent."""
        self._start(Verb.BEGIN)
        self._machine.begun()
        self._directory.renew_choices()
        self._machine.finish()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Headers,
        on_delivery: OnDelivery | None,
        now: float,
    ) -> bool:
        """Add a record to the transaction; ``partition`` -1 lets the partitioner choose.

        :returns: False if the buffer is full: the record was not added. Wait for :meth:`room`, and call again.
        :raises DualWriteError: the error that has ended the transaction meanwhile.
        """
        return self.produce_many(topic, ((value, key, partition, headers),), 0, timestamp_ms, on_delivery, now) == 1

    def produce_many(
        self,
        topic: str,
        records: Sequence[Record],
        begin: int,
        timestamp_ms: int,
        on_delivery: OnDelivery | None,
        now: float,
    ) -> int:
        """As :meth:`produce` for one record of ``records`` after the other, from ``begin`` on, until the buffer is full
        or a batch can be sent; return how many were added."""
        if self._machine.state is not ProducerState.IN_TRANSACTION:
            self._require_producing("produce()")
        if topic not in self._directory.topics and not (isinstance(topic, str) and is_legal_topic(topic)):
            what = f"record for topic {topic!r}: a name has 1 to 249 letters, digits, dots, underscores and hyphens"
            raise self._unfit(what, ErrorCode.INVALID_TOPIC_EXCEPTION)
        machine, traffic, at = self._machine, self._traffic, begin
        largest = self._settings.max_message_bytes - _RECORD_OVERHEAD
        while at < len(records) and not traffic.is_full:
            value, key, partition, headers = records[at]
            if len(value or b"") + len(key or b"") > largest:
                raise self._unfit(f"record for {topic}: over message.max.bytes", ErrorCode.MESSAGE_TOO_LARGE)
            machine.has_content = True
            traffic.append(topic, partition, key, value, headers, timestamp_ms, on_delivery, now)
            at += 1
            if traffic.has_news:
                break
        return at - begin

    def _unfit(self, what: str, code: int) -> DualWriteError:
        """The error of a record that every broker would refuse: the transaction can only be aborted."""
        error = error_of_record(what, code)
        self._doom(error, Cost.TRANSACTION)
        return error

    def room(self, now: float) -> Operation:
        """Wait until the buffer has room for another record. Result: None."""
        self._require_producing("produce()")
        running = self._run()
        running.wants_room = True
        self._traffic.flush(now)
        self._look_flushed(now)
        return running.operation

    def send_offsets_to_transaction(
        self, offsets: Sequence[CommittedOffset], member: GroupMember, now: float
    ) -> Operation:
        """Commit a consumer group's offsets as part of the transaction. Result: None.

        A group's offsets can be sent again only once no delayed copy of the first request can arrive: brokers tell two
        requests of one group apart only by their transaction.
        """
        self._start(Verb.SEND_OFFSETS)
        operation = self._run().operation
        if offsets and member.group_id in self._machine.stray_offsets:
            what = f"offsets of group {member.group_id}: some that were sent before may still be under way"
            self._doom(PrepareFailedError(f"{what}; abort"), Cost.TRANSACTION)
        elif offsets:
            self._machine.has_content = True
            identity = self._machine.identity
            call = offsets_call(self._settings, identity, offsets, member, lambda _answer: self._finish(None))
            self._caller.call(call, now)
        else:
            self._finish(None)
        return operation

    def flush(self, now: float, until: float = NEVER) -> Operation:
        """Send every record, and wait until all are acknowledged, or until the time ``until``. Result: None."""
        self._require_producing("flush()")
        operation = self._flush_then(lambda _now: self._end_operation(None), now)
        if self._running is not None:
            self._running.until = until
        return operation

    def await_report(self, now: float, until: float) -> Operation:
        """Wait until a delivery callback is due, or every record is acknowledged, or until the time ``until``. Sends
        the gathered records, unless they linger. Result: None."""
        self._refuse_a_second("poll()")
        running = self._run()
        running.wants_report, running.until = True, until
        self._look_flushed(now)
        return running.operation

    def prepare_transaction(self, now: float) -> Operation:
        """Flush, so that every record is acknowledged, and prepare. Result: the transaction's PreparedTxnState."""
        self._start(Verb.PREPARE)
        return self._flush_then(lambda _now: self._finish(self._machine.prepared), now)

    def commit_transaction(self, now: float) -> Operation:
        """Flush, and commit. Result: TransactionResult."""
        before = self._start(Verb.COMMIT)
        if before is not ProducerState.IN_TRANSACTION:
            return self._end(before, True, self._run(), now)
        self._machine.undecided()
        return self._flush_then(self._commit_flushed, now)

    def abort_transaction(self, now: float) -> Operation:
        """Drop the records that were not sent, and abort. Result: TransactionResult."""
        before = self._start(Verb.ABORT)
        return self._end(before, False, self._run(), now)

    def complete_transaction(self, state: PreparedTxnState, now: float) -> Operation:
        """Commit the open transaction if ``state`` names it, abort it otherwise. Result: TransactionResult.

        :param state: the caller must have looked up a state with an anchor, and give it without the anchor.
        :raises InvalidTransactionStateError: if it has an anchor, or if the verb is forbidden now.
        """
        require_unanchored(state)
        before = self._start(Verb.COMPLETE)
        return self._end(before, self._machine.commits(before, state), self._run(), now)

    def abandon(self) -> None:
        """Give up the verb in progress, as after an interrupt. The state becomes the one of its failure."""
        self._running = None
        self._caller.forget()

    def spoil(self, error: DualWriteError) -> None:
        """Mark the open transaction as one that can only be aborted, for a reason outside of the engine."""
        self._doom(error, Cost.TRANSACTION)

    def close(self) -> None:
        """Stop for good. Reports unacknowledged records as lost. Does not end the transaction."""
        error = KafkaUnavailableError(f"producer of {self._settings.transactional_id}: closed")
        self._doom(error, Cost.PRODUCER)
        self._machine.close()

    def take_reports(self) -> list[Report]:
        """The delivery callbacks that are due, with their arguments."""
        if not self._traffic.reports:
            return []
        reports, self._traffic.reports = self._traffic.reports, []
        return reports

    def put_back(self, reports: list[Report]) -> None:
        """Put back delivery callbacks that were taken and not called: they become due before all others."""
        self._traffic.reports[:0] = reports

    # --- events

    def step(self, now: float) -> list[Command]:
        """Return the commands that are due; see Drivable."""
        for endpoint, asked in self._peers.expire(now):
            self._gone(endpoint, asked, KafkaUnavailableError(f"broker {endpoint}: timed out"), now, is_broken=False)
        self._caller.step(now)
        running = self._running
        self._traffic.step(now, running is not None and self._sends_all(running))
        if running is not None and now >= running.until and running is self._running:
            self._end_operation(None)
        self._stepped_at = now
        return self._peers.take_commands()

    def wake_at(self) -> float | None:
        """When to call :meth:`step` again; see Drivable."""
        now = self._stepped_at
        wake_at = min(self._peers.wake_at(now), self._traffic.wake_at(now), self._caller.wake_at(now))
        if self._running is not None:
            wake_at = min(wake_at, self._running.until)
        return None if wake_at == NEVER else wake_at

    def opened(self, endpoint: Endpoint, versions: Versions, now: float) -> None:
        """Take in an opened connection; see Drivable. Refuses a cluster without TV2."""
        level = versions.features.get(TRANSACTION_VERSION, 0)
        if self._peers.opened(endpoint, versions, now) and level < TV2:
            error = ConfigurationError(
                f"broker {endpoint}: transaction.version is {level} in this cluster, and the native producer needs"
                f' {TV2} (KIP-890 part 2): use producer="librdkafka", or raise it with kafka-features.sh'
            )
            self._doom(error, Cost.PRODUCER)

    def answered(self, endpoint: Endpoint, tag: int, message: Message, now: float) -> None:
        """Take in an answer; see Drivable."""
        asked = self._peers.answered(endpoint, tag)
        if asked is None:
            return
        if asked.api_key is ApiKey.PRODUCE:
            self._traffic.told_produced(asked.about, message, now)
            self._look_flushed(now)
        elif asked.api_key is ApiKey.METADATA:
            self._traffic.told_metadata(message, now)
        elif asked.api_key is ApiKey.FIND_COORDINATOR:
            self._caller.told_coordinator(asked.about, message, now)
        else:
            self._caller.told(asked.about, message, now)

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> None:
        """Take in a lost connection; see Drivable."""
        self._gone(endpoint, self._peers.lost(endpoint, error, now), error, now)
        if not isinstance(error, KafkaUnavailableError):
            self._doom(error, Cost.PRODUCER)

    def interrupted(self) -> None:
        """Fail the verb in progress; see Drivable. Only the state machine is kept, whose state during a verb is that of
        its failure: an open transaction can be aborted. Everything else may be half done and starts afresh."""
        machine = self._machine
        kind = AnswerLostError if machine.state is ProducerState.FAILED else PrepareFailedError
        error = kind(f"producer of {self._settings.transactional_id}: interrupted in the middle of a call")
        if machine.failure is None and machine.state in UNFINISHED:
            machine.doom(error, Cost.TRANSACTION)
        self._traffic.drop(error)
        reports = self._traffic.reports
        self._begin_afresh()
        self._traffic.reports = reports
        self._fail_running(error)

    # --- operations

    def _refuse_a_second(self, called: str) -> None:
        if self._running is not None:
            raise InvalidTransactionStateError(f"{called}: another call of the producer is under way")

    def _require_producing(self, called: str) -> None:
        self._refuse_a_second(called)
        self._machine.require(Verb.PRODUCE, called)

    def _sends_all(self, running: PendingOperation) -> bool:
        is_unasked = running.wants_report and self._settings.linger is None
        return running.wants_room or running.flushed is not None or is_unasked

    def _start(self, verb: Verb) -> ProducerState:
        self._refuse_a_second(verb.value)
        return self._machine.start(verb)

    def _run(self) -> PendingOperation:
        self._running = PendingOperation()
        return self._running

    def _finish(self, result: object) -> None:
        """End the verb in progress with success."""
        self._machine.finish()
        self._end_operation(result)

    def _end_operation(self, result: object) -> None:
        running = self._running
        assert running is not None
        running.operation.succeed(result)  # first: the handler of an interrupt here must find the result
        self._running = None

    def _doom(self, error: DualWriteError, cost: Cost) -> None:
        """Fail the transaction or the producer, and with it the verb in progress."""
        self._machine.doom(error, cost)
        self._traffic.drop(error)
        if self._machine.state is ProducerState.FAILED:
            self._directory.want_nothing()
        self._caller.forget()
        self._fail_running(error)

    def _fail_running(self, error: DualWriteError) -> None:
        if self._running is not None:
            self._running.fail(error)
            self._running = None

    def _call_failed(self, error: DualWriteError, cost: Cost) -> None:
        """A coordinator has refused a call for good."""
        if cost is Cost.TRANSACTION:
            self._machine.undecided()
        self._doom(error, cost)

    def _flush_then(self, flushed: Callable[[float], None], now: float) -> Operation:
        running = self._run()
        running.flushed = flushed
        self._traffic.flush(now)
        self._look_flushed(now)
        return running.operation

    def _look_flushed(self, now: float) -> None:
        running = self._running
        if running is None:
            return
        if (running.wants_room and not self._traffic.is_full) or (
            running.wants_report and (self._traffic.reports or self._traffic.is_empty)
        ):
            self._end_operation(None)
        elif running.flushed is not None and self._traffic.is_empty:
            flushed, running.flushed = running.flushed, None
            flushed(now)

    # --- the end of a transaction

    def _commit_flushed(self, now: float) -> None:
        assert self._running is not None
        self._end(ProducerState.IN_TRANSACTION, True, self._running, now)

    def _end(self, before: ProducerState, commits: bool, running: PendingOperation, now: float) -> Operation:
        machine = self._machine
        if not commits:
            self._traffic.drop(machine.failure or PrepareFailedError("the transaction was aborted"))
        is_open = bool(machine.kept) if before is ProducerState.KEPT else machine.may_be_open
        if is_open:
            machine.deciding()
            answered = partial(self._ended, commits)
            self._caller.call(end_call(self._settings, machine.identity, commits, answered), now)
        else:
            machine.ended(NO_PRODUCER)
            self._finish(TransactionResult.NOTHING)
        return running.operation

    def _ended(self, commits: bool, answer: Message) -> None:
        self._traffic.drop(None)
        self._machine.ended(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        self._finish(TransactionResult.COMMITTED if commits else TransactionResult.ABORTED)

    def _initialized(self, keeps: bool, now: float, answer: Message) -> None:
        kept = ProducerIdentity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        self._machine.initialized(ProducerIdentity(answer.producer_id, answer.producer_epoch), kept)
        if kept and not keeps:
            self._caller.call(end_call(self._settings, self._machine.identity, False, self._predecessor_aborted), now)
        else:
            self._finish(None)

    def _predecessor_aborted(self, answer: Message) -> None:
        self._machine.ended(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        self._finish(None)

    # --- connections

    def _gone(
        self, endpoint: Endpoint, asked: list[InFlight], error: DualWriteError, now: float, is_broken: bool = True
    ) -> None:
        self._directory.is_unreachable(endpoint)
        self._caller.lost(asked, str(error), now)
        self._traffic.lost(asked, str(error), now, is_broken)
