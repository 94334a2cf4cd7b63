"""Metadata (3), v0-v13.

Answers the node, and topics by name or, from v10 on, by id (KIP-516). A request without a list asks for all topics; in
v0 an empty list does. A missing topic is created with num.partitions partitions if the request allows it (always before
v4) and auto.create.topics.enable is true. The broker's own topics are marked as internal. The one node leads every
partition, in leader epoch 0. From v8 on the answer has, on request, the authorized operations: all (KIP-430).
"""

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.access.needs import on_cluster, on_topic
from dualwrite.broker.api.auditing.acts import created_by_metadata
from dualwrite.broker.api.auditing.audit_log import log_act
from dualwrite.broker.api.cluster.leading import leading
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import INTERNAL_TOPICS, CreateTopic
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.ids import is_legal_topic
from dualwrite.wire.apis import ApiKey, Message, MetadataResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.METADATA
VERSIONS = range(14)
_DESCRIBE = on_topic(AclOperation.DESCRIBE, "left out if the client asks for all topics")
_CREATE = on_topic(AclOperation.CREATE, "for a topic that is to be created")
_CREATE_ALL = on_cluster(AclOperation.CREATE, "instead of CREATE on the topic", is_refused=False)
_DESCRIBE_CLUSTER = on_cluster(
    AclOperation.DESCRIBE, "for the authorized operations of the cluster alone", is_refused=False
)
NEEDS = (_DESCRIBE, _CREATE, _CREATE_ALL, _DESCRIBE_CLUSTER)
_SEE = _DESCRIBE._replace(is_refused=False)  # a list of all topics leaves out the others

_FIRST_WITH_CHOICE_OF_CREATION = 4
_AS_METADATA = {
    ErrorCode.INVALID_REQUEST: ErrorCode.INVALID_TOPIC_EXCEPTION,  # the name is reserved for the broker
    ErrorCode.TOPIC_ALREADY_EXISTS: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # it is being deleted: ask again
}


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Answer with the node, and the topics that the request names."""
    requested, created = request.topics, list[str]()
    if requested is None or (version == 0 and not requested):
        known = broker.cluster.topics().values()
        topics = [_describe(topic, broker) for topic in known if broker.may(_SEE, topic.name)]
    else:
        may_create = broker.auto_create_topics and (
            version < _FIRST_WITH_CHOICE_OF_CREATION or request.allow_auto_topic_creation
        )
        distinct = {(entry.name, entry.topic_id): entry for entry in requested}.values()
        topics = [_find(entry, may_create, broker, created) async for entry in in_turns(distinct)]
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.name is not None and topic.error_code != _DESCRIBE.error:
                topic.authorized_operations = broker.operations(ResourceType.TOPIC, topic.name)
    operations: frozenset[int] | None = None
    if request.include_cluster_authorized_operations:
        operations = broker.operations(ResourceType.CLUSTER) if broker.may(_DESCRIBE_CLUSTER) else frozenset()
    await broker.flusher.barrier()
    for name in created:
        log_act(created_by_metadata(name), broker.client)
    node = MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[node(node_id=broker.node_id, host=broker.host, port=broker.port, rack=None)],
        cluster_id=broker.cluster.state.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        authorized_operations=operations,
        error_code=ErrorCode.NONE,
    )


def _find(topic_request: Message, may_create: bool, broker: BrokerContext, created: list[str]) -> Message:
    """The description of a topic; its name is added to ``created`` if it is new."""
    name = topic_request.name
    if name is None:
        name = broker.cluster.topic_name(topic_request.topic_id)
        if name is None:
            return _missing(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_request.topic_id)
    if not broker.may(_DESCRIBE, name):
        by_name = topic_request.name is not None
        return _missing(_DESCRIBE.error, name if by_name else None, None if by_name else topic_request.topic_id)
    existing = broker.cluster.topic(name)
    if existing is not None:
        return _describe(existing, broker)
    if not may_create:
        legal = is_legal_topic(name)
        return _missing(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION, name, None
        )
    if not broker.may(_CREATE_ALL) and not broker.may(_CREATE, name):
        return _missing(_CREATE.error, name, None)
    decision = broker.cluster.create_topic(CreateTopic(name))
    if decision.fact is not None:
        created.append(name)
        return _describe(decision.fact, broker)
    return _missing(_AS_METADATA.get(decision.error, decision.error), name, None)


def _missing(error: ErrorCode, name: str | None, topic_id: object) -> Message:
    return MetadataResponse.MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=[],
    )


def _describe(topic: TopicCreated, broker: BrokerContext) -> Message:
    entry, node_id = MetadataResponse.MetadataResponseTopic, broker.node_id
    return entry(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[entry.MetadataResponsePartition(**leading(index, node_id)) for index in range(topic.partitions)],
    )
