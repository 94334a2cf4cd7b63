"""CreateTopics (19), v2-v7.

Every topic of the request is created or refused by itself; validate_only creates none. A replication factor over 1, an
assignment to another node, and a topic setting that the broker would not honour are refused, not passed over, as is a
name that differs from a topic's only by '.' for '_'. -1 for the partitions stands for num.partitions (KIP-464). v5
answers what the settings come to (KIP-525), v7 the topic's id. ACL: none yet.
"""

import asyncio
from collections import Counter

from dualwrite.broker.api.configs.config_entries import topic_entries
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.cluster import CreateTopic, TopicDecision
from dualwrite.wire.apis import ApiKey, CreateTopicsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.CREATE_TOPICS
VERSIONS = range(2, 8)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Create the topics of the request."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    for name, wanted in {topic.name: topic for topic in request.topics}.items():
        if times[name] > 1:
            decision = TopicDecision(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        else:
            decision = broker.cluster.create_topic(_command(wanted), request.validate_only)
        results.append(_result(name, decision, broker))
        await asyncio.sleep(0)  # a request may have many topics: let others be served between them
    await broker.flusher.barrier()
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _command(wanted: Message) -> CreateTopic:
    assignments = [(entry.partition_index, tuple(entry.broker_ids)) for entry in wanted.assignments]
    configs = {config.name: config.value for config in wanted.configs}
    return CreateTopic(wanted.name, wanted.num_partitions, wanted.replication_factor, assignments, configs)


def _result(name: str, decision: TopicDecision, broker: BrokerContext) -> Message:
    result = CreateTopicsResponse.CreatableTopicResult
    if decision.fact is None:
        return result(name=name, error_code=decision.error, error_message=decision.message, configs=[])
    return result(
        name=name,
        topic_id=decision.fact.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=decision.fact.partitions,
        replication_factor=1,
        configs=[
            result.CreatableTopicConfigs(
                name=entry.name, value=entry.value, read_only=False, config_source=entry.source, is_sensitive=False
            )
            for entry in topic_entries(decision.fact.configs, broker)
        ],
    )
