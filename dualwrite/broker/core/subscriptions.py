"""The topics to which a group of consumers is subscribed: the only part of members' metadata that the broker reads.

A subscription of any version begins like version 0: with the version, and the topics' names. (Kafka:
ConsumerProtocolSubscription, ClassicGroup.computeSubscribedTopics.)
"""

import struct

from dualwrite.broker.core.groups import CONSUMER_PROTOCOL, Group
from dualwrite.broker.facts.fields import decode_string

_HEAD = struct.Struct(">hi")


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics to which members of ``group`` are subscribed; None if that is unknown."""
    if group.protocol_type != CONSUMER_PROTOCOL:
        return None
    topics: set[str] = set()
    try:
        for member in group.members.values():
            data = member.metadata(group.protocol)
            if data is None:
                return None
            topics |= _topics(data)
    except ValueError:
        return None
    return frozenset(topics)


def is_subscribed(group: Group, topic: str) -> bool:
    """True if ``group`` may read ``topic``: consumers with unknown subscriptions count as reading everything."""
    topics = subscribed_topics(group)
    return group.protocol_type == CONSUMER_PROTOCOL if topics is None else topic in topics


def _topics(data: bytes) -> set[str]:
    if len(data) < _HEAD.size:
        raise ValueError("subscription cut short")
    _, count = _HEAD.unpack_from(data)
    topics, position = set(), _HEAD.size
    for _ in range(count):
        topic, position = decode_string(data, position)
        topics.add(topic)
    return topics
