"""CreatePartitions (37), v0-v3.

Raises the number of partitions of each topic, or refuses that topic alone; validate_only adds none. The number can only
grow. An assignment must name the one node (KIP-195). Internal topics keep their one partition.
"""

import asyncio
from collections import Counter

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.cluster import RESERVED_TOPICS, RefusedError, TopicDecision, check_replicas
from dualwrite.wire.apis import ApiKey, CreatePartitionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.CREATE_PARTITIONS
VERSIONS = range(4)
_ALTER = on_topic(AclOperation.ALTER)
NEEDS = (_ALTER,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Add partitions to the topics of the request."""
    times = Counter(topic.name for topic in request.topics)
    result = CreatePartitionsResponse.CreatePartitionsTopicResult
    results = []
    for name, topic in {topic.name: topic for topic in request.topics}.items():
        if times[name] > 1:
            decision = TopicDecision(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        else:
            decision = _add(topic, request.validate_only, broker)
        results.append(result(name=name, error_code=decision.error, error_message=decision.message))
        await asyncio.sleep(0)  # a request may have many topics: serve other requests between two
    await broker.flusher.barrier()
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)


def _add(topic: Message, validate_only: bool, broker: BrokerContext) -> TopicDecision:
    if not broker.may(_ALTER, topic.name):
        return TopicDecision(_ALTER.error, "The topic authorization is failed.")
    if topic.name in RESERVED_TOPICS:
        return TopicDecision(ErrorCode.INVALID_PARTITIONS, f"'{topic.name}' is a topic of the broker itself")
    if broker.cluster.topic(topic.name) is None:
        return TopicDecision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assignments = topic.assignments
    try:
        for entry in assignments or ():
            check_replicas(entry.broker_ids, broker.node_id)
    except RefusedError as error:
        return TopicDecision(error.error, str(error))
    count = None if assignments is None else len(assignments)
    return broker.cluster.add_partitions(topic.name, topic.count, count, validate_only)
