"""The description of one group, which its coordinator gives by the protocol of the group.

No request describes groups of every kind. So the coordinator is asked by the classic protocol first, then by the
consumer protocol (KIP-848). Only a group of yet another kind, or a missing one, is looked for in a list.
"""

from collections.abc import Callable
from typing import NamedTuple

from dualwrite.admin.views import MemberDetails
from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.protocol.group_requests import (
    assigned_partitions,
    consumer_group_description,
    group_description,
    group_listing,
)
from dualwrite.client.protocol.requests import VersionedRequest
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

_CLASSIC, _CONSUMER = "classic", "consumer"
_CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of a group of consumers: not of Connect's workers, for example."""
_DEAD = "Dead"
"""The state of a group that DescribeGroups does not find, before v6."""
_NOT_HERE = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""The errors of ConsumerGroupDescribe after which the list may still have the group."""


class GroupDescription(NamedTuple):
    """A group; see GroupDetails."""

    state: str
    kind: str
    assignor: str
    members: tuple[MemberDetails, ...] | None


def described_group(cluster: ClusterClient, group_id: str) -> GroupDescription:
    """The description of ``group_id``.

    :raises KafkaRefusedError: GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED.
    """
    return _classic(cluster, group_id) or _consumer(cluster, group_id) or _listed(cluster, group_id)


def ask_about(
    cluster: ClusterClient, group_id: str, call: VersionedRequest, code_of: Callable[[Message], int]
) -> Message:
    """The answer of the group's coordinator, which is no error."""
    answer = cluster.ask_group_coordinator(group_id, call, code_of)
    require_success(call.api_key, group_id, code_of(answer))
    return answer


def require_success(api_key: ApiKey, group_id: str, code: int) -> None:
    """Raise the error that ``code`` stands for."""
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise _no_group(group_id)
    raise_for(api_key, f"group {group_id!r}", code)


def _classic(cluster: ClusterClient, group_id: str) -> GroupDescription | None:
    call = group_description(group_id)
    (group,) = cluster.ask_group_coordinator(group_id, call, _first_code).groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == _DEAD:
        return None
    require_success(call.api_key, group_id, group.error_code)
    is_consumer = group.protocol_type == _CONSUMER_PROTOCOL_TYPE
    members = tuple(_classic_member(member, is_consumer) for member in group.members)
    return GroupDescription(group.group_state, _CLASSIC, group.protocol_data or "", members)


def _consumer(cluster: ClusterClient, group_id: str) -> GroupDescription | None:
    try:
        (group,) = ask_about(cluster, group_id, consumer_group_description(group_id), _first_code).groups
    except KafkaRefusedError as error:
        if error.code not in _NOT_HERE:
            raise
        return None
    members = tuple(_consumer_member(member) for member in group.members)
    return GroupDescription(group.group_state, _CONSUMER, group.assignor_name, members)


def _listed(cluster: ClusterClient, group_id: str) -> GroupDescription:
    listing = ask_about(cluster, group_id, group_listing(), lambda answer: int(answer.error_code))
    for group in listing.groups:
        if group.group_id == group_id:
            return GroupDescription(group.group_state, group.group_type.lower(), "", None)
    raise _no_group(group_id)


def _no_group(group_id: str) -> KafkaRefusedError:
    code = ErrorCode.GROUP_ID_NOT_FOUND
    return KafkaRefusedError(f"the cluster has no group {group_id!r}", code, code.name)


def _first_code(answer: Message) -> int:
    return int(answer.groups[0].error_code)


def _classic_member(member: Message, is_consumer: bool) -> MemberDetails:
    try:
        partitions = tuple(sorted(assigned_partitions(bytes(member.member_assignment)))) if is_consumer else ()
    except ValueError:
        partitions = ()  # an assignment of another client's own form
    return MemberDetails(member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions)


def _consumer_member(member: Message) -> MemberDetails:
    partitions = (
        TopicPartition(topic.topic_name, number)
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    return MemberDetails(
        member.member_id, member.instance_id, member.client_id, member.client_host, tuple(sorted(partitions))
    )
