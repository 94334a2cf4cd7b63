"""CreateTopics (19), v2-v7.

Creates each topic of the request, or refuses that topic alone; validate_only creates none. The broker refuses a
replication factor above 1, an assignment to another node, a setting that it would not honour, and a name that differs
from an existing one only by '.' for '_'. A number of partitions of -1 stands for num.partitions (KIP-464). From v5 on
the answer has the topic's effective settings (KIP-525), from v7 on its id. Without
the right to read its settings the client gets no settings.
"""

import asyncio
from collections import Counter

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster, on_topic
from dualwrite.broker.api.configs.config_entries import topic_entries
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.cluster import CreateTopic, TopicDecision
from dualwrite.wire.apis import ApiKey, CreateTopicsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.CREATE_TOPICS
VERSIONS = range(2, 8)
_CREATE = on_topic(AclOperation.CREATE)
_CREATE_ALL = on_cluster(AclOperation.CREATE, "instead of CREATE on the topic", is_refused=False)
_DESCRIBE_CONFIGS = on_topic(AclOperation.DESCRIBE_CONFIGS, "else the answer has this as TopicConfigErrorCode")
NEEDS = (_CREATE, _CREATE_ALL, _DESCRIBE_CONFIGS)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Create the topics of the request."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    for name, topic in {topic.name: topic for topic in request.topics}.items():
        if times[name] > 1:
            decision = TopicDecision(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif not broker.may(_CREATE_ALL) and not broker.may(_CREATE, name):
            decision = TopicDecision(_CREATE.error, "Authorization failed.")
        else:
            decision = broker.cluster.create_topic(_command(topic), request.validate_only)
        results.append(_result(name, decision, broker))
        await asyncio.sleep(0)  # a request may have many topics: serve other requests between two
    await broker.flusher.barrier()
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _command(topic: Message) -> CreateTopic:
    assignments = [(entry.partition_index, tuple(entry.broker_ids)) for entry in topic.assignments]
    configs = {config.name: config.value for config in topic.configs}
    return CreateTopic(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


def _result(name: str, decision: TopicDecision, broker: BrokerContext) -> Message:
    result = CreateTopicsResponse.CreatableTopicResult
    if decision.fact is None:
        return result(name=name, error_code=decision.error, error_message=decision.message, configs=[])
    created = {"name": name, "topic_id": decision.fact.topic_id, "error_code": ErrorCode.NONE, "error_message": None}
    if not broker.may(_DESCRIBE_CONFIGS, name):
        return result(**created, topic_config_error_code=_DESCRIBE_CONFIGS.error, configs=None)
    return result(
        **created,
        num_partitions=decision.fact.partitions,
        replication_factor=1,
        configs=[
            result.CreatableTopicConfigs(
                name=entry.name, value=entry.value, read_only=False, config_source=entry.source, is_sensitive=False
            )
            for entry in topic_entries(decision.fact.configs, broker)
        ],
    )
