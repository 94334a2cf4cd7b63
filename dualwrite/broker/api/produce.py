"""Produce (0), v3-v13.

One record batch v2 per partition; the header and the CRC-32C are checked, the records are not unpacked. acks 0 is not
answered, and an error then closes the connection; acks 1 and -1 are answered once the batch is on disk. A
transactional batch must belong to the ongoing transaction of its transactional id: from v12 on (KIP-890, TV2) its
partition joins implicitly, before that it must have been added (no hanging transaction can begin). v13 names topics
by id. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext, UnanswerableError
from dualwrite.broker.core.commands import AddPartitions, VerifyPartitions
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition
from dualwrite.records.header import HEADER_SIZE, BatchHeader, MalformedBatchError, checksum_matches, peek_header
from dualwrite.wire.apis import ApiKey, Message, ProduceResponse
from dualwrite.wire.error_codes import ErrorCode, error_name

KEY = ApiKey.PRODUCE
VERSIONS = range(3, 14)

_FIRST_WITH_ZSTD = 7
_FIRST_WITH_ABORTABLE = 11
_FIRST_OF_TV2 = 12
_FIRST_WITH_TOPIC_IDS = 13
_ZSTD = 4
_LAST_CODEC = 4
_LEAST_RECORD_SIZE = 7  # size, attributes, two deltas, key, value and headers: a byte each


class _RefusedError(Exception):
    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(error, message)
        self.error = error
        self.message = message


async def handle(request: Message, version: int, broker: BrokerContext) -> Message | None:
    """Append what may be appended; None for acks 0, which is not answered."""
    responses = []
    for topic in request.topic_data:
        name = broker.cluster.topic_name(topic.topic_id) if version >= _FIRST_WITH_TOPIC_IDS else topic.name
        responses.append(
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    await _produce(request, version, name, entry, broker) for entry in topic.partition_data
                ],
            )
        )
    if request.acks == 0:
        errors = {entry.error_code for response in responses for entry in response.partition_responses}
        if errors != {ErrorCode.NONE}:
            raise UnanswerableError(f"Produce with acks=0: {', '.join(map(error_name, sorted(errors)))}")
        return None
    await broker.flusher.barrier()
    return ProduceResponse(responses=responses, throttle_time_ms=0)


async def _produce(request: Message, version: int, topic: str | None, data: Message, broker: BrokerContext) -> Message:
    response = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    try:
        base_offset, partition = await _append(request, version, topic, data, broker)
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
        base_offset=base_offset,
        log_append_time_ms=-1,
        log_start_offset=partition.log.start_offset,
        record_errors=[],
    )


async def _append(
    request: Message, version: int, topic: str | None, data: Message, broker: BrokerContext
) -> tuple[int, Partition]:
    if topic is None:
        raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
    if request.acks not in (-1, 0, 1):
        raise _RefusedError(ErrorCode.INVALID_REQUIRED_ACKS)
    name = TopicPartition(topic, data.index)
    partition = broker.cluster.partition(name)
    if partition is None:
        raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    header = _checked_header(data.records, version, broker.cluster.max_message_bytes(topic))
    if header.is_transactional:
        await _join_transaction(request.transactional_id, version, name, header, broker)
    result = partition.append(data.records, header)  # nothing may come between the check above and this
    if result.verdict.error is not ErrorCode.NONE:
        raise _RefusedError(result.verdict.error)
    return result.base_offset, partition


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


async def _join_transaction(
    transactional_id: str | None, version: int, name: TopicPartition, header: BatchHeader, broker: BrokerContext
) -> None:
    """See to it that the batch belongs to the ongoing transaction of its producer, and to nobody else's.

    The last look is without a wait before the append: while the partition was being added, another client may have
    ended or fenced the transaction, and a batch appended behind its markers would hang for ever.
    """
    if transactional_id is None:
        raise _RefusedError(ErrorCode.INVALID_TXN_STATE, "a transactional batch in a request without transactional id")
    partitions = frozenset({name})
    if version >= _FIRST_OF_TV2:
        reply = await broker.coordinator.execute(AddPartitions(transactional_id, header.producer, partitions))
        if reply.error is not ErrorCode.NONE:
            raise _RefusedError(_as_produce_error(reply.error, version))
    reply = broker.coordinator.check(VerifyPartitions(transactional_id, header.producer, partitions))
    if reply.error is not ErrorCode.NONE:
        raise _RefusedError(_as_produce_error(reply.error, version))


def _as_produce_error(error: ErrorCode, version: int) -> ErrorCode:
    """The coordinator's errors as a producer of ``version`` knows them (Kafka: AddPartitionsToTxnManager)."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < _FIRST_OF_TV2:
        return ErrorCode.NOT_ENOUGH_REPLICAS  # retriable for every client
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return error
