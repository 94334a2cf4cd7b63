"""Facts about consumer groups as Kafka stores them (KIP-848): five types of records. Kafka's tools can read them.

A group, its members and their assignments are separate records, so a heartbeat stores only what it changes. After a
restart the group continues exactly where it was. Sources: CoordinatorRecordSerde, and the schemas of
ConsumerGroupMetadata, -MemberMetadata, -TargetAssignmentMetadata, -TargetAssignmentMember and -CurrentMemberAssignment.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from dualwrite.broker.facts.assignments import TopicIdPartition, decode_partitions, encode_partitions
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

_VALUE_VERSION = 0
_HASH_TAG = 0
_CLASSIC_TAG = 0
_PRESENT = b"\x01"
"""Begins a nullable structure that is there."""


class RecordType(IntEnum):
    """The number with which a record's key begins."""

    GROUP = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


_TYPES = frozenset(map(int, RecordType))
_ABOUT_MEMBERS = frozenset({RecordType.MEMBER, RecordType.TARGET, RecordType.CURRENT})


class MemberState(IntEnum):
    """How far a member is on the way to its target assignment (Kafka: MemberState)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has to give partitions up first."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not given up yet."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupRecorded:
    """The group's epoch, which every change of members, subscriptions or topics raises.

    :param metadata_hash: stands for the topics and the numbers of partitions that the members are subscribed to.
    """

    group: str
    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ClassicMembership:
    """The part of a member that speaks the classic protocol in a consumer group.

    :param protocols: its assignors with its metadata for each, in the order of its preference.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberSubscribed:
    """What a member last said about itself.

    :param instance_id: group.instance.id of a static member (KIP-345), else None.
    :param pattern: a regular expression for names of topics, in RE2's syntax; None or empty if there is none.
    :param rebalance_timeout_ms: how long the member may take to give partitions up.
    :param assignor: the assignor that the member prefers; None if it has no preference.
    :param classic: None if the member speaks the consumer protocol.
    """

    group: str
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMembership | None = None


@dataclass(frozen=True, slots=True)
class TargetEpochRecorded:
    """The group's epoch for which the target assignments were made."""

    group: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TargetAssigned:
    """The partitions that a member is to have in the end."""

    group: str
    member_id: str
    partitions: frozenset[TopicIdPartition]


@dataclass(frozen=True, slots=True)
class MemberAssigned:
    """The partitions that a member has, each with its assignment epoch (KIP-1251).

    :param epoch: the member's epoch; -2 for a static member that has left for a while.
    :param previous_epoch: the epoch before, with which the member comes if it missed the last answer.
    :param revoking: the partitions that the member has to give up.
    """

    group: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    revoking: Mapping[TopicIdPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartForgotten:
    """The record of one type about a group, or about one of its members, is void: a tombstone."""

    type: RecordType
    group: str
    member_id: str = ""


ConsumerGroupFact = (
    ConsumerGroupRecorded
    | MemberSubscribed
    | TargetEpochRecorded
    | TargetAssigned
    | MemberAssigned
    | ConsumerGroupPartForgotten
)


def is_consumer_group_key(key: bytes) -> bool:
    """True if ``key`` begins a record of this module."""
    return len(key) >= SHORT.size and SHORT.unpack_from(key)[0] in _TYPES


def encode_fact(fact: ConsumerGroupFact) -> tuple[bytes, bytes | None]:
    """The key and the value of the record that stores ``fact``; a tombstone has no value."""
    if isinstance(fact, ConsumerGroupPartForgotten):
        return _key(fact.type, fact.group, fact.member_id), None
    if isinstance(fact, ConsumerGroupRecorded):
        tag = b"\x01" + bytes([_HASH_TAG, LONG.size]) + LONG.pack(fact.metadata_hash)
        return _key(RecordType.GROUP, fact.group), _value(INT.pack(fact.epoch), end=tag)
    if isinstance(fact, TargetEpochRecorded):
        return _key(RecordType.TARGET_EPOCH, fact.group), _value(INT.pack(fact.epoch))
    if isinstance(fact, TargetAssigned):
        return _key(RecordType.TARGET, fact.group, fact.member_id), _value(encode_partitions(fact.partitions))
    if isinstance(fact, MemberAssigned):
        value = _value(
            INT.pack(fact.epoch),
            INT.pack(fact.previous_epoch),
            bytes([fact.state]),
            encode_partitions(fact.assigned, fact.assigned),
            encode_partitions(fact.revoking, fact.revoking),
        )
        return _key(RecordType.CURRENT, fact.group, fact.member_id), value
    value = _value(
        *map(encode_compact, (fact.instance_id, fact.rack_id, fact.client_id, fact.client_host)),
        encode_unsigned_varint(len(fact.topics) + 1),
        *map(encode_compact, (*fact.topics, fact.pattern)),
        INT.pack(fact.rebalance_timeout_ms),
        encode_compact(fact.assignor),
        end=NO_TAGGED_FIELDS if fact.classic is None else _encode_classic(fact.classic),
    )
    return _key(RecordType.MEMBER, fact.group, fact.member_id), value


def _encode_classic(classic: ClassicMembership) -> bytes:
    """The one tagged field of a member."""
    parts = [_PRESENT, INT.pack(classic.session_timeout_ms), encode_unsigned_varint(len(classic.protocols) + 1)]
    for name, metadata in classic.protocols:
        parts += encode_compact(name), encode_compact(metadata), NO_TAGGED_FIELDS
    struct_bytes = b"".join([*parts, NO_TAGGED_FIELDS])
    return b"\x01" + bytes([_CLASSIC_TAG]) + encode_unsigned_varint(len(struct_bytes)) + struct_bytes


def decode_fact(key: bytes, value: bytes | None) -> ConsumerGroupFact:
    """The fact that a record stores.

    :raises ValueError: if the record is of a type, version or form that this release does not know.
    """
    try:
        if not is_consumer_group_key(key):
            raise LaterReleaseError("key of an unknown type")
        kind = RecordType(SHORT.unpack_from(key)[0])
        group, position = decode_string(key, SHORT.size)
        member_id, position = decode_string(key, position) if kind in _ABOUT_MEMBERS else ("", position)
        if position != len(key):
            raise ValueError("consumer group key of another form")
        if value is None:
            return ConsumerGroupPartForgotten(kind, group, member_id)
        version = SHORT.unpack_from(value)[0]
        if version != _VALUE_VERSION:
            raise version_error("consumer group value", version, _VALUE_VERSION)
        fact, position = _DECODERS[kind](group, member_id, value)
    except (struct.error, IndexError) as error:
        raise ValueError(f"consumer group record cut short: {error}") from error
    if position != len(value):
        raise ValueError("consumer group value of another form")
    return fact


def _key(kind: RecordType, group: str, member_id: str = "") -> bytes:
    member = encode_string(member_id) if kind in _ABOUT_MEMBERS else b""
    return SHORT.pack(kind) + encode_string(group) + member


def _value(*parts: bytes, end: bytes = NO_TAGGED_FIELDS) -> bytes:
    return b"".join((SHORT.pack(_VALUE_VERSION), *parts, end))


def _decode_group(group: str, _: str, value: bytes) -> tuple[ConsumerGroupFact, int]:
    tags, end = decode_tagged_fields(value, SHORT.size + INT.size)
    metadata_hash = LONG.unpack(tags[_HASH_TAG])[0] if _HASH_TAG in tags else 0
    return ConsumerGroupRecorded(group, INT.unpack_from(value, SHORT.size)[0], metadata_hash), end


def _decode_target_epoch(group: str, member_id: str, value: bytes) -> tuple[ConsumerGroupFact, int]:
    _, end = decode_tagged_fields(value, SHORT.size + INT.size)
    return TargetEpochRecorded(group, INT.unpack_from(value, SHORT.size)[0]), end


def _decode_target(group: str, member_id: str, value: bytes) -> tuple[ConsumerGroupFact, int]:
    partitions, position = decode_partitions(value, SHORT.size)
    _, end = decode_tagged_fields(value, position)
    return TargetAssigned(group, member_id, frozenset(partitions)), end


def _decode_current(group: str, member_id: str, value: bytes) -> tuple[ConsumerGroupFact, int]:
    epoch = INT.unpack_from(value, SHORT.size)[0]
    previous_epoch = INT.unpack_from(value, SHORT.size + INT.size)[0]
    position = SHORT.size + 2 * INT.size
    state = MemberState(value[position])
    assigned, position = decode_partitions(value, position + 1)
    revoking, position = decode_partitions(value, position)
    _, end = decode_tagged_fields(value, position)
    return MemberAssigned(group, member_id, epoch, previous_epoch, state, assigned, revoking), end


def _decode_member(group: str, member_id: str, value: bytes) -> tuple[ConsumerGroupFact, int]:
    position, texts = SHORT.size, []
    for _ in range(4):
        text, position = _text(value, position)
        texts.append(text)
    instance_id, rack_id, client_id, client_host = texts
    count, position = decode_unsigned_varint(value, position)
    topics = []
    for _ in range(count - 1):
        topic, position = _text(value, position)
        topics.append(topic or "")
    pattern, position = _text(value, position)
    rebalance_timeout_ms = INT.unpack_from(value, position)[0]
    assignor, position = _text(value, position + INT.size)
    tags, end = decode_tagged_fields(value, position)
    fact = MemberSubscribed(
        group,
        member_id,
        instance_id,
        rack_id,
        client_id or "",
        client_host or "",
        tuple(topics),
        pattern,
        rebalance_timeout_ms,
        assignor,
        _decode_classic(tags[_CLASSIC_TAG]) if _CLASSIC_TAG in tags else None,
    )
    return fact, end


def _decode_classic(value: bytes) -> ClassicMembership | None:
    if value[: len(_PRESENT)] != _PRESENT:
        return None
    session_timeout_ms = INT.unpack_from(value, len(_PRESENT))[0]
    count, position = decode_unsigned_varint(value, len(_PRESENT) + INT.size)
    protocols = []
    for _ in range(count - 1):
        name, position = _text(value, position)
        metadata, position = decode_compact(value, position)
        _, position = decode_tagged_fields(value, position)
        protocols.append((name or "", metadata or b""))
    _, end = decode_tagged_fields(value, position)
    if end != len(value):
        raise ValueError("classic member of another form")
    return ClassicMembership(session_timeout_ms, tuple(protocols))


def _text(value: bytes, position: int) -> tuple[str | None, int]:
    data, end = decode_compact(value, position)
    return None if data is None else data.decode(), end


_DECODERS: Mapping[RecordType, Callable[[str, str, bytes], tuple[ConsumerGroupFact, int]]] = {
    RecordType.GROUP: _decode_group,
    RecordType.MEMBER: _decode_member,
    RecordType.TARGET_EPOCH: _decode_target_epoch,
    RecordType.TARGET: _decode_target,
    RecordType.CURRENT: _decode_current,
}
