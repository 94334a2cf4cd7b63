"""Produce (0), v3-v13.

Appends one record batch v2 per partition. The broker checks the header and the CRC-32C. It unpacks the records only if
the topic requires keys, limits timestamps, or has its own codec (compression.type), or if the header lacks their
highest timestamp, as Sarama's did before 1.45.1: the broker then puts it there. With LogAppendTime the broker's clock
stamps the batch. acks 1 and -1 are answered once the batch is on disk. acks 0 gets no answer, and an error then
closes the connection. v13 names topics by id. Clients cannot write to the broker's own topics.

A producer id that was given to a transactional id writes transactional batches only. With an authorizer, a producer id
that no client was given writes none (INVALID_PRODUCER_ID_MAPPING): such batches would stand in for those of the
transaction that gets the id. Kafka takes both.

A transactional batch must belong to the ongoing transaction of its transactional id. From v12 on (KIP-890, TV2) its
partition joins the transaction implicitly; before that the client must have added it, so no hanging transaction can
begin. All partitions of a request join at once, with one fsync. A request with a
transactional id is refused as a whole without the right to that id.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_topic, on_transactional_id
from dualwrite.broker.api.context import BrokerContext, UnanswerableError
from dualwrite.broker.api.transactions.joining import PRODUCE, join_transaction
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.core.record_rules import APPEND_TIME, RefusedBatchError, as_kept, checked_header
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition
from dualwrite.records.header import NO_TIMESTAMP, BatchHeader, peek_header, stamp_append_time
from dualwrite.wire.apis import ApiKey, Message, ProduceResponse
from dualwrite.wire.error_codes import ErrorCode, error_name
from dualwrite.wire.producing import Produced, ProducedPartition, ProducedTopic

KEY = ApiKey.PRODUCE
VERSIONS = range(3, 14)
_WRITE_ID = on_transactional_id(AclOperation.WRITE, "if the request has one; all of it is refused")
_WRITE = on_topic(AclOperation.WRITE)
NEEDS = (_WRITE_ID, _WRITE)


# Python 3.11 looks the members of an enum up slowly.
_NONE = ErrorCode.NONE

_RECORD_ERROR = ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
_FIRST_WITH_ZSTD = 7
_FIRST_WITH_TOPIC_IDS = 13


class _Batch(NamedTuple):
    """A batch that passed the checks. It may be appended if its transaction allows it."""

    name: TopicPartition
    header: BatchHeader
    records: bytes | memoryview


async def handle(request: Message, version: int, broker: BrokerContext) -> Message | None:
    """Append the batches that pass all checks. Return None for acks 0, which has no answer."""
    refused = _refused_by_id(request.transactional_id, broker)
    examined = [_examine_topic(topic, request, refused, version, broker) for topic in request.topic_data]
    batches = [entry for results in examined for entry in results if isinstance(entry, _Batch)]
    refusal = await _join_transaction(request.transactional_id, version, batches, broker)
    responses = [  # no await may come between the check above and this
        ProducedTopic(
            topic.name,
            [
                _answer(data, entry, refusal, version, broker)
                for data, entry in zip(topic.partition_data, results, strict=True)
            ],
            topic.topic_id,
        )
        for topic, results in zip(request.topic_data, examined, strict=True)
    ]
    if request.acks == 0:
        errors = {entry.error_code for response in responses for entry in response.partition_responses}
        if errors - {_NONE}:
            raise UnanswerableError(f"Produce with acks=0: {', '.join(map(error_name, sorted(errors)))}")
        broker.flusher.hurry()
        return None
    if broker.flusher.must_wait:
        await broker.flusher.barrier()
    return Produced(responses, throttle_time_ms=0)


def _refused_by_id(transactional_id: str | None, broker: BrokerContext) -> RefusedBatchError | None:
    if transactional_id is None or broker.may(_WRITE_ID, transactional_id):
        return None
    return RefusedBatchError(_WRITE_ID.error)


def _examine_topic(
    topic: Message, request: Message, refused: RefusedBatchError | None, version: int, broker: BrokerContext
) -> list[_Batch | RefusedBatchError]:
    name = broker.cluster.topic_name(topic.topic_id) if version >= _FIRST_WITH_TOPIC_IDS else topic.name
    if refused is None and name is not None and not broker.may(_WRITE, name):
        refused = RefusedBatchError(_WRITE.error)
    if refused is not None:
        return [refused] * len(topic.partition_data)
    results: list[_Batch | RefusedBatchError] = []
    for data in topic.partition_data:
        try:
            results.append(_examine(data, name, request.acks, version, broker))
        except RefusedBatchError as error:
            results.append(error)
    return results


def _examine(data: Message, topic: str | None, acks: int, version: int, broker: BrokerContext) -> _Batch:
    if topic is None:
        raise RefusedBatchError(ErrorCode.UNKNOWN_TOPIC_ID)
    if acks not in (-1, 0, 1):
        raise RefusedBatchError(ErrorCode.INVALID_REQUIRED_ACKS)
    if topic in INTERNAL_TOPICS:
        raise RefusedBatchError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only the broker writes to {topic}")
    name = TopicPartition(topic, data.index)
    if broker.cluster.partition(name) is None:
        raise RefusedBatchError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    config, now_ms = broker.cluster.config(topic), broker.clock.wall_ms()
    header = checked_header(data.records, config, now_ms, version >= _FIRST_WITH_ZSTD)
    if header.producer_id >= 0:
        _require_own_producer_id(header, broker)
    return _Batch(name, *as_kept(header, data.records, config))


def _require_own_producer_id(header: BatchHeader, broker: BrokerContext) -> None:
    if not header.is_transactional and broker.coordinator.table.owner_of(header.producer_id) is not None:
        message = f"producer id {header.producer_id} is of a transactional id, and the batch is not transactional"
        raise RefusedBatchError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, message)
    if broker.access.is_enabled and header.producer_id >= broker.cluster.next_producer_id:
        raise RefusedBatchError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no client has producer id {header.producer_id}"
        )


async def _join_transaction(
    transactional_id: str | None, version: int, batches: Iterable[_Batch], broker: BrokerContext
) -> RefusedBatchError | None:
    """Check that all transactional batches belong to the ongoing transaction of their producer. Return the refusal, or
    None."""
    joining = [batch for batch in batches if batch.header.is_transactional]  # a request may name a partition twice
    if not joining:
        return None
    if transactional_id is None:
        message = "a transactional batch in a request without transactional id"
        return RefusedBatchError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)
    producer, *others = {batch.header.producer for batch in joining}
    if others:
        return RefusedBatchError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional batches of several producers")
    implicit = version >= PRODUCE.implicit
    names = frozenset(batch.name for batch in joining)
    error = await join_transaction(broker, transactional_id, producer, names, implicit)
    if error is _NONE:
        return None
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and not implicit:
        error = ErrorCode.NOT_ENOUGH_REPLICAS  # retriable for every client
    return RefusedBatchError(PRODUCE.error(error, version))


def _answer(
    data: Message,
    entry: _Batch | RefusedBatchError,
    not_joined: RefusedBatchError | None,
    version: int,
    broker: BrokerContext,
) -> ProducedPartition:
    try:
        if isinstance(entry, RefusedBatchError):
            raise entry
        if not_joined is not None and entry.header.is_transactional:
            raise not_joined
        base_offset, append_time_ms, partition = _append(entry, version, broker)
    except RefusedBatchError as refused:
        errors = [
            _RECORD_ERROR(batch_index=index, batch_index_error_message=message)
            for index, message in refused.record_errors
        ]
        return ProducedPartition(data.index, refused.error, -1, -1, -1, errors, refused.message)
    return ProducedPartition(data.index, _NONE, base_offset, append_time_ms, partition.log.start_offset)


def _append(batch: _Batch, version: int, broker: BrokerContext) -> tuple[int, int, Partition]:
    partition = broker.cluster.partition(batch.name)  # look it up again: it may have been deleted meanwhile
    if partition is None:
        raise RefusedBatchError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    records, header, append_time_ms = batch.records, batch.header, NO_TIMESTAMP
    if broker.cluster.config(batch.name.topic).message_timestamp_type == APPEND_TIME:
        append_time_ms = broker.clock.wall_ms()
        records = stamp_append_time(records, append_time_ms)
        header = peek_header(records)
    is_tv2 = header.is_transactional and version >= PRODUCE.implicit
    result = partition.append(records, header, begins_at_zero=is_tv2)
    if result.verdict.error is not _NONE:
        raise RefusedBatchError(result.verdict.error)
    if not result.verdict.appends:  # for a duplicate, Kafka always returns MaxTimestamp
        append_time_ms = result.verdict.duplicate_timestamp
    return result.base_offset, append_time_ms, partition
