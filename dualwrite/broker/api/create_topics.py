"""CreateTopics (19), v2-v7.

Every topic of the request is created or refused by itself; validate_only creates none. A replica assignment, a
replication factor over 1, and a topic setting that the broker would not honour are refused, not passed over. -1 for the
partitions stands for num.partitions (KIP-464). v7 answers the topic's id. ACL: none yet.
"""

from collections import Counter

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.cluster import CreateTopic, TopicDecision
from dualwrite.wire.apis import ApiKey, CreateTopicsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.CREATE_TOPICS
VERSIONS = range(2, 8)

_TOPIC_CONFIG = 1  # DescribeConfigs' ConfigSource.DYNAMIC_TOPIC_CONFIG


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Create the topics of the request."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    for name in times:
        wanted = next(topic for topic in request.topics if topic.name == name)
        if times[name] > 1:
            decision = TopicDecision(ErrorCode.INVALID_REQUEST, f"topic '{name}' occurs {times[name]} times")
        else:
            decision = broker.cluster.create_topic(_command(wanted), request.validate_only)
        results.append(_result(name, decision))
    await broker.flusher.barrier()
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _command(wanted: Message) -> CreateTopic:
    configs = {config.name: config.value for config in wanted.configs}
    return CreateTopic(wanted.name, wanted.num_partitions, wanted.replication_factor, bool(wanted.assignments), configs)


def _result(name: str, decision: TopicDecision) -> Message:
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
                name=key, value=value, read_only=False, config_source=_TOPIC_CONFIG, is_sensitive=False
            )
            for key, value in decision.fact.configs.items()
        ],
    )
