"""JoinGroup (11), v0-v9.

A member waits for the next generation of its group. The answer names the protocol and the leader; the leader also gets
the metadata of every member. A group's first rebalance waits group.initial.rebalance.delay.ms for more members.

From v4 on a client without a member id gets one with MEMBER_ID_REQUIRED, and must join again with it (KIP-394). From v5
on a member may be static (KIP-345): after a restart it continues under its instance id without a rebalance, and an
older client with the same instance id is fenced. In a full group (group.max.size) it takes its former place, where
Apache Kafka answers GROUP_MAX_SIZE_REACHED. The broker ignores v8's reason. In v9 a static leader that comes back gets
skip_assignment (KIP-814). In v0 the session timeout is also the rebalance timeout.

A consumer may also join a consumer group (KIP-848), unless group.consumer.migration.policy is "disabled". There no
member leads, the answer comes at once, and the generation is the member's epoch. A client that is no member, and says
that it owns partitions, gets UNKNOWN_MEMBER_ID.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.group_commands import JoinGroup, JoinReply
from dualwrite.wire.apis import ApiKey, JoinGroupResponse, Message

KEY = ApiKey.JOIN_GROUP
VERSIONS = range(10)
_READ = on_group(AclOperation.READ)
NEEDS = (_READ,)

_FIRST_WITH_REBALANCE_TIMEOUT = 1
_FIRST_WITH_KNOWN_MEMBERS = 4
_FIRST_WITH_NULL_PROTOCOL = 7
_FIRST_WITH_SKIPPED_ASSIGNMENT = 9


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Join, and wait until the group is complete."""
    if not broker.may(_READ, request.group_id):
        return _response(JoinReply(_READ.error), version)
    session_ms = request.session_timeout_ms
    reply = await broker.groups.join(
        JoinGroup(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            broker.client.client_id,
            broker.client.host,
            session_ms,
            request.rebalance_timeout_ms if version >= _FIRST_WITH_REBALANCE_TIMEOUT else session_ms,
            request.protocol_type,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
            needs_member_id=version >= _FIRST_WITH_KNOWN_MEMBERS,
            can_skip_assignment=version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
        ),
        broker.polls,
    )
    return _response(reply, version)


def _response(reply: JoinReply, version: int) -> Message:
    entry = JoinGroupResponse.JoinGroupResponseMember
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol if version >= _FIRST_WITH_NULL_PROTOCOL else reply.protocol or "",
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            entry(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in reply.members
        ],
    )
