"""Requests of tests about consumer groups (KIP-848), in one call each."""

import uuid
from dataclasses import dataclass, field

from dualwrite.wire.apis import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    Message,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

HEARTBEAT, DESCRIBE = 1, 1
"""Newest versions."""

Owned = dict[uuid.UUID, list[int]]
"""Numbers of partitions by topic id."""


def owned_of(assignment: Message | None) -> Owned | None:
    """The partitions of an answer; None if it has none."""
    if assignment is None:
        return None
    return {topic.topic_id: sorted(topic.partitions) for topic in assignment.topic_partitions}


def heartbeat(
    client: RawClient, group: str, member_id: str, epoch: int, version: int = HEARTBEAT, **fields: object
) -> Message:
    """The answer to a ConsumerGroupHeartbeat that says nothing but ``fields``; ``owned`` is what the member holds."""
    owned = fields.pop("owned", None)
    entry = ConsumerGroupHeartbeatRequest.TopicPartitions
    assert owned is None or isinstance(owned, dict)
    given = {
        "rebalance_timeout_ms": -1,
        "topic_partitions": None
        if owned is None
        else [entry(topic_id=topic_id, partitions=numbers) for topic_id, numbers in owned.items()],
        **fields,
    }
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **given)
    return client.ask(request, version)


def describe(client: RawClient, *groups: str, version: int = DESCRIBE, **fields: object) -> list[Message]:
    """What ConsumerGroupDescribe says of ``groups``."""
    request = ConsumerGroupDescribeRequest(
        group_ids=list(groups),
        **{"include_authorized_operations": False, **fields},  # type: ignore[arg-type]
    )
    groups_described: list[Message] = client.ask(request, version).groups
    return groups_described


@dataclass
class ConsumerClient:
    """A member of a consumer group on a connection of its own: it owns what it is told to own, at once."""

    client: RawClient
    group: str
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    instance_id: str | None = None
    epoch: int = 0
    owned: Owned = field(default_factory=dict)

    def join(self, *topics: str, version: int = HEARTBEAT, **fields: object) -> Message:
        """Join, or join again without any partition."""
        self.owned = {}
        given = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(topics), **fields}
        return self._follow(self.say(0, version, **{"owned": {}, **given}))

    def beat(self, **fields: object) -> Message:
        """A heartbeat with the partitions that are owned."""
        return self._follow(self.say(self.epoch, **{"owned": self.owned, **fields}))

    def leave(self, epoch: int = -1) -> Message:
        """Leave the group; the epoch of -2 is for a static member that comes back."""
        return self.say(epoch)

    def say(self, epoch: int, version: int = HEARTBEAT, **fields: object) -> Message:
        """A heartbeat of which nothing is remembered."""
        return heartbeat(
            self.client, self.group, self.member_id, epoch, version, **{"instance_id": self.instance_id, **fields}
        )

    def settle(self, count: int) -> None:
        """Send heartbeats until ``count`` partitions are owned."""
        eventually(self.beat, lambda _: sum(map(len, self.owned.values())) == count)

    def _follow(self, answer: Message) -> Message:
        if answer.error_code == ErrorCode.NONE:
            self.member_id, self.epoch = answer.member_id, answer.member_epoch
            seen = owned_of(answer.assignment)
            self.owned = self.owned if seen is None else seen
        return answer
