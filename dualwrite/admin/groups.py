"""Consumer groups: list, describe and delete them, and move their offsets."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dualwrite.admin.arguments import require_indexes, require_text
from dualwrite.admin.connecting import DEFAULT_TIMEOUT, connected, log_ends, partitions_of
from dualwrite.admin.group_members import ask_about, described_group, require_success
from dualwrite.admin.records import count_unread
from dualwrite.admin.starts import start_offsets
from dualwrite.admin.views import GroupDetails, GroupListing, MemberDetails, OffsetChange, PartitionLag, Start
from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.protocol.group_requests import commit_offsets, committed_offsets, group_deletion, group_listing
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import InputError, KafkaRefusedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

_NO_OFFSET = -1


def list_groups(kafka: Mapping[str, Any], *, timeout: float = DEFAULT_TIMEOUT) -> list[GroupListing]:
    """The groups that this client may describe, by name. Each broker lists those that it coordinates."""
    with connected(kafka, timeout) as cluster:
        return _listed(cluster)


def describe_group(
    kafka: Mapping[str, Any], group_id: str, *, counts: bool = True, timeout: float = DEFAULT_TIMEOUT
) -> GroupDetails:
    """A group with its members, and its lag in each partition that it has committed or was assigned.

    The lag is measured to the last stable offset, behind which no read_committed consumer reads. Offsets are not
    records: markers and aborted records have offsets, too. So a group that has read everything may lag by some
    offsets, and ``unread`` says how many records are really left.

    :param counts: True to read the log from the committed offsets on (at most 1 MiB of each partition), to count
        ``unread``.
    :raises KafkaRefusedError: GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED.
    """
    require_text(group_id=group_id)
    with connected(kafka, timeout) as cluster:
        group = described_group(cluster, group_id)
        lags = _lags(cluster, group_id, group.members or (), counts)
    return GroupDetails(group_id, group.state, group.kind, group.assignor, group.members, lags)


def delete_group(kafka: Mapping[str, Any], group_id: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Delete a group with its offsets. Its consumers would begin again by ``auto.offset.reset``.

    :raises KafkaRefusedError: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP if it has members.
    :raises AnswerLostError: if the coordinator did not answer: the group may have been deleted.
    """
    require_text(group_id=group_id)
    with connected(kafka, timeout) as cluster:
        ask_about(cluster, group_id, group_deletion(group_id), lambda answer: answer.results[0].error_code)


def reset_offsets(
    kafka: Mapping[str, Any],
    group_id: str,
    topic: str,
    start: Start,
    *,
    partitions: Collection[int] | None = None,
    dry_run: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
) -> list[OffsetChange]:
    """Move the group's committed offsets in ``topic`` to ``start``; the end is the last stable offset. The group need
    not exist before, and must have no members.

    :param partitions: only these; None for all.
    :param dry_run: True to change nothing, and only return what would change.
    :raises InputError: if ``topic`` is not a topic's name, or a partition does not exist; if the group has members, or
        its id is empty (Kafka would make such a group).
    :raises KafkaRefusedError: if there is no such topic, or READ on the group or the topic is not granted.
    """
    _require_group(group_id)
    require_text(topic=topic)
    require_indexes(partitions)
    with connected(kafka, timeout) as cluster:
        chosen = partitions_of(cluster, topic, partitions)
        after = start_offsets(cluster, chosen, start, committed=True)
        before = _offsets(_committed(cluster, group_id, stable=False))
        changes = [OffsetChange(partition, before.get(partition), after[partition]) for partition in chosen]
        if not dry_run:
            _move(cluster, group_id, changes)
        return changes


def apply_reset(
    kafka: Mapping[str, Any], group_id: str, changes: Collection[OffsetChange], *, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Make ``changes``, which ``reset_offsets(…, dry_run=True)`` has returned. Another call with "end" would also skip
    what was written since the person has seen them.

    :raises InputError: if the group has members, or its id is empty.
    :raises KafkaRefusedError: as :func:`reset_offsets`.
    """
    _require_group(group_id)
    with connected(kafka, timeout) as cluster:
        _move(cluster, group_id, changes)


def stable_offsets(
    kafka: Mapping[str, Any],
    group_ids: Iterable[str],
    partitions: Collection[TopicPartition],
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[str, dict[TopicPartition, CommittedOffset | None]]:
    """The committed offsets of each of ``group_ids`` in ``partitions``. None stands for an offset that an open
    transaction may replace; partitions without any are left out.

    :raises KafkaRefusedError: if DESCRIBE on a group, or on one of the topics, is not granted.
    """
    if not partitions:
        return {group_id: {} for group_id in group_ids}
    with connected(kafka, timeout) as cluster:
        return {group_id: _committed(cluster, group_id, partitions, stable=True) for group_id in group_ids}


def _require_group(group_id: object) -> None:
    require_text(group_id=group_id)
    if not group_id:
        raise InputError("the group's id is empty: name the group")


def _move(cluster: ClusterClient, group_id: str, changes: Iterable[OffsetChange]) -> None:
    call = commit_offsets(group_id, [CommittedOffset(*change.partition, change.after) for change in changes])
    code = _first_code(cluster.ask_group_coordinator(group_id, call, _first_code))
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        raise InputError(f"group {group_id!r} has members: stop its consumers first")
    require_success(ApiKey.OFFSET_COMMIT, group_id, code)


def _listed(cluster: ClusterClient) -> list[GroupListing]:
    def attempt(deadline: float) -> list[GroupListing]:
        call, groups = group_listing(), []
        for endpoint in cluster.brokers(deadline):
            answer = cluster.ask(endpoint, call, deadline)
            raise_for(call.api_key, f"{call.operation}: broker {endpoint}", answer.error_code)
            groups += [
                GroupListing(entry.group_id, entry.group_state, entry.group_type.lower(), entry.protocol_type)
                for entry in answer.groups
            ]
        return sorted(groups, key=lambda group: group.group_id)

    return cluster.persist(attempt)


def _committed(
    cluster: ClusterClient, group_id: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool
) -> dict[TopicPartition, CommittedOffset | None]:
    """The committed offset of each partition; with ``stable`` None for one with an offset in an open transaction."""
    call = committed_offsets(group_id, partitions, stable=stable)
    offsets: dict[TopicPartition, CommittedOffset | None] = {}
    for topic in ask_about(cluster, group_id, call, lambda answer: answer.error_code).topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                offsets[partition] = None
                continue
            require_success(ApiKey.OFFSET_FETCH, group_id, entry.error_code)
            if entry.committed_offset != _NO_OFFSET:
                offsets[partition] = CommittedOffset(
                    *partition, entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return offsets


def _offsets(committed: Mapping[TopicPartition, CommittedOffset | None]) -> dict[TopicPartition, int]:
    return {partition: entry.offset for partition, entry in committed.items() if entry is not None}


def _lags(
    cluster: ClusterClient, group_id: str, members: Iterable[MemberDetails], counts: bool
) -> tuple[PartitionLag, ...]:
    owners = {partition: member.member_id for member in members for partition in member.partitions}
    stable = _committed(cluster, group_id, stable=True)
    committed = _offsets(_committed(cluster, group_id, stable=False))
    partitions = sorted(owners.keys() | committed.keys())
    ends = log_ends(cluster, partitions)
    lags = []
    for partition in partitions:
        lag = PartitionLag(
            partition=partition,
            committed=committed.get(partition),
            is_pending=partition in stable and stable[partition] is None,
            earliest=ends.earliest.get(partition),
            last_stable_offset=ends.stable.get(partition),
            high_watermark=ends.high.get(partition),
            unread=None,
            member_id=owners.get(partition),
        )
        lags.append(replace(lag, unread=_unread(cluster, lag)) if counts else lag)
    return tuple(lags)


def _unread(cluster: ClusterClient, lag: PartitionLag) -> int | None:
    """How many records are left before the last stable offset; None if that is not known."""
    if not lag.lag or lag.committed is None or lag.last_stable_offset is None:
        return lag.lag
    try:
        begin = max(lag.committed, lag.earliest or 0)
        return count_unread(cluster, lag.partition, begin, lag.last_stable_offset)
    except KafkaRefusedError as error:
        if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        return None


def _first_code(answer: Message) -> int:
    """The first error of an answer to OffsetCommit; 0 if there is none."""
    codes = (entry.error_code for topic in answer.topics for entry in topic.partitions)
    return next((int(code) for code in codes if code), int(ErrorCode.NONE))
