"""WriteTxnMarkers (27), v1-v2.

An operator ends a hanging transaction in a partition by hand (kafka-transactions abort). No hanging transaction can
begin in this broker, but a log may come from another broker. The transaction coordinator does not take part. The
marker's producer epoch must not be lower than that of the records (INVALID_PRODUCER_EPOCH), nor its coordinator epoch
lower than that of the producer's last marker (TRANSACTION_COORDINATOR_FENCED). v2 has the transaction version: a marker
of TV2 has a higher epoch than the records (KIP-1228).

Unlike Kafka, the broker refuses a marker for an unfinished transaction with INVALID_TXN_STATE if it is of two-phase
commit or was kept. The owner may have prepared the transaction, and after the marker its commit would still be answered
with success. End such a transaction by its transactional id (kafka-transactions forceTerminateTransaction). For the
same reason the broker refuses a marker for a transaction that is decided and waits for its own markers: it will end
without help. The coordinator's own topic takes no markers (INVALID_TOPIC_EXCEPTION).

A partition that a request names twice for one producer gets no marker (INVALID_REQUEST). The answer has one error for
both, so one of them would be done, and neither the client nor the audit log would say which.
"""

from collections import Counter
from collections.abc import AsyncIterator

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import TRANSACTION_STATE
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.wire.apis import ApiKey, Message, WriteTxnMarkersResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.WRITE_TXN_MARKERS
VERSIONS = range(1, 3)
_ALTER = on_cluster(AclOperation.ALTER, "instead of CLUSTER_ACTION", is_refused=False)
_CLUSTER_ACTION = on_cluster(AclOperation.CLUSTER_ACTION)
NEEDS = (_CLUSTER_ACTION, _ALTER)

_TV2 = 2


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Write every marker of the request."""
    may_write = broker.may(_ALTER) or broker.may(_CLUSTER_ACTION)
    times = Counter([(marker.producer_id, name) async for marker, name in _places(request)])
    errors: dict[int, dict[TopicPartition, ErrorCode]] = {marker.producer_id: {} for marker in request.markers}
    async for marker, name in _places(request):
        if not may_write:
            error = _CLUSTER_ACTION.error
        elif times[marker.producer_id, name] > 1:
            error = ErrorCode.INVALID_REQUEST
        else:
            error = _write(marker, name, broker)
        errors[marker.producer_id][name] = error
    await broker.flusher.barrier()
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult
    return WriteTxnMarkersResponse(
        markers=[
            result(producer_id=producer_id, topics=_by_topic(by_partition))
            for producer_id, by_partition in errors.items()
        ]
    )


async def _places(request: Message) -> AsyncIterator[tuple[Message, TopicPartition]]:
    """Each marker of ``request`` with each of its partitions."""
    for marker in request.markers:
        for topic in marker.topics:
            async for index in in_turns(topic.partition_indexes):
                yield marker, TopicPartition(topic.name, index)


def _write(marker: Message, name: TopicPartition, broker: BrokerContext) -> ErrorCode:
    if name.topic == TRANSACTION_STATE:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = broker.cluster.partition(name)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    producer = ProducerIdentity(marker.producer_id, marker.producer_epoch)
    if not producer or producer.epoch < 0 or marker.coordinator_epoch < 0:
        return ErrorCode.INVALID_REQUEST
    if broker.coordinator.table.is_coordinated(producer.producer_id, name):
        return ErrorCode.INVALID_TXN_STATE
    is_tv2 = marker.transaction_version >= _TV2
    error = partition.state.decide_marker(producer, marker.coordinator_epoch, is_tv2)
    if error is ErrorCode.NONE:
        kind = Marker.COMMIT if marker.transaction_result else Marker.ABORT
        partition.append_marker(kind, producer, broker.clock.wall_ms(), marker.coordinator_epoch)
    return error


def _by_topic(errors: dict[TopicPartition, ErrorCode]) -> list[Message]:
    topic_result = WriteTxnMarkersResponse.WritableTxnMarkerResult.WritableTxnMarkerTopicResult
    partition_result = topic_result.WritableTxnMarkerPartitionResult
    by_topic: dict[str, list[Message]] = {}
    for name, error in errors.items():
        by_topic.setdefault(name.topic, []).append(partition_result(partition_index=name.partition, error_code=error))
    return [topic_result(name=topic, partitions=results) for topic, results in by_topic.items()]
