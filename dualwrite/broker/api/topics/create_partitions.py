"""CreatePartitions (37), v0-v3.

Each topic of the request gets as many partitions as it says, or is refused by itself; validate_only adds none. The
number can only grow. Assignments are taken if each names the one node (KIP-195), as nothing else is possible. Internal
topics keep their one partition. ACL: none yet.
"""

import asyncio
from collections import Counter

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.cluster import ONLY_REPLICAS, RESERVED_TOPICS, TopicDecision
from dualwrite.wire.apis import ApiKey, CreatePartitionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.CREATE_PARTITIONS
VERSIONS = range(4)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Add partitions to the topics of the request."""
    times = Counter(topic.name for topic in request.topics)
    result = CreatePartitionsResponse.CreatePartitionsTopicResult
    results = []
    for name, wanted in {topic.name: topic for topic in request.topics}.items():
        if times[name] > 1:
            decision = TopicDecision(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        else:
            decision = _add(wanted, request.validate_only, broker)
        results.append(result(name=name, error_code=decision.error, error_message=decision.message))
        await asyncio.sleep(0)  # a request may have many topics: let others be served between them
    await broker.flusher.barrier()
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)


def _add(wanted: Message, validate_only: bool, broker: BrokerContext) -> TopicDecision:
    if wanted.name in RESERVED_TOPICS:
        return TopicDecision(ErrorCode.INVALID_PARTITIONS, f"the broker itself uses '{wanted.name}'")
    if broker.cluster.topic(wanted.name) is None:
        return TopicDecision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assignments = wanted.assignments
    if assignments is not None and any(tuple(entry.broker_ids) != ONLY_REPLICAS for entry in assignments):
        message = f"the replicas of each partition can only be {list(ONLY_REPLICAS)}, the one node"
        return TopicDecision(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    count = None if assignments is None else len(assignments)
    return broker.cluster.add_partitions(wanted.name, wanted.count, count, validate_only)
