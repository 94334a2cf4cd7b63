"""The common part of OffsetCommit and TxnOffsetCommit, which commit a group's positions.

The two differ in the committer and in their versions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dualwrite.broker.access.needs import Need
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.offsets import CommittedPosition
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import Message
from dualwrite.wire.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class CommittingVersions:
    """The versions of one API that introduced a feature.

    :param topic_ids: the first version that names topics by id.
    :param unknown_groups: the first version with GROUP_ID_NOT_FOUND.
    :param stale_epochs: the first version with STALE_MEMBER_EPOCH.
    """

    topic_ids: int
    unknown_groups: int
    stale_epochs: int

    def error(self, error: ErrorCode, version: int) -> ErrorCode:
        """``error``, or the error that stands for it in ``version``."""
        if error is ErrorCode.GROUP_ID_NOT_FOUND and version < self.unknown_groups:
            return ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.STALE_MEMBER_EPOCH and version < self.stale_epochs:
            return ErrorCode.ILLEGAL_GENERATION
        return error


class Commit:
    """The topics of one request, resolved."""

    def __init__(self, request: Message, version: int, versions: CommittingVersions, broker: BrokerContext) -> None:
        by_id = version >= versions.topic_ids
        names = (broker.cluster.topic_name(topic.topic_id) if by_id else topic.name for topic in request.topics)
        self._topics: list[tuple[str | None, Message]] = list(zip(names, request.topics, strict=True))
        self._broker = broker
        self._refusals: list[Need | None] = [None] * len(self._topics)
        self._error: Callable[[ErrorCode], ErrorCode] = lambda error: versions.error(error, version)

    def refuse(self, lacking: Need | None, read: Need) -> None:
        """Refuse all topics if the client lacks the right ``lacking``, else those on which it lacks ``read``."""
        self._refusals = [
            lacking or (read if name is not None and not self._broker.may(read, name) else None)
            for name, _ in self._topics
        ]

    def positions(self) -> dict[TopicPartition, CommittedPosition]:
        """The positions in the topics that exist and are not refused. Missing metadata become empty metadata."""
        return {
            TopicPartition(name, entry.partition_index): CommittedPosition(
                entry.committed_offset, entry.committed_leader_epoch, entry.committed_metadata or ""
            )
            for (name, topic), refusal in zip(self._topics, self._refusals, strict=True)
            if name is not None and refusal is None
            for entry in topic.partitions
        }

    def answer(self, response: Any, partition_response: Any, errors: Mapping[TopicPartition, ErrorCode]) -> list[Any]:
        """The answer for each topic, in the API's message classes. ``errors`` has the partitions of existing topics."""

        def code(name: str | None, refusal: Need | None, index: int) -> ErrorCode:
            if refusal is not None:
                return refusal.error
            return ErrorCode.UNKNOWN_TOPIC_ID if name is None else self._error(errors[TopicPartition(name, index)])

        return [
            response(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    partition_response(
                        partition_index=entry.partition_index, error_code=code(name, refusal, entry.partition_index)
                    )
                    for entry in topic.partitions
                ],
            )
            for (name, topic), refusal in zip(self._topics, self._refusals, strict=True)
        ]
