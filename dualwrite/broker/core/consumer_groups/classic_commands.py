"""Requests of the classic protocol to a consumer group.

An empty consumer group becomes a classic group when a client of that protocol joins, as in Apache Kafka. A group with
members does not mix the protocols, as in Apache Kafka with group.consumer.migration.policy=disabled.
"""

from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.core.group_commands import (
    GroupCommand,
    GroupReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    SyncGroup,
    SyncReply,
)
from dualwrite.broker.core.groups import NO_MEMBER
from dualwrite.wire.error_codes import ErrorCode


def refuse_classic(group: ConsumerGroup, command: GroupCommand) -> GroupReply | None:
    """The refusal of a classic ``command``; None if the group has to become a classic group first. An administrator's
    LeaveGroup is no concern of this function."""
    if isinstance(command, JoinGroup):
        if group.subscriptions:
            return JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id)
        return None if command.member_id == NO_MEMBER else JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, command.member_id)
    if isinstance(command, SyncGroup):
        return SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)
    assert isinstance(command, Heartbeat), f"{command} is about a classic group"
    return HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID)
