"""Produce (0), v3-v13.

One record batch v2 per partition; the header and the CRC-32C are checked, the records are not unpacked. acks 0 is not
answered, and an error then closes the connection; acks 1 and -1 are answered once the batch is on disk. A
transactional batch must belong to the ongoing transaction of its transactional id: from v12 on (KIP-890, TV2) its
partition joins implicitly, before that it must have been added (no hanging transaction can begin); all partitions of a
request join at once, with one fsync. v13 names topics by id. The broker's own topics take nothing from clients. ACL:
none yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dualwrite.broker.api.context import BrokerContext, UnanswerableError
from dualwrite.broker.api.joining import PRODUCE, join_transaction
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.runtime.partition import AppendResult, Partition
from dualwrite.ids import TopicPartition
from dualwrite.records.header import HEADER_SIZE, BatchHeader, MalformedBatchError, checksum_matches, peek_header
from dualwrite.wire.apis import ApiKey, Message, ProduceResponse
from dualwrite.wire.error_codes import ErrorCode, error_name

KEY = ApiKey.PRODUCE
VERSIONS = range(3, 14)

_FIRST_WITH_ZSTD = 7
_FIRST_WITH_TOPIC_IDS = 13
_ZSTD = 4
_LAST_CODEC = 4
_LEAST_RECORD_SIZE = 7  # size, attributes, two deltas, key, value and headers: a byte each


class _RefusedError(Exception):
    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(error, message)
        self.error = error
        self.message = message


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that is fit to be appended, if its transaction allows it."""

    name: TopicPartition
    header: BatchHeader
    records: bytes


async def handle(request: Message, version: int, broker: BrokerContext) -> Message | None:
    """Append what may be appended; None for acks 0, which is not answered."""
    found = [_examine_topic(topic, request, version, broker) for topic in request.topic_data]
    joining = [entry for results in found for entry in results if isinstance(entry, _Batch)]
    refused = await _join_transaction(request.transactional_id, version, joining, broker)
    responses = [  # nothing may come between the answer above and this
        ProduceResponse.TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                _answer(data, entry, refused, version, broker)
                for data, entry in zip(topic.partition_data, results, strict=True)
            ],
        )
        for topic, results in zip(request.topic_data, found, strict=True)
    ]
    if request.acks == 0:
        errors = {entry.error_code for response in responses for entry in response.partition_responses}
        if errors - {ErrorCode.NONE}:
            raise UnanswerableError(f"Produce with acks=0: {', '.join(map(error_name, sorted(errors)))}")
        return None
    await broker.flusher.barrier()
    return ProduceResponse(responses=responses, throttle_time_ms=0)


def _examine_topic(
    topic: Message, request: Message, version: int, broker: BrokerContext
) -> list["_Batch | _RefusedError"]:
    name = broker.cluster.topic_name(topic.topic_id) if version >= _FIRST_WITH_TOPIC_IDS else topic.name
    results: list[_Batch | _RefusedError] = []
    for data in topic.partition_data:
        try:
            results.append(_examine(data, name, request.acks, version, broker))
        except _RefusedError as refused:
            results.append(refused)
    return results


def _examine(data: Message, topic: str | None, acks: int, version: int, broker: BrokerContext) -> _Batch:
    if topic is None:
        raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
    if acks not in (-1, 0, 1):
        raise _RefusedError(ErrorCode.INVALID_REQUIRED_ACKS)
    if topic in INTERNAL_TOPICS:
        raise _RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is written by the broker alone")
    name = TopicPartition(topic, data.index)
    if broker.cluster.partition(name) is None:
        raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    max_bytes = broker.cluster.config(topic).max_message_bytes
    return _Batch(name, _checked_header(data.records, version, max_bytes), data.records)


async def _join_transaction(
    transactional_id: str | None, version: int, batches: Iterable[_Batch], broker: BrokerContext
) -> _RefusedError | None:
    """See to it that all transactional batches belong to the ongoing transaction of their producer, and to nobody
    else's: what forbids it, or None."""
    headers = {batch.name: batch.header for batch in batches if batch.header.is_transactional}
    if not headers:
        return None
    if transactional_id is None:
        message = "a transactional batch in a request without transactional id"
        return _RefusedError(ErrorCode.INVALID_TXN_STATE, message)
    producer, *others = {header.producer for header in headers.values()}
    if others:
        return _RefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional batches of several producers")
    implicit = version >= PRODUCE.implicit
    error = await join_transaction(broker, transactional_id, producer, frozenset(headers), implicit)
    if error is ErrorCode.NONE:
        return None
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and not implicit:
        error = ErrorCode.NOT_ENOUGH_REPLICAS  # retriable for every client
    return _RefusedError(PRODUCE.error(error, version))


def _answer(
    data: Message,
    entry: "_Batch | _RefusedError",
    not_joined: _RefusedError | None,
    version: int,
    broker: BrokerContext,
) -> Message:
    response = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    try:
        if isinstance(entry, _RefusedError):
            raise entry
        if not_joined is not None and entry.header.is_transactional:
            raise not_joined
        result, partition = _append(entry, version, broker)
    except _RefusedError as refused:
        return response(
            index=data.index,
            error_code=refused.error,
            base_offset=-1,
            log_append_time_ms=-1,
            log_start_offset=-1,
            record_errors=[],
            error_message=refused.message,
        )
    return response(
        index=data.index,
        error_code=ErrorCode.NONE,
        base_offset=result.base_offset,
        log_append_time_ms=result.verdict.duplicate_timestamp,  # as Kafka tells it, whoever set it
        log_start_offset=partition.log.start_offset,
        record_errors=[],
    )


def _append(batch: _Batch, version: int, broker: BrokerContext) -> tuple[AppendResult, Partition]:
    partition = broker.cluster.partition(batch.name)  # again: it may have gone while the transaction was joined
    if partition is None:
        raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    is_tv2 = batch.header.is_transactional and version >= PRODUCE.implicit
    result = partition.append(batch.records, batch.header, begins_at_zero=is_tv2)
    if result.verdict.error is not ErrorCode.NONE:
        raise _RefusedError(result.verdict.error)
    return result, partition


def _checked_header(records: bytes | None, version: int, max_bytes: int) -> BatchHeader:
    """The header of a batch that is fit to be appended as it is."""
    if not records:
        raise _RefusedError(ErrorCode.INVALID_RECORD, "no record batch for the partition")
    try:
        header = peek_header(records)
    except MalformedBatchError as error:
        raise _RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if header.size > max_bytes:
        raise _RefusedError(ErrorCode.MESSAGE_TOO_LARGE, f"batch of {header.size} bytes; max.message.bytes={max_bytes}")
    if header.size != len(records):
        raise _RefusedError(ErrorCode.INVALID_RECORD, "expected exactly one record batch for the partition")
    if not checksum_matches(header, records):
        raise _RefusedError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC-32C does not match")
    if header.is_control or header.has_append_time:
        raise _RefusedError(ErrorCode.INVALID_RECORD, "a client writes neither control batches nor append times")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise _RefusedError(ErrorCode.INVALID_RECORD, "record count and offsets of the batch disagree")
    if not header.compression and header.record_count * _LEAST_RECORD_SIZE > header.size - HEADER_SIZE:
        raise _RefusedError(ErrorCode.INVALID_RECORD, "the batch is too short for its record count")
    if header.producer and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise _RefusedError(ErrorCode.INVALID_RECORD, "an idempotent batch without a sequence or an epoch")
    if header.is_transactional and not header.producer:
        raise _RefusedError(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")
    if header.compression > _LAST_CODEC or (header.compression == _ZSTD and version < _FIRST_WITH_ZSTD):
        raise _RefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    return header
