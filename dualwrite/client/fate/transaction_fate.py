"""Asks the cluster whether the transaction that a stored state names is open, or how it ended."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dualwrite.client.encoding.transaction_end import (
    commits_after,
    ending_in,
    first_marker_in,
    mismatch_at,
    offset_after,
)
from dualwrite.client.terms.error_classes import error_for
from dualwrite.errors import DualWriteError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import (
    UNKNOWN_START,
    Anchor,
    EndedTransaction,
    Ending,
    OngoingTransaction,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
    is_legal_topic,
)
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription
    from dualwrite.client.admin.log_reader import LogReader

_LOG = logging.getLogger("dualwrite")
_CHUNK = 128 * 1024
"""Bytes of the log that one Fetch reads."""
FARTHEST = 32 * 1024 * 1024
"""Bytes in which a search with little time looks for a marker behind another producer's open transaction."""
_ID_LASTS = 60.0
"""Seconds for which a topic's id stays cached."""
_BRIEFLY = 2.0
"""Seconds for a request whose answer is optional."""
_NOTHING_KNOWN = EndedTransaction(Ending.UNKNOWN)


def ongoing_transaction(
    control: "ControlPlane", transactional_id: str, ongoing: ProducerIdentity, state: PreparedTxnState
) -> OngoingTransaction:
    """The open transaction of ``ongoing``; also tells where and when it began if ``state`` has an anchor (ids.py).

    :raises KafkaUnavailableError: if the coordinator or a leader gave no answer in time.
    :raises KafkaRefusedError: if the READ or DESCRIBE operation on the anchor's topic is not granted.
    """
    if state.anchor is None or state.producer != ongoing:
        return OngoingTransaction(ongoing)
    described = control.describe_transaction(transactional_id)
    if described is None:
        return OngoingTransaction(ongoing)
    began_ms = started_ms(described)
    at_anchor = {partition for partition in described.partitions if state.anchor.is_in(partition)}
    if not at_anchor and (state.started_ms == began_ms or UNKNOWN_START in (state.started_ms, began_ms)):
        at_anchor = {_not_described(control, state.anchor)}
    starts = control.current_transaction_start_offsets(at_anchor, ongoing, deleted_too=True)
    return OngoingTransaction(ongoing, starts, described.partitions, began_ms)


def _not_described(control: "ControlPlane", anchor: Anchor) -> TopicPartition:
    """The partition of ``anchor``, for a question to its leader. DescribeTransactions leaves out topics that the client
    may not describe, which must never read as "not in this transaction".

    :raises KafkaRefusedError: if the topic's name was shortened, and the client sees no topic of that name.
    """
    partition = control.logs().partition_of(anchor)
    if partition is None:
        raise error_for(ApiKey.METADATA, f"topic {anchor.topic}", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return partition


def open_transaction(control: "ControlPlane", transactional_id: str, ongoing: ProducerIdentity) -> PreparedTxnState:
    """The open transaction of ``ongoing``, which no stored state names. Contains its first record in one of its
    partitions, if the leaders tell it.

    :raises KafkaUnavailableError: if the coordinator gave no answer in time.
    """
    described = control.describe_transaction(transactional_id)
    starts: Mapping[TopicPartition, int] = {}
    if described is not None and described.partitions:
        try:
            starts = control.current_transaction_start_offsets(described.partitions, ongoing, deleted_too=True)
        except (KafkaRefusedError, KafkaUnavailableError) as error:
            _LOG.info("where transaction %s of %s began is not known: %s", ongoing, transactional_id, error)
    first = min(starts, default=None)
    return PreparedTxnState(ongoing, first_record=None if first is None else Anchor.of(first, starts[first]))


def started_ms(described: "TransactionDescription") -> int:
    """When an open transaction began; UNKNOWN_START if its coordinator does not tell it."""
    return described.start_ms if described.start_ms > 0 else UNKNOWN_START


def ended_transaction(
    control: "ControlPlane", state: PreparedTxnState, timeout: float | None = None
) -> EndedTransaction:
    """How the transaction of ``state`` ended, read from the log at its first record (``state.first_record``).

    Call this when the coordinator says that the transaction is not open any more. If the log still shows it as open, it
    hangs there, and no coordinator will end it. The result is UNKNOWN if the log does not tell: the topic is gone, or
    was created anew, or may not be read, or the record was deleted or compacted.

    :param timeout: seconds that each request may take; None for the control plane's, and for a search of any length.
    :raises KafkaUnavailableError: if the partition's leader gave no answer in time.
    """
    first = state.first_record
    if not state or first is None:
        return _NOTHING_KNOWN
    logs = control.logs(timeout)
    try:
        partition = logs.partition_of(first)
        if partition is None or _is_another(logs, partition.topic, state.topic_id):
            return _NOTHING_KNOWN
        farthest = None if timeout is None else FARTHEST
        return _read_ending(logs, partition, first.offset, state.producer, farthest)
    except KafkaRefusedError as error:
        if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            _LOG.warning("the outcome of %s is unknown: %s: grant READ on that topic", state, error)
            return EndedTransaction(Ending.UNKNOWN, unread=first.topic)
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            _LOG.warning("the outcome of %s is unknown: %s", state, error)
        return _NOTHING_KNOWN


class TopicIds:
    """The ids of the topics in which transactions began. Asks for each once in a while, and never waits long: the id is
    optional. Without it a unit of work can still commit, and only a later search for its end is less sure.

    :param clock: monotonic seconds.
    """

    def __init__(self, control: "ControlPlane", clock: Callable[[], float]) -> None:
        self._control = control
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}
        """By topic: its id, and when it was asked for."""
        self._reached: dict[TopicPartition, int] = {}

    def added(self, state: PreparedTxnState) -> PreparedTxnState:
        """``state`` with the topic id of its first record."""
        first = state.first_record
        if first is None or not is_legal_topic(first.topic):  # the name was shortened
            return state
        return replace(state, topic_id=self._of(TopicPartition(first.topic, first.partition), first.offset))

    def _of(self, partition: TopicPartition, offset: int) -> str:
        topic_id, asked_at = self._known.get(partition.topic, ("", -_ID_LASTS))
        goes_on = offset > self._reached.get(partition, -1)  # a lower offset means another topic
        self._reached[partition] = offset
        if not goes_on or self._clock() >= asked_at + _ID_LASTS:
            try:
                topic_id = self._control.logs(_BRIEFLY).topic_id(partition.topic)
            except DualWriteError as error:  # ConfigurationError, too: a new connection may need a changed password
                _LOG.debug("the id of topic %s is not known: %s", partition.topic, error)
                topic_id = ""
            self._known[partition.topic] = topic_id, self._clock()
        return topic_id


def _is_another(logs: "LogReader", topic: str, topic_id: str) -> bool:
    """True if the topic of that name is not the one with ``topic_id``."""
    current = logs.topic_id(topic) if topic_id else ""
    return bool(current) and current != topic_id


def _read_ending(
    logs: "LogReader", partition: TopicPartition, offset: int, producer: ProducerIdentity, farthest: int | None
) -> EndedTransaction:
    chunk = logs.read(partition, offset, committed=True, most=_CHUNK)
    if chunk is None or chunk.high_watermark <= offset:
        start, end = logs.extent(partition)
        return EndedTransaction(Ending.LOST) if start <= offset and end <= offset else _NOTHING_KNOWN
    if chunk.last_stable_offset > offset:
        ended = ending_in(chunk, producer, offset)
    else:
        ended = EndedTransaction(_search_marker(logs, partition, offset, producer, farthest))
    is_cut = chunk.last_stable_offset < chunk.high_watermark
    if ended.ending is Ending.COMMITTED and not ended.was_overtaken and is_cut:
        # What is open behind it must not hide a later commit: the open transaction may end at any moment.
        chunk = logs.read(partition, offset, committed=False, most=_CHUNK)
        was_overtaken = chunk is not None and commits_after(chunk.records, producer.producer_id)
        return EndedTransaction(ended.ending, was_overtaken)
    return ended


def _search_marker(
    logs: "LogReader", partition: TopicPartition, offset: int, producer: ProducerIdentity, farthest: int | None
) -> Ending:
    """How the transaction ended, by its marker in the log. Reads with read_uncommitted, because an older open
    transaction may hide the marker from read_committed readers, or the transaction itself may still be open."""
    position, records_read = offset, 0
    while farthest is None or records_read < farthest:
        chunk = logs.read(partition, position, committed=False, most=_CHUNK)
        if chunk is None:
            break
        foreign_ending = mismatch_at(chunk.records, producer, offset) if position == offset else None
        ending = foreign_ending or first_marker_in(chunk.records, producer.producer_id)
        if ending is not None:
            return ending
        next_position = offset_after(chunk.records)
        if next_position is None:  # perhaps the leader is new, and does not show its whole log yet
            return Ending.OPEN if position >= logs.extent(partition).end else Ending.UNKNOWN
        position, records_read = next_position, records_read + len(chunk.records)
    return Ending.UNKNOWN
