"""The native producer without its sockets: verbs and events in, commands out.

Its parts are pure as well: the transaction's state, the sender of records with their accumulator, the requests to
coordinators, the metadata, and the states of connections. A unit of work with one record takes two round trips, Produce
and EndTxn; its partition and its group join the transaction by being written to (KIP-890 part 2).
"""

from collections.abc import Callable, Sequence

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine.connection_states import ConnectionStates, InFlight
from dualwrite.client.engine.contract import NEVER, Command, Operation
from dualwrite.client.engine.coordinator_request import offsets_request
from dualwrite.client.engine.coordinator_sender import CoordinatorSender
from dualwrite.client.engine.pending_operation import PendingOperation, VerbInProgress
from dualwrite.client.engine.producer_metadata import ProducerMetadata
from dualwrite.client.engine.sender import Report, Sender
from dualwrite.client.engine.transaction_requests import TransactionRequests
from dualwrite.client.engine.transaction_state import TransactionManager, require_unanchored
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import ErrorClass
from dualwrite.client.terms.verbs import UNFINISHED, ProducerState, Verb, init_verb
from dualwrite.client.terms.versions import TRANSACTION_VERSION, TV2, Versions
from dualwrite.errors import (
    AnswerLostError,
    ConfigurationError,
    DualWriteError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey, Message


class Engine:
    """One transactional producer. Not thread-safe. ``contract.py`` describes how a driver uses it.

    :param settings: the engine's settings, with the brokers to begin with.
    :param randrange: the source of randomness; ``random.randrange`` outside of tests.
    """

    def __init__(self, settings: ProducerSettings, randrange: Callable[[int], int]) -> None:
        self._settings, self._randrange = settings, randrange
        self.transaction = self._machine = TransactionManager()
        """The state of the transaction, for reading."""
        self._verb = VerbInProgress(self._machine)
        self._stepped_at = 0.0
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        """Start without connections, requests, records or metadata; only the bootstrap brokers are known."""
        settings, machine = self._settings, self._machine
        self._connections = ConnectionStates(settings)
        self.metadata = ProducerMetadata(settings, self._randrange)
        """The topics, leaders and coordinators that are known."""
        self._sender = Sender(settings, machine, self._connections, self.metadata, self._fail_transaction)
        self._coordinator_sender = CoordinatorSender(
            settings, machine, self._connections, self.metadata, self._call_failed
        )
        self._calls = TransactionRequests(
            settings, machine, self._verb, self._sender, self._coordinator_sender, self._call_failed
        )

    # --- verbs

    @property
    def state(self) -> ProducerState:
        """The producer's current state; while a verb is in progress, the state to which its failure would lead."""
        return self._machine.state

    @property
    def ongoing(self) -> ProducerIdentity:
        """The identity of the predecessor's transaction that was kept; falsy if there is none."""
        return self._machine.ongoing

    @property
    def has_news(self) -> bool:
        """True if :meth:`produce` has left a batch that can be sent before the records are flushed."""
        return self._sender.has_news

    @property
    def has_reports(self) -> bool:
        """True if a delivery callback is due."""
        return bool(self._sender.reports)

    @property
    def has_callbacks(self) -> bool:
        """True if a delivery callback was or will be called in this transaction, which may produce another record."""
        return self._settings.on_delivery is not None or self._sender.has_callbacks

    @property
    def unacknowledged(self) -> int:
        """How many records of the transaction are not acknowledged yet."""
        return self._sender.unacknowledged

    @property
    def under_way(self) -> Operation | None:
        """The operation of the verb in progress; None if there is none."""
        return None if self._verb.pending is None else self._verb.pending.operation

    @property
    def awaits_coordinator(self) -> bool:
        """True if a request was sent to a coordinator, and is not answered."""
        return self._coordinator_sender.is_asked

    def init_transactions(self, now: float, keep_prepared_txn: bool = False, refuse_open: bool = False) -> Operation:
        """Fence every earlier producer of the transactional id, and abort or keep its open transaction (KIP-939).
        Result: None.

        :param refuse_open: fail with FencedError if a transaction is open, and keep it.
        """
        self._verb.start(init_verb(keep_prepared_txn))
        return self._calls.init(keep_prepared_txn, refuse_open, now)

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is sent."""
        self._verb.start(Verb.BEGIN)
        self._machine.begun()
        self.metadata.renew_choices()
        self._sender.has_callbacks = self.has_reports
        self._machine.finish()

    def produce(self, record: OutgoingRecord, timestamp_ms: int, now: float) -> bool:
        """Add a record to the transaction.

        :param timestamp_ms: its timestamp if it has none of its own.
        :returns: False if the buffer is full: the record was not added. Wait for :meth:`room`, and call again.
        :raises DualWriteError: the error that has ended the transaction meanwhile.
        """
        return self.produce_many((record,), 0, timestamp_ms, now) == 1

    def produce_many(self, records: Sequence[OutgoingRecord], begin: int, timestamp_ms: int, now: float) -> int:
        """As :meth:`produce` for one record of ``records`` after the other, from ``begin`` on, until the buffer is full
        or a batch can be sent; return how many were added."""
        if self._machine.state is not ProducerState.IN_TRANSACTION:
            self._verb.require_producing("produce()")
        sender, at = self._sender, begin
        while at < len(records) and not sender.is_full:
            sender.append(records[at], timestamp_ms, now)
            at += 1
            if sender.has_news:
                break
        return at - begin

    def room(self, now: float) -> Operation:
        """Wait until the buffer has room for another record. Result: None."""
        self._verb.require_producing("produce()")
        pending = self._verb.wait()
        pending.wants_room = True
        self._sender.flush(now)
        self._verb.look(self._sender, now)
        return pending.operation

    def send_offsets_to_transaction(
        self, offsets: Sequence[CommittedOffset], member: GroupMember, now: float
    ) -> Operation:
        """Commit a consumer group's offsets as part of the transaction. Result: None.

        A group's offsets can be sent again only once no delayed copy of the first request can arrive: brokers tell two
        requests of one group apart only by their transaction.
        """
        self._verb.start(Verb.SEND_OFFSETS)
        operation = self._verb.wait().operation
        if offsets and member.group_id in self._machine.stray_offsets:
            reason = f"offsets of group {member.group_id}: some that were sent before may still be under way"
            self._fail_transaction(PrepareFailedError(f"{reason}; abort"), ErrorClass.ABORTABLE)
        elif offsets:
            self._machine.has_content = True
            identity = self._machine.identity
            call = offsets_request(self._settings, identity, offsets, member, lambda _answer: self._verb.finish(None))
            self._coordinator_sender.call(call, now)
        else:
            self._verb.finish(None)
        return operation

    def send_records(self) -> None:
        """Make every record due to be sent at the next step. delivery.timeout.ms begins when a verb waits for it."""
        self._verb.require_producing("send_records()")
        self._sender.send_early()

    def flush(self, now: float, until: float = NEVER) -> Operation:
        """Send every record, and wait until all are acknowledged, or until the time ``until``. Result: None."""
        self._verb.require_producing("flush()")
        operation = self._verb.wait_until_flushed(lambda _now: self._verb.end(None), self._sender, now)
        if self._verb.pending is not None:
            self._verb.pending.until = until
        return operation

    def await_report(self, now: float, until: float) -> Operation:
        """Wait until a delivery callback is due, or every record is acknowledged, or until the time ``until``. Sends
        the gathered records, unless they linger. Result: None."""
        self._verb.refuse_a_second("poll()")
        self._sender.begin_time(now)
        pending = self._verb.wait()
        pending.wants_report, pending.until = True, until
        self._verb.look(self._sender, now)
        return pending.operation

    def prepare_transaction(self, now: float) -> Operation:
        """Flush, so that every record is acknowledged, and prepare. Result: the transaction's PreparedTxnState."""
        self._verb.start(Verb.PREPARE)
        return self._verb.wait_until_flushed(self._prepare_flushed, self._sender, now)

    def commit_transaction(self, now: float) -> Operation:
        """Flush, and commit. Result: TransactionResult."""
        before = self._verb.start(Verb.COMMIT)
        if before is not ProducerState.IN_TRANSACTION:
            return self._calls.end(before, True, now)
        self._machine.undecided()
        return self._verb.wait_until_flushed(self._commit_flushed, self._sender, now)

    def abort_transaction(self, now: float) -> Operation:
        """Drop the records that were not sent, and abort. Result: TransactionResult."""
        before = self._verb.start(Verb.ABORT)
        return self._calls.end(before, False, now)

    def complete_transaction(self, state: PreparedTxnState, now: float) -> Operation:
        """Commit the open transaction if ``state`` names it, abort it otherwise. Result: TransactionResult.

        :param state: the caller must have looked up a state with an anchor, and give it without the anchor.
        :raises InvalidTransactionStateError: if it has an anchor, or if the verb is forbidden now.
        """
        require_unanchored(state)
        before = self._verb.start(Verb.COMPLETE)
        return self._calls.end(before, self._machine.commits(before, state), now)

    def abandon(self) -> None:
        """Give up the verb in progress, as after an interrupt. The state becomes the one of its failure, and its
        operation has failed, for a caller that still looks at it."""
        self._coordinator_sender.forget()
        self._verb.fail(self._interruption())

    def mark_abortable(self, error: DualWriteError) -> None:
        """Mark the open transaction as one that can only be aborted, for a reason outside of the engine."""
        self._fail_transaction(error, ErrorClass.ABORTABLE)

    def close(self) -> None:
        """Stop for good. Reports unacknowledged records as lost. Does not end the transaction."""
        error = KafkaUnavailableError(f"producer of {self._settings.transactional_id}: closed")
        self._fail_transaction(error, ErrorClass.FATAL)
        self._machine.close()

    def take_reports(self) -> list[Report]:
        """The delivery callbacks that are due, with their arguments."""
        reports, self._sender.reports = self._sender.reports, []
        return reports

    def put_back(self, reports: list[Report]) -> None:
        """Put back delivery callbacks that were taken and not called: they become due before all others."""
        self._sender.reports[:0] = reports

    # --- events

    def step(self, now: float) -> list[Command]:
        """Return the commands that are due; see Drivable."""
        for endpoint, asked in self._connections.expire(now):
            self._gone(endpoint, asked, KafkaUnavailableError(f"broker {endpoint}: timed out"), now, is_broken=False)
        self._coordinator_sender.step(now)
        pending = self._verb.pending
        self._sender.step(now, pending is not None and self._sends_all(pending))
        if pending is not None and now >= pending.until and pending is self._verb.pending:
            self._verb.end(None)
        self._stepped_at = now
        return self._connections.take_commands()

    def wake_at(self) -> float | None:
        """When to call :meth:`step` again; see Drivable."""
        now = self._stepped_at
        wake_at = min(self._connections.wake_at(now), self._sender.wake_at(now), self._coordinator_sender.wake_at(now))
        if self._verb.pending is not None:
            wake_at = min(wake_at, self._verb.pending.until)
        return None if wake_at == NEVER else wake_at

    def opened(self, endpoint: Endpoint, versions: Versions, now: float) -> None:
        """Take in an opened connection; see Drivable. Refuses a cluster without TV2."""
        level = versions.features.get(TRANSACTION_VERSION, 0)
        if self._connections.opened(endpoint, versions, now) and level < TV2:
            error = ConfigurationError(
                f"broker {endpoint}: transaction.version is {level} in this cluster, and the native producer needs"
                f' {TV2} (KIP-890 part 2): use producer="librdkafka", or raise it with kafka-features.sh'
            )
            self._fail_transaction(error, ErrorClass.FATAL)

    def answered(self, endpoint: Endpoint, tag: int, message: Message, now: float) -> None:
        """Take in an answer; see Drivable."""
        asked = self._connections.answered(endpoint, tag)
        if asked is None:
            return
        if asked.api_key is ApiKey.PRODUCE:
            self._sender.produce_answered(asked.about, message, now)
            self._verb.look(self._sender, now)
        elif asked.api_key is ApiKey.METADATA:
            self._sender.metadata_answered(message, now)
        elif asked.api_key is ApiKey.FIND_COORDINATOR:
            self._coordinator_sender.coordinator_answered(asked.about, message, now)
        else:
            self._coordinator_sender.answered(asked.about, message, now)

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> None:
        """Take in a lost connection; see Drivable."""
        self._gone(endpoint, self._connections.lost(endpoint, error, now), error, now)
        if not isinstance(error, KafkaUnavailableError):
            self._fail_transaction(error, ErrorClass.FATAL)

    def interrupted(self) -> None:
        """Fail the verb in progress; see Drivable. Only the state machine is kept, whose state during a verb is that of
        its failure: an open transaction can be aborted. Everything else may be half done and starts afresh."""
        machine, error = self._machine, self._interruption()
        if machine.failure is None and machine.state in UNFINISHED:
            machine.fail(error, ErrorClass.ABORTABLE)
        self._sender.drop(error)
        reports = self._sender.reports
        self._begin_afresh()
        self._sender.reports = reports
        self._verb.fail(error)

    # --- operations

    def _interruption(self) -> DualWriteError:
        kind = AnswerLostError if self._machine.state is ProducerState.FAILED else PrepareFailedError
        return kind(f"producer of {self._settings.transactional_id}: interrupted in the middle of a call")

    def _sends_all(self, pending: PendingOperation) -> bool:
        is_unasked = pending.wants_report and self._settings.linger is None
        return pending.wants_room or pending.flushed is not None or is_unasked

    def _fail_transaction(self, error: DualWriteError, error_class: ErrorClass) -> None:
        """Fail the transaction or the producer, and with it the verb in progress."""
        self._machine.fail(error, error_class)
        self._sender.drop(error)
        if self._machine.state is ProducerState.FAILED:
            self.metadata.want_nothing()
        self._coordinator_sender.forget()
        self._verb.fail(error)

    def _call_failed(self, error: DualWriteError, error_class: ErrorClass) -> None:
        """A coordinator has refused a call for good."""
        if error_class is ErrorClass.ABORTABLE:
            self._machine.undecided()
        self._fail_transaction(error, error_class)

    def _prepare_flushed(self, _now: float) -> None:
        self._verb.finish(self._machine.prepared)

    def _commit_flushed(self, now: float) -> None:
        self._calls.end(ProducerState.IN_TRANSACTION, True, now)

    # --- connections

    def _gone(
        self, endpoint: Endpoint, asked: list[InFlight], error: DualWriteError, now: float, is_broken: bool = True
    ) -> None:
        self.metadata.is_unreachable(endpoint)
        self._coordinator_sender.lost(asked, str(error), now)
        self._sender.lost(asked, str(error), now, is_broken)
