"""What the cluster knows of the transaction that a stored state names: whether it is open, or how it ended."""

import logging

from dualwrite.client.control import ControlPlane
from dualwrite.client.endings import ending_in, first_marker_in, offset_after, stranger_in
from dualwrite.client.log_reader import LogReader
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import (
    EndedTransaction,
    Ending,
    OngoingTransaction,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
)
from dualwrite.wire.error_codes import ErrorCode

_LOG = logging.getLogger("dualwrite")
_LOOK = 128 * 1024
"""Bytes of the log that one look takes."""
_FARTHEST = 32 * 1024 * 1024
"""Bytes in which a marker is searched for behind somebody else's open transaction, by who has not got the time."""
_NOTHING_KNOWN = EndedTransaction(Ending.UNKNOWN)


def ongoing_transaction(
    control: ControlPlane, transactional_id: str, ongoing: ProducerIdentity, state: PreparedTxnState
) -> OngoingTransaction:
    """The open transaction of ``ongoing``, with where it began if ``state`` has an anchor there (ids.py).

    :raises KafkaUnavailableError: if the coordinator or a leader gave no answer in time.
    """
    if state.anchor is None or state.producer != ongoing:
        return OngoingTransaction(ongoing)
    described = control.describe_transaction(transactional_id)
    partitions: frozenset[TopicPartition] = described.partitions if described is not None else frozenset()
    at_anchor = {partition for partition in partitions if state.anchor.is_in(partition)}
    return OngoingTransaction(ongoing, control.current_transaction_start_offsets(at_anchor, ongoing))


def ended_transaction(control: ControlPlane, state: PreparedTxnState, timeout: float | None = None) -> EndedTransaction:
    """How the transaction of ``state`` ended, by the log at its first record (``state.first_record``).

    Ask when its coordinator says that nothing of it is open any more: if it is open in the log all the same, it hangs
    there, and nobody is going to end it. It is UNKNOWN if the log has nothing to say: the topic is gone, or may not be
    read, or the record has been deleted or compacted.

    :param timeout: seconds that each question may take; None for the control plane's, and for a search of any length.
    :raises KafkaUnavailableError: if the partition's leader gave no answer in time.
    """
    first = state.first_record
    if not state or first is None:
        return _NOTHING_KNOWN
    logs = control.logs(timeout)
    try:
        partition = logs.partition_of(first)
        if partition is None:
            return _NOTHING_KNOWN
        farthest = None if timeout is None else _FARTHEST
        return _look_at(logs, partition, first.offset, state.producer, farthest)
    except KafkaRefusedError as error:
        if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            _LOG.warning("what became of %s cannot be known: %s: grant READ on that topic", state, error)
        return _NOTHING_KNOWN


def _look_at(
    logs: LogReader, partition: TopicPartition, offset: int, producer: ProducerIdentity, farthest: int | None
) -> EndedTransaction:
    found = logs.read(partition, offset, committed=True, most=_LOOK)
    if found is None or found.high_watermark <= offset:
        start, end = logs.extent(partition)
        return EndedTransaction(Ending.LOST) if start <= offset and end <= offset else _NOTHING_KNOWN
    if found.last_stable_offset > offset:
        return ending_in(found, producer, offset)
    return EndedTransaction(_search_marker(logs, partition, offset, producer, farthest))


def _search_marker(
    logs: LogReader, partition: TopicPartition, offset: int, producer: ProducerIdentity, farthest: int | None
) -> Ending:
    """The transaction's end, though an open transaction holds readers up before it, or it is open itself."""
    position, read = offset, 0
    while farthest is None or read < farthest:
        found = logs.read(partition, position, committed=False, most=_LOOK)
        if found is None:
            break
        strange = stranger_in(found.records, producer, offset) if position == offset else None
        ending = strange or first_marker_in(found.records, producer.producer_id)
        if ending is not None:
            return ending
        following = offset_after(found.records)
        if following is None:  # perhaps of a leader that is new, and does not show yet all that it has
            return Ending.OPEN if position >= logs.extent(partition).end else Ending.UNKNOWN
        position, read = following, read + len(found.records)
    return Ending.UNKNOWN
