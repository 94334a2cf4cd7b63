"""Facts about groups as Kafka stores them: GroupMetadataKey v2 and GroupMetadataValue v4. Kafka's tools can read them.

A fact holds a complete generation: its members, their subscriptions and their assignments. The steps of a rebalance are
not stored: after a restart the last generation continues, or its members join again.
"""

import struct
from dataclasses import dataclass

from dualwrite.broker.facts.fields import (
    INT,
    LONG,
    NO_TAGGED_FIELDS,
    SHORT,
    LaterReleaseError,
    decode_compact,
    decode_string,
    encode_compact,
    encode_string,
    version_error,
)
from dualwrite.broker.facts.tagged_fields import decode_tagged_fields
from dualwrite.records.varint import decode_unsigned_varint, encode_unsigned_varint

KEY_TYPE = 2
"""The number of the record type, with which the key begins (CoordinatorRecordSerde)."""

_VALUE_VERSION = 4


@dataclass(frozen=True, slots=True)
class MemberRecorded:
    """A member of a generation.

    :param instance_id: group.instance.id of a static member (KIP-345), else None.
    :param rebalance_timeout_ms: how long the member may take to join again.
    :param subscription: the member's metadata under the generation's protocol, opaque to the broker.
    :param assignment: the assignment from the leader, opaque to the broker.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupRecorded:
    """A generation of a group. Without members, the group has been empty since ``since_ms``.

    :param protocol_type: "consumer" for consumers; None for a group that has only ever committed offsets.
    :param leader: None without members; and if the generation is that of a consumer group that has become a classic
        one. Its members have to join again.
    :param since_ms: when the group entered this state, in milliseconds since the epoch.
    """

    group: str
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[MemberRecorded, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupForgotten:
    """The group was deleted, or had no members and no offsets left: a tombstone."""

    group: str


GroupFact = GroupRecorded | GroupForgotten


def encode_fact(fact: GroupFact) -> tuple[bytes, bytes | None]:
    """The key and the value of the record that stores ``fact``; a tombstone has no value."""
    key = SHORT.pack(KEY_TYPE) + encode_string(fact.group)
    if isinstance(fact, GroupForgotten):
        return key, None
    parts = [
        SHORT.pack(_VALUE_VERSION),
        encode_compact(fact.protocol_type or ""),
        INT.pack(fact.generation),
        encode_compact(fact.protocol),
        encode_compact(fact.leader),
        LONG.pack(fact.since_ms),
        encode_unsigned_varint(len(fact.members) + 1),
        *map(_encode_member, fact.members),
        NO_TAGGED_FIELDS,
    ]
    return key, b"".join(parts)


def decode_fact(key: bytes, value: bytes | None) -> GroupFact:
    """The fact that a record stores.

    :raises ValueError: if the record is of a type, version or form that this release does not know.
    """
    try:
        if SHORT.unpack_from(key)[0] != KEY_TYPE:
            raise LaterReleaseError("key of an unknown type")
        group, end = decode_string(key, SHORT.size)
        if end != len(key):
            raise ValueError("group key of another form")
        return GroupForgotten(group) if value is None else _decode_value(group, value)
    except struct.error as error:
        raise ValueError(f"group record cut short: {error}") from error


def _decode_value(group: str, value: bytes) -> GroupRecorded:
    version = SHORT.unpack_from(value)[0]
    if version != _VALUE_VERSION:
        raise version_error("group value", version, _VALUE_VERSION)
    protocol_type, position = _text(value, SHORT.size)
    generation = INT.unpack_from(value, position)[0]
    protocol, position = _text(value, position + INT.size)
    leader, position = _text(value, position)
    since_ms = LONG.unpack_from(value, position)[0]
    count, position = decode_unsigned_varint(value, position + LONG.size)
    members = []
    for _ in range(count - 1):
        member, position = _decode_member(value, position)
        members.append(member)
    _, position = decode_tagged_fields(value, position)
    if position != len(value):
        raise ValueError("group value of another form")
    return GroupRecorded(group, protocol_type or None, generation, protocol, leader, since_ms, tuple(members))


def _encode_member(member: MemberRecorded) -> bytes:
    parts = (
        *map(encode_compact, (member.member_id, member.instance_id, member.client_id, member.client_host)),
        INT.pack(member.rebalance_timeout_ms),
        INT.pack(member.session_timeout_ms),
        encode_compact(member.subscription),
        encode_compact(member.assignment),
        NO_TAGGED_FIELDS,
    )
    return b"".join(parts)


def _decode_member(value: bytes, position: int) -> tuple[MemberRecorded, int]:
    texts = []
    for _ in range(4):
        text, position = _text(value, position)
        texts.append(text)
    member_id, instance_id, client_id, client_host = texts
    rebalance_timeout_ms = INT.unpack_from(value, position)[0]
    session_timeout_ms = INT.unpack_from(value, position + INT.size)[0]
    subscription, position = decode_compact(value, position + 2 * INT.size)
    assignment, position = decode_compact(value, position)
    _, position = decode_tagged_fields(value, position)
    if member_id is None or client_id is None or client_host is None or subscription is None or assignment is None:
        raise ValueError("a member lacks a field that must not be null")
    member = MemberRecorded(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
    return member, position


def _text(value: bytes, position: int) -> tuple[str | None, int]:
    data, end = decode_compact(value, position)
    return None if data is None else data.decode(), end
