"""Fetch (1), v4-v18.

A read_uncommitted client reads durable records, up to the high watermark. A read_committed client reads up to the last
stable offset, and gets the aborted transactions that it must skip. The broker returns whole batches: at least one, from
the first partition with records, however small max_bytes is (KIP-74). An answer holds at most 55 MiB, Kafka's default
of fetch.max.bytes. The broker waits up to max_wait_ms for min_bytes, 5 minutes at most, but answers at once while it
stops, and if the client has gone. If there is less than min_bytes, or nothing, it first waits for the transactions that
have ended and are not on disk yet, because their clients may have been answered. It does not wait if it has read a
partition to the end of a segment that others follow, nor for a batch that the request's limits leave no room for, if
there are min_bytes within these limits (Kafka: DelayedFetch). It answers at once if a partition that could be read when
the request came cannot be read any more. Partitions that were missing then, or may not be read, end no wait for the
others. A client that loses READ while it waits gets no records. The broker declines fetch sessions (KIP-227) with
session id 0, and clients then send full fetches. From v13 on topics are named by id.
"""

import asyncio
from dataclasses import dataclass
from itertools import chain

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.records.reading_errors import reading_error
from dualwrite.broker.runtime.partition import LEADER_EPOCH, Partition
from dualwrite.ids import TopicPartition
from dualwrite.records.header import MalformedBatchError, peek_header
from dualwrite.wire.apis import ApiKey, FetchResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.FETCH
VERSIONS = range(4, 19)
_READ = on_topic(AclOperation.READ)
NEEDS = (_READ,)

_FIRST_WITH_TOPIC_IDS = 13
_READ_COMMITTED = 1
_NO_SESSION = 0
_FULL_FETCHES = (-1, 0)  # session epochs: the end of a session, the beginning of one
_MOST_BYTES = 55 * 1024 * 1024
LONGEST_WAIT_MS = 5 * 60_000
"""Clients ask for half a second, and ask again after an empty answer. A longer wait only holds a connection."""


@dataclass(slots=True)
class _Entry:
    """One partition of the request, resolved."""

    requested: Message
    partition: Partition | None
    error: ErrorCode
    """The error if the partition does not exist, or was deleted meanwhile."""
    is_awaited: bool = False
    """True if the partition could be read when the request came, so that an error of it is news."""

    def position_error(self) -> ErrorCode:
        """The current error of the position from which the client reads."""
        if self.partition is None or self.partition.is_deleted:
            return self.error
        if self.requested.current_leader_epoch > LEADER_EPOCH:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        log = self.partition.log
        if not log.start_offset <= self.requested.fetch_offset <= log.end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NONE


@dataclass(slots=True)
class _Read:
    """The result of one read of every partition. After the first batch it stops at ``max_bytes``."""

    topics: list[Message]
    max_bytes: int
    size: int = 0
    has_news: bool = False
    """True if an awaited partition cannot be read (Kafka: errorReadingData)."""


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Answer as soon as there is enough data, or an error of a partition that could be read, or when max_wait_ms is
    over."""
    if request.session_epoch not in _FULL_FETCHES:  # the client began this session with another broker
        return FetchResponse(throttle_time_ms=0, error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    entries = [
        [_resolve(topic, requested, version, broker) for requested in topic.partitions] for topic in request.topics
    ]
    partitions = {id(entry.partition): entry.partition for topic in entries for entry in topic if entry.partition}
    deadline = broker.clock.monotonic() + min(request.max_wait_ms, LONGEST_WAIT_MS) / 1000
    reader, is_settled = asyncio.Event(), False
    broker.polls.add(reader.set)
    for partition in partitions.values():
        partition.add_reader(reader)
    try:
        while True:
            await broker.memory.room_for_answers()
            reader.clear()
            _refuse_revoked(entries, broker)
            read = _read_all(request, entries, broker.memory.answer_share)
            remaining = 0 if broker.polls.must_answer else deadline - broker.clock.monotonic()
            if read.has_news or read.size >= max(1, request.min_bytes) or not partitions:
                break
            committed_only = request.isolation_level == _READ_COMMITTED
            if _stops_early(entries, committed_only):
                break
            if read.size and _has_enough(request.min_bytes, entries, read, committed_only):
                break
            if not is_settled and any(partition.state.has_unseen_end for partition in partitions.values()):
                is_settled = True
                await broker.flusher.barrier()
            elif remaining <= 0 or request.min_bytes <= 0:
                break
            else:
                await _wait(reader, remaining)
    finally:
        broker.polls.remove(reader.set)
        for partition in partitions.values():
            partition.remove_reader(reader)
    return FetchResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, session_id=_NO_SESSION, responses=read.topics)


def _stops_early(entries: list[list[_Entry]], committed_only: bool) -> bool:
    """True if the end of a segment has stopped the read of a partition. The next answer goes on behind it."""
    return any(
        entry.partition.log.stops_early(entry.requested.fetch_offset, entry.partition.visible_before(committed_only))
        for topic in entries
        for entry in topic
        if entry.partition is not None
    )


def _has_enough(min_bytes: int, entries: list[list[_Entry]], read: _Read, committed_only: bool) -> bool:
    """True if there are ``min_bytes``, counted as Apache Kafka does: each partition counts up to its limit, even if the
    limit ends in the middle of a batch; and max_bytes are always enough.

    Only whole batches are returned. If only these counted, a client whose limits are near ``min_bytes`` would wait for
    the end of its time, though there are more records than it can get.
    """
    enough, counted = min(min_bytes, read.max_bytes), 0
    if read.size >= enough:
        return True
    for entry in chain(*entries):  # the read has just looked up the same positions, so none of them is damaged
        first, limit, partition = entry.requested.fetch_offset, entry.requested.partition_max_bytes, entry.partition
        if partition is not None and limit > 0 and first < (before := partition.visible_before(committed_only)):
            counted += min(partition.log.size_between(first, before), limit)
    return counted >= enough


async def _wait(reader: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(reader.wait(), seconds)
    except asyncio.TimeoutError:  # not the builtin one before Python 3.11
        return


def _resolve(topic: Message, requested: Message, version: int, broker: BrokerContext) -> _Entry:
    by_id = version >= _FIRST_WITH_TOPIC_IDS
    name = broker.cluster.topic_name(topic.topic_id) if by_id else topic.topic
    if name is None:
        return _Entry(requested, None, ErrorCode.UNKNOWN_TOPIC_ID)
    if not broker.may(_READ, name):
        return _Entry(requested, None, _READ.error)
    partition = broker.cluster.partition(TopicPartition(name, requested.partition))
    deleted_error = ErrorCode.UNKNOWN_TOPIC_ID if by_id and partition else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _Entry(requested, partition, deleted_error, partition is not None)


def _refuse_revoked(entries: list[list[_Entry]], broker: BrokerContext) -> None:
    """Refuse the partitions that the client may no longer read. Its rights may have changed while it waited."""
    if not broker.access.is_enabled:
        return
    for topic in entries:
        for entry in topic:
            if entry.partition is not None and not broker.may(_READ, entry.partition.name.topic):
                entry.partition, entry.error = None, _READ.error


def _read_all(request: Message, entries: list[list[_Entry]], most_bytes: float) -> _Read:
    committed_only = request.isolation_level == _READ_COMMITTED
    max_bytes = int(min(request.max_bytes, _MOST_BYTES, most_bytes))
    response = FetchResponse.FetchableTopicResponse
    read = _Read([], max_bytes)
    for topic, partitions in zip(request.topics, entries, strict=True):
        results = [_read_partition(entry, committed_only, read) for entry in partitions]
        read.topics.append(response(topic=topic.topic, topic_id=topic.topic_id, partitions=results))
    return read


def _read_partition(entry: _Entry, committed_only: bool, read: _Read) -> Message:
    response = FetchResponse.FetchableTopicResponse.PartitionData
    error = entry.position_error()
    partition = entry.partition
    if error is not ErrorCode.NONE or partition is None:
        return _refusal(entry, error, read)
    first, state = entry.requested.fetch_offset, partition.state
    before = partition.visible_before(committed_only)
    budget = min(entry.requested.partition_max_bytes, read.max_bytes - read.size)
    is_first = read.size == 0
    try:
        records = (
            partition.log.read(first, budget, before, is_first) if first < before and (is_first or budget > 0) else b""
        )
        aborted = _aborted(partition, first, records) if committed_only else None
    except (OSError, MalformedBatchError) as failure:
        return _refusal(entry, reading_error(partition, failure), read)
    read.size += len(records)
    return response(
        partition_index=entry.requested.partition,
        error_code=ErrorCode.NONE,
        high_watermark=state.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.start_offset,
        aborted_transactions=aborted,
        records=records,
    )


def _refusal(entry: _Entry, error: ErrorCode, read: _Read) -> Message:
    """The answer for a partition that cannot be read."""
    read.has_news |= entry.is_awaited
    return FetchResponse.FetchableTopicResponse.PartitionData(
        partition_index=entry.requested.partition,
        error_code=error,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        records=b"",
    )


def _aborted(partition: Partition, first: int, records: bytes) -> list[Message]:
    """The aborted transactions that have records among the returned ``records``."""
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
