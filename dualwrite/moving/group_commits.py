"""Commits offsets of groups in the open transaction of a librdkafka producer.

confluent-kafka adds a zero byte to the metadata of every offset that it commits. Kafka Streams and others keep data of
their own in it, and could not read it any more. So the mover sends AddOffsetsToTxn and TxnOffsetCommit itself, with the
identity that the transaction coordinator tells. Between the question and these requests the producer must write a
record: that fails if the identity is already the one of another mover, and later ones have a newer epoch.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from dualwrite.admin.connecting import connected
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.protocol.requests import (
    CommittedOffset,
    GroupMember,
    VersionedRequest,
    add_offsets_to_txn,
    code_in,
    txn_offset_commit,
)
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.moving.ports import GroupOffset
from dualwrite.wire.apis import ApiKey, Message


def identity_of(kafka: Mapping[str, Any], transactional_id: str) -> ProducerIdentity:
    """The identity of the producer that was initialized last with ``transactional_id``.

    :raises KafkaUnavailableError: if the cluster does not answer, or does not know the id any more.
    """
    with closing(ControlPlane(kafka)) as control:
        described = control.describe_transaction(transactional_id)
    if described is None:
        raise KafkaUnavailableError(f"the transaction coordinator does not know {transactional_id!r} any more")
    return described.producer


def commit_in_transaction(
    kafka: Mapping[str, Any],
    transactional_id: str,
    producer: ProducerIdentity,
    groups: Mapping[str, Mapping[TopicPartition, GroupOffset]],
) -> None:
    """Add the offsets of ``groups``, none of which may have members, to the transaction that ``producer`` has open.

    :raises FencedError: if another producer has the transactional id.
    :raises KafkaRefusedError: if a group has members, or a right is not granted.
    :raises KafkaUnavailableError: if the cluster does not answer.
    """
    with connected(kafka) as cluster:
        for group, offsets in groups.items():
            joining = add_offsets_to_txn(transactional_id, producer, group)
            _require_success(joining, cluster.ask_coordinator(transactional_id, joining))
            committed = [CommittedOffset(*place, offset, -1, metadata) for place, (offset, metadata) in offsets.items()]
            call = txn_offset_commit(transactional_id, producer, committed, GroupMember(group), joins=False)
            answer = cluster.ask_group_coordinator(group, call, _code_in)
            _require_success(call, answer)


def _code_in(answer: Message) -> int:
    return code_in(ApiKey.TXN_OFFSET_COMMIT, answer)[0]


def _require_success(call: VersionedRequest, answer: Message) -> None:
    code, place = code_in(call.api_key, answer)
    raise_for(call.api_key, f"{call.operation}{f', {place}' if place else ''}", code)
