"""Requests of group tests to a broker, in one call each."""

import struct
from collections.abc import Iterable

from dualwrite.wire.apis import (
    ApiKey,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    Message,
    SyncGroupRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.raw_client import RawClient

SESSION_MS = 30_000


def subscription(*topics: str) -> bytes:
    """What a consumer says that is subscribed to ``topics`` (ConsumerProtocolSubscription v0)."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def join_request(
    group: str,
    member_id: str = "",
    *topics: str,
    instance_id: str | None = None,
    protocols: Iterable[tuple[str, bytes]] | None = None,
    **more: object,
) -> Message:
    """A JoinGroup request of a consumer of ``topics`` that speaks "range"."""
    entry = JoinGroupRequest.JoinGroupRequestProtocol
    spoken = [("range", subscription(*topics))] if protocols is None else protocols
    fields = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 60_000, "protocol_type": "consumer", **more}
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance_id,
        protocols=[entry(name=name, metadata=metadata) for name, metadata in spoken],
        **fields,
    )


def sync_request(
    group: str,
    generation: int,
    member_id: str,
    assignments: dict[str, bytes] | None = None,
    instance_id: str | None = None,
    protocol: str = "range",
) -> Message:
    """A SyncGroup request of a consumer; the leader's has ``assignments``."""
    entry = SyncGroupRequest.SyncGroupRequestAssignment
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocol_name=protocol,
        assignments=[entry(member_id=each, assignment=data) for each, data in (assignments or {}).items()],
    )


def join(client: RawClient, group: str, member_id: str = "", *topics: str, version: int = 9, **more: object) -> Message:
    """The JoinGroup answer. A client that gets MEMBER_ID_REQUIRED joins again with its member id."""
    answer = client.ask(join_request(group, member_id, *topics, **more), version)  # type: ignore[arg-type]
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = client.ask(join_request(group, answer.member_id, *topics, **more), version)  # type: ignore[arg-type]
    return answer


def joined_member(client: RawClient, group: str, *topics: str, **more: object) -> Message:
    """The JoinGroup answer of a client that is alone in its group, and has assigned itself ``alone``."""
    answer = join(client, group, "", *topics, **more)
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
    assert answer.leader == answer.member_id
    instance = more.get("instance_id")
    request = sync_request(group, answer.generation_id, answer.member_id, {answer.member_id: b"alone"}, instance)  # type: ignore[arg-type]
    synced = client.ask(request, 5)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"alone")
    return answer


def heartbeat(
    client: RawClient, group: str, generation: int, member_id: str, instance_id: str | None = None
) -> ErrorCode:
    """What Heartbeat answers."""
    request = HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance_id
    )
    return ErrorCode(client.ask(request, 4).error_code)


def leave(client: RawClient, group: str, *members: tuple[str, str | None]) -> list[ErrorCode]:
    """What LeaveGroup answers for each of ``members``: member id and instance id."""
    entry = LeaveGroupRequest.MemberIdentity
    wanted = [entry(member_id=member_id, group_instance_id=instance_id) for member_id, instance_id in members]
    answer = client.ask(LeaveGroupRequest(group_id=group, members=wanted), 5)
    assert answer.error_code == ErrorCode.NONE
    return [ErrorCode(member.error_code) for member in answer.members]


JOIN = ApiKey.JOIN_GROUP
SYNC = ApiKey.SYNC_GROUP
