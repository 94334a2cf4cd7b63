"""Fetch (1), v4-v18.

read_uncommitted sees what is durable (the high watermark); read_committed sees up to the last stable offset, with the
aborted transactions that the client must skip. Whole batches are returned, at least one for the first partition that
has any, however small max_bytes is (KIP-74). Waits up to max_wait_ms until min_bytes are there; not while
the broker stops. Fetch sessions (KIP-227) are declined by session id 0, which clients answer with full fetches. From
v13 on topics are named by id. An answer holds at most 55 MiB, Kafka's fetch.max.bytes. ACL: none yet.
"""

import asyncio
from dataclasses import dataclass

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.runtime.partition import LEADER_EPOCH, Partition
from dualwrite.ids import TopicPartition
from dualwrite.records.header import peek_header
from dualwrite.wire.apis import ApiKey, FetchResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.FETCH
VERSIONS = range(4, 19)

_FIRST_WITH_TOPIC_IDS = 13
_READ_COMMITTED = 1
_NO_SESSION = 0
_FULL_FETCHES = (-1, 0)  # session epochs: the end of a session, the beginning of one
_MOST_BYTES = 55 * 1024 * 1024


@dataclass(slots=True)
class _Entry:
    """One partition of the request, resolved."""

    wanted: Message
    partition: Partition | None
    error: ErrorCode
    """The error if there is no such partition, or not any more."""

    def position_error(self) -> ErrorCode:
        """The error of the position that the client reads from, now."""
        if self.partition is None or self.partition.is_gone:
            return self.error
        if self.wanted.current_leader_epoch > LEADER_EPOCH:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        log = self.partition.log
        if not log.start_offset <= self.wanted.fetch_offset <= log.end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NONE


@dataclass(slots=True)
class _Read:
    """The result of one read of every partition."""

    topics: list[Message]
    size: int = 0
    has_error: bool = False


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Answer at once if there is enough data or an error; otherwise when there is, or when the time is up."""
    if request.session_epoch not in _FULL_FETCHES:  # a session of another broker, from before the client came here
        return FetchResponse(throttle_time_ms=0, error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    entries = [[_resolve(topic, wanted, version, broker) for wanted in topic.partitions] for topic in request.topics]
    partitions = {id(entry.partition): entry.partition for topic in entries for entry in topic if entry.partition}
    deadline = broker.clock.monotonic() + request.max_wait_ms / 1000
    reader = asyncio.Event()
    broker.stopping.add_waiter(reader)
    for partition in partitions.values():
        partition.add_reader(reader)
    try:
        while True:
            reader.clear()
            read = _read_all(request, entries)
            remaining = 0 if broker.stopping.has_begun else deadline - broker.clock.monotonic()
            if read.has_error or read.size >= request.min_bytes or remaining <= 0 or not partitions:
                break
            await _wait(reader, remaining)
    finally:
        broker.stopping.remove_waiter(reader)
        for partition in partitions.values():
            partition.remove_reader(reader)
    return FetchResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, session_id=_NO_SESSION, responses=read.topics)


async def _wait(reader: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(reader.wait(), seconds)
    except asyncio.TimeoutError:  # not the builtin one before Python 3.11
        return


def _resolve(topic: Message, wanted: Message, version: int, broker: BrokerContext) -> _Entry:
    by_id = version >= _FIRST_WITH_TOPIC_IDS
    name = broker.cluster.topic_name(topic.topic_id) if by_id else topic.topic
    if name is None:
        return _Entry(wanted, None, ErrorCode.UNKNOWN_TOPIC_ID)
    partition = broker.cluster.partition(TopicPartition(name, wanted.partition))
    gone = ErrorCode.UNKNOWN_TOPIC_ID if by_id and partition else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _Entry(wanted, partition, gone)


def _read_all(request: Message, entries: list[list[_Entry]]) -> _Read:
    committed_only = request.isolation_level == _READ_COMMITTED
    max_bytes = min(request.max_bytes, _MOST_BYTES)
    response = FetchResponse.FetchableTopicResponse
    read = _Read([])
    for topic, partitions in zip(request.topics, entries, strict=True):
        results = [_read_partition(entry, max_bytes, committed_only, read) for entry in partitions]
        read.topics.append(response(topic=topic.topic, topic_id=topic.topic_id, partitions=results))
    return read


def _read_partition(entry: _Entry, max_bytes: int, committed_only: bool, read: _Read) -> Message:
    response = FetchResponse.FetchableTopicResponse.PartitionData
    error = entry.position_error()
    partition = entry.partition
    if error is not ErrorCode.NONE or partition is None:
        read.has_error = True
        return response(
            partition_index=entry.wanted.partition,
            error_code=error,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=None,
            records=b"",
        )
    first, state = entry.wanted.fetch_offset, partition.state
    before = partition.visible_before(committed_only)
    budget = min(entry.wanted.partition_max_bytes, max_bytes - read.size)
    is_first = read.size == 0
    records = (
        partition.log.read(first, budget, before, is_first) if first < before and (is_first or budget > 0) else b""
    )
    read.size += len(records)
    return response(
        partition_index=entry.wanted.partition,
        error_code=ErrorCode.NONE,
        high_watermark=state.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.start_offset,
        aborted_transactions=_aborted(partition, first, records) if committed_only else None,
        records=records,
    )


def _aborted(partition: Partition, first: int, records: bytes) -> list[Message]:
    """The aborted transactions with records among those returned."""
    entry = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction
    return [
        entry(producer_id=ended.producer_id, first_offset=ended.first_offset)
        for ended in partition.state.aborted_between(first, _offset_after(records, first))
    ]


def _offset_after(records: bytes, first: int) -> int:
    """The offset that follows the last of the returned batches."""
    position, following = 0, first
    while position < len(records):
        header = peek_header(records, position)
        position, following = position + header.size, header.next_offset
    return following
