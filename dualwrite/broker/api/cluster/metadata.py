"""Metadata (3), v0-v13.

Topics by name, from v10 on also by id (KIP-516); no list means all of them (in v0 an empty list does). A topic that is
missing is created if the request allows it (always before v4) and auto.create.topics.enable is true, with
num.partitions partitions. The broker's own topics are there too, marked as internal. Every partition is led by the one
node, in leader epoch 0. From v8 on it tells, if asked, that everything is allowed (KIP-430). ACL: none yet.
"""

from dualwrite.broker.api.context import NODE_ID, BrokerContext
from dualwrite.broker.api.operations import ON_CLUSTER, ON_TOPIC
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import INTERNAL_TOPICS, CreateTopic
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.runtime.partition import LEADER_EPOCH
from dualwrite.ids import is_legal_topic
from dualwrite.wire.apis import ApiKey, Message, MetadataResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.METADATA
VERSIONS = range(14)

_FIRST_WITH_CHOICE_OF_CREATION = 4
_AS_METADATA = {
    ErrorCode.INVALID_REQUEST: ErrorCode.INVALID_TOPIC_EXCEPTION,  # a name that only the broker may use
    ErrorCode.TOPIC_ALREADY_EXISTS: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # it is being deleted: ask again
}


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Answer with the node, and the topics that the request names."""
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        topics = [_describe(topic) for topic in broker.cluster.topics().values()]
    else:
        may_create = broker.auto_create_topics and (
            version < _FIRST_WITH_CHOICE_OF_CREATION or request.allow_auto_topic_creation
        )
        once = {(entry.name, entry.topic_id): entry for entry in wanted}.values()
        topics = [_find(entry, may_create, broker) async for entry in in_turns(once)]
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.authorized_operations = ON_TOPIC
    await broker.flusher.barrier()
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=NODE_ID, host=broker.host, port=broker.port, rack=None)
        ],
        cluster_id=broker.cluster.state.cluster_id,
        controller_id=NODE_ID,
        topics=topics,
        authorized_operations=ON_CLUSTER if request.include_cluster_authorized_operations else None,
        error_code=ErrorCode.NONE,
    )


def _find(wanted: Message, may_create: bool, broker: BrokerContext) -> Message:
    name = wanted.name
    if name is None:
        name = broker.cluster.topic_name(wanted.topic_id)
        if name is None:
            return _missing(ErrorCode.UNKNOWN_TOPIC_ID, None, wanted.topic_id)
    topic = broker.cluster.topic(name)
    if topic is not None:
        return _describe(topic)
    if not may_create:
        legal = is_legal_topic(name)
        return _missing(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION, name, None
        )
    decision = broker.cluster.create_topic(CreateTopic(name))
    if decision.fact is not None:
        return _describe(decision.fact)
    return _missing(_AS_METADATA.get(decision.error, decision.error), name, None)


def _missing(error: ErrorCode, name: str | None, topic_id: object) -> Message:
    return MetadataResponse.MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=[],
    )


def _describe(topic: TopicCreated) -> Message:
    entry = MetadataResponse.MetadataResponseTopic
    return entry(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            entry.MetadataResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=index,
                leader_id=NODE_ID,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=[NODE_ID],
                isr_nodes=[NODE_ID],
                offline_replicas=[],
            )
            for index in range(topic.partitions)
        ],
    )
