"""The topics to which a classic group of consumers is subscribed. (Kafka: ClassicGroup.computeSubscribedTopics.)"""

from dualwrite.broker.core.consumer_protocol import read_topics
from dualwrite.broker.core.groups import CONSUMER_PROTOCOL, Group


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
            topics |= read_topics(data)
    except ValueError:
        return None
    return frozenset(topics)


def read_among(group: Group, topics: frozenset[str]) -> frozenset[str]:
    """Those of ``topics`` that ``group`` may read: consumers with unknown subscriptions count as reading everything."""
    known = subscribed_topics(group)
    if known is None:
        return topics if group.protocol_type == CONSUMER_PROTOCOL else frozenset()
    return topics & known
