"""The transaction coordinator's rules (KIP-98, KIP-360, KIP-890 part 2, KIP-939): a command becomes a decision.

KIP-939 needs two identities. ``producer`` is the identity of the ongoing transaction's records, kept for its markers.
``client`` is the identity that the current client must use; every InitProducerId changes it. No transaction begins at
epoch 32767, which is reserved for the markers that fence it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from dualwrite.broker.core.commands import (
    AddPartitions,
    Command,
    Decision,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    Reply,
    TimeOut,
    VerifyPartitions,
    WriteMarkers,
)
from dualwrite.broker.core.transactions import TransactionTable, has_timed_out
from dualwrite.broker.facts.transactions import (
    LONGEST_TRANSACTIONAL_ID,
    NO_TIMEOUT,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import (
    LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS,
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER,
    TWO_PHASE_TIMEOUTS_MS,
    ProducerIdentity,
)
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode

# Python 3.11 looks the members of an enum up slowly.
_EMPTY, _ONGOING = TransactionStatus.EMPTY, TransactionStatus.ONGOING
_TV1, _TV2 = TransactionVersion.TV1, TransactionVersion.TV2
_NONE = ErrorCode.NONE

_PREPARED = {Marker.COMMIT: TransactionStatus.PREPARE_COMMIT, Marker.ABORT: TransactionStatus.PREPARE_ABORT}
_COMPLETED = {Marker.COMMIT: TransactionStatus.COMPLETE_COMMIT, Marker.ABORT: TransactionStatus.COMPLETE_ABORT}
_OWN_COMMANDS = (TimeOut, Expire, MarkersWritten)
_ACCEPTED = Decision(Reply())
_MARKER_OF = {status: marker for statuses in (_PREPARED, _COMPLETED) for marker, status in statuses.items()}


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The broker settings that the rules depend on, under Kafka's names and in its units."""

    two_phase_commit_enable: bool = True
    """transaction.two.phase.commit.enable"""
    max_timeout_ms: int = 900_000
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 604_800_000
    """transactional.id.expiration.ms"""
    log_segment_bytes: int = 4_194_304
    """transaction.state.log.segment.bytes"""
    partition_verification_enable: bool = True
    """transaction.partition.verification.enable; if off, a client of TV1 can begin a transaction that hangs."""


class Moment(NamedTuple):
    """The outside input of a decision: the wall clock's time in milliseconds, an unused producer id, and how long the
    transaction of the command has been open, in milliseconds on a clock that does not jump."""

    now_ms: int
    fresh_producer_id: int
    open_ms: int = 0


def asks_for_two_phase_commit(enable_2pc: bool, timeout_ms: int, settings: TransactionSettings) -> bool:
    """True if an InitProducerId asks for two-phase commit: by its flag or, where two-phase commit is on, by one of the
    two timeouts that stand for it. Where it is off, these are timeouts like any other, as in Kafka."""
    return enable_2pc or (settings.two_phase_commit_enable and timeout_ms in TWO_PHASE_TIMEOUTS_MS)


def decide(table: TransactionTable, command: Command, moment: Moment, settings: TransactionSettings) -> Decision:
    """Decide ``command`` in the state ``table``. Changes nothing."""
    entry = table.entries.get(command.transactional_id)
    if not command.transactional_id:
        return _refuse(ErrorCode.INVALID_REQUEST)
    if isinstance(command, InitProducerId):
        return _init_producer_id(entry, command, moment, settings)
    if isinstance(command, _OWN_COMMANDS):
        return _house_keeping(entry, command, moment, settings)
    if isinstance(command, VerifyPartitions) and not _is_verified(table, command, settings):
        return _ACCEPTED
    if entry is None or not command.producer:
        return _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if isinstance(command, VerifyPartitions):
        return _verify_partitions(entry, command)
    if entry.is_ended:
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if isinstance(command, AddPartitions):
        return _add_partitions(entry, command, moment)
    return _end_transaction(entry, command, moment)


def _refuse(error: ErrorCode) -> Decision:
    return Decision(Reply(error))


# --- InitProducerId


def _init_producer_id(
    entry: TransactionRecorded | None, command: InitProducerId, moment: Moment, settings: TransactionSettings
) -> Decision:
    if command.keep_prepared and command.expected:
        return _refuse(ErrorCode.INVALID_REQUEST)  # the request of a process that recovers, and so has no identity
    if command.enable_2pc and not settings.two_phase_commit_enable:
        return _refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    two_phase = asks_for_two_phase_commit(command.enable_2pc, command.timeout_ms, settings)
    if not two_phase and not 0 < command.timeout_ms <= settings.max_timeout_ms:
        return _refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    timeout_ms = NO_TIMEOUT if two_phase else command.timeout_ms
    if entry is None and len(command.transactional_id.encode()) > LONGEST_TRANSACTIONAL_ID:
        return _refuse(ErrorCode.INVALID_REQUEST)
    if entry is None:
        return _introduce(command.transactional_id, timeout_ms, moment)
    if entry.is_ended:
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if command.expected and command.expected not in (entry.client, entry.previous):
        return _refuse(ErrorCode.PRODUCER_FENCED)
    if entry.status is not _ONGOING:
        return _begin_session(entry, command, timeout_ms, moment)
    if command.keep_prepared:
        return _keep_prepared(entry, timeout_ms, moment)
    if two_phase and command.timeout_ms == LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS and not command.expected:
        # The library ends its predecessor's transaction before this command, so this one is a successor's.
        return _refuse(ErrorCode.PRODUCER_FENCED)
    # After the abort the same command begins the new session. If the current client sent it, the abort's bump is its
    # new epoch.
    return _abort_by_coordinator(entry, moment, survivor=command.expected)._replace(reply=None)


def _introduce(transactional_id: str, timeout_ms: int, moment: Moment) -> Decision:
    producer = ProducerIdentity(moment.fresh_producer_id, 0)
    fact = TransactionRecorded(transactional_id, producer, _EMPTY, timeout_ms, moment.now_ms)
    return Decision(Reply(producer=producer), (fact,))


def _begin_session(entry: TransactionRecorded, command: InitProducerId, timeout_ms: int, moment: Moment) -> Decision:
    """Begin a session while no transaction is open: bump the epoch, which fences every earlier client. A client whose
    epoch was bumped before, by its own request or by a timeout, gets that epoch, with the timeout that it asks for."""
    is_bumped = bool(command.expected) and command.expected == entry.previous
    if is_bumped and entry.status is _EMPTY and timeout_ms == entry.timeout_ms:
        return Decision(Reply(producer=entry.client))  # the same request again
    producer = entry.client if is_bumped else _bumped(entry.client, moment)
    fact = TransactionRecorded(
        entry.transactional_id,
        producer,
        _EMPTY,
        timeout_ms,
        moment.now_ms,
        previous=command.expected,
    )
    return Decision(Reply(producer=producer), (fact,))


def _keep_prepared(entry: TransactionRecorded, timeout_ms: int, moment: Moment) -> Decision:
    """KIP-939: the ongoing transaction keeps its identity for its markers; the client gets a new one.

    The client needs a fresh producer id if the ongoing epoch has no room for both (it is 32766, and the markers take
    32767), or if its own epoch is used up. The timeout only grows, so that a prepared transaction never loses its
    two-phase commit. Later transactions have the timeout that the client requests now.
    """
    latest = entry.client
    used_up = latest.epoch >= (MAX_PRODUCER_EPOCH if entry.next_producer else MAX_PRODUCER_EPOCH - 1)
    following = ProducerIdentity(moment.fresh_producer_id, 0) if used_up else _successor(latest)
    fact = entry._replace(
        next_producer=following,
        timeout_ms=max(entry.timeout_ms, timeout_ms),
        next_timeout_ms=timeout_ms if timeout_ms < entry.timeout_ms else -1,
        updated_ms=moment.now_ms,
    )
    return Decision(Reply(producer=following, ongoing=entry.producer), (fact,))


# --- partitions


def _add_partitions(entry: TransactionRecorded, command: AddPartitions, moment: Moment) -> Decision:
    error = _identity_error(entry, command.producer)
    if error is not _NONE:
        return _refuse(error)
    if entry.is_kept:
        return _refuse(ErrorCode.INVALID_TXN_STATE)  # a prepared transaction can only end
    if command.partitions <= entry.partitions:  # also if the command has none: the first partition begins it
        return _ACCEPTED
    if entry.status is _ONGOING:
        fact = entry._replace(partitions=entry.partitions | command.partitions, updated_ms=moment.now_ms)
    else:
        fact = TransactionRecorded(
            entry.transactional_id,
            entry.producer,
            _ONGOING,
            entry.timeout_ms,
            moment.now_ms,
            command.partitions,
            started_ms=moment.now_ms,
            version=command.version if entry.owns_epoch else _TV1,
        )
    return Decision(_ACCEPTED.reply, (fact,))


def _is_verified(table: TransactionTable, command: VerifyPartitions, settings: TransactionSettings) -> bool:
    """False if Produce need not be verified. No setting lets a record join a kept transaction, which was prepared, or
    one that is decided, under whichever transactional id the request comes."""
    if settings.partition_verification_enable:
        return True
    entries = table.entries.get(command.transactional_id), table.owner_of(command.producer.producer_id)
    return any(entry is not None and (entry.is_kept or entry.is_ended) for entry in entries)


def _verify_partitions(entry: TransactionRecorded, command: VerifyPartitions) -> Decision:
    error = _identity_error(entry, command.producer)
    if error is not _NONE:
        return _refuse(error)
    if entry.is_ended:
        return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_open = entry.status is _ONGOING and not entry.is_kept
    if is_open and command.partitions <= entry.partitions:
        return _ACCEPTED
    return _refuse(ErrorCode.TRANSACTION_ABORTABLE)


def _identity_error(entry: TransactionRecorded, producer: ProducerIdentity) -> ErrorCode:
    """NONE if ``producer`` is the current client. Earlier clients are fenced; any other producer is unknown here.

    A client that recovered at epoch 32767 has ended its one transaction and must ask for a fresh id before the next.
    """
    if producer == entry.client and (entry.status is _ONGOING or producer.epoch < MAX_PRODUCER_EPOCH):
        return _NONE
    known = (entry.client.producer_id, entry.producer.producer_id, entry.previous.producer_id)
    return ErrorCode.PRODUCER_FENCED if producer.producer_id in known else ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- the end


def _end_transaction(entry: TransactionRecorded, command: EndTransaction, moment: Moment) -> Decision:
    if entry.status is not _ONGOING and _is_retry(entry, command):
        if entry.status is _COMPLETED[command.result]:
            return Decision(Reply(producer=entry.producer))
        return _refuse(ErrorCode.INVALID_TXN_STATE)
    error = _identity_error(entry, command.producer)
    if error is not _NONE:
        return _refuse(error)
    without_partitions = command.version is _TV2 and command.result is Marker.ABORT
    if entry.status is not _ONGOING and not without_partitions:
        return _refuse(ErrorCode.INVALID_TXN_STATE)
    return _prepare(entry, command.result, command.version, moment)


def _is_retry(entry: TransactionRecorded, command: EndTransaction) -> bool:
    """True if the transaction that ``command`` would end has ended: ``command`` repeats an EndTxn, or comes after the
    timeout. Under TV2 the client still has the identity from before the bump. Under TV1 it has only one identity, and
    no other transaction that it could be ending."""
    if entry.status is _EMPTY:
        return False
    if entry.version is _TV2:
        return command.producer == entry.previous and command.version is _TV2
    return command.producer == entry.client and command.version is _TV1


def _prepare(entry: TransactionRecorded, result: Marker, version: TransactionVersion, moment: Moment) -> Decision:
    """Decide the transaction. Its markers bump the epoch of its records under TV2, and also if the client has an
    identity of its own, because the partitions must fence the transaction's first owner."""
    client = entry.client
    bumps = version is _TV2
    marker_producer = _successor(entry.producer) if bumps or entry.next_producer else entry.producer
    following = _bumped(client, moment) if bumps else client
    fact = TransactionRecorded(
        entry.transactional_id,
        marker_producer,
        _PREPARED[result],
        entry.timeout_ms,
        moment.now_ms,
        entry.partitions,
        started_ms=entry.started_ms if entry.partitions else moment.now_ms,
        previous=client if bumps else NO_PRODUCER,
        next_producer=following if following != marker_producer else NO_PRODUCER,
        version=version,
        next_timeout_ms=entry.next_timeout_ms,
    )
    return Decision(Reply(_NONE, following), (fact,), (markers_of(fact),))


def _abort_by_coordinator(
    entry: TransactionRecorded, moment: Moment, survivor: ProducerIdentity = NO_PRODUCER
) -> Decision:
    """Abort an abandoned transaction, and fence every client but ``survivor``.

    :param survivor: the client that may go on: it requested the abort, or its transaction has timed out. Its
        InitProducerId, and under TV2 its EndTxn(abort), is answered with the new epoch.
    """
    decision = _prepare(entry, Marker.ABORT, _TV2, moment)
    fact = _recorded(decision)._replace(previous=survivor)
    return decision._replace(facts=(fact,))


def _recorded(decision: Decision) -> TransactionRecorded:
    (fact,) = decision.facts
    assert isinstance(fact, TransactionRecorded)
    return fact


def markers_of(entry: TransactionRecorded) -> WriteMarkers:
    """The markers of an ended transaction. After a crash some of them may be in the logs already."""
    return WriteMarkers(entry.transactional_id, entry.producer, _MARKER_OF[entry.status], entry.partitions)


def _house_keeping(
    entry: TransactionRecorded | None,
    command: TimeOut | Expire | MarkersWritten,
    moment: Moment,
    settings: TransactionSettings,
) -> Decision:
    """Decide a command of the broker itself. Does nothing if the reason of the command has ended meanwhile."""
    if entry is None:
        return Decision(Reply())
    if isinstance(command, MarkersWritten):
        return _complete(entry, moment) if entry.is_ended else Decision(Reply())
    if isinstance(command, TimeOut):
        if entry.status is not _ONGOING or not has_timed_out(entry, moment.open_ms):
            return Decision(Reply())
        return _abort_by_coordinator(entry, moment, survivor=entry.client)
    idle = entry.status is not _ONGOING and not entry.is_ended
    if idle and moment.now_ms - entry.updated_ms >= settings.id_expiration_ms:
        return Decision(Reply(), (TransactionForgotten(entry.transactional_id),))
    return Decision(Reply())


def _complete(entry: TransactionRecorded, moment: Moment) -> Decision:
    fact = TransactionRecorded(
        entry.transactional_id,
        entry.client,
        _COMPLETED[_MARKER_OF[entry.status]],
        entry.timeout_ms if entry.next_timeout_ms < 0 else entry.next_timeout_ms,
        moment.now_ms,
        started_ms=entry.started_ms,
        previous=entry.previous,
        version=entry.version,
    )
    return Decision(_ACCEPTED.reply, (fact,))


# --- epochs


def _successor(producer: ProducerIdentity) -> ProducerIdentity:
    return ProducerIdentity(producer.producer_id, producer.epoch + 1)


def _bumped(client: ProducerIdentity, moment: Moment) -> ProducerIdentity:
    """The identity for the next transaction: the next epoch, or a fresh id if that epoch is reserved for markers."""
    if client.epoch >= MAX_PRODUCER_EPOCH - 1:
        return ProducerIdentity(moment.fresh_producer_id, 0)
    return _successor(client)
