"""A connection to a cluster for the length of a block, and the partitions that the cluster has."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from dualwrite.admin.arguments import require_seconds, require_text
from dualwrite.client.admin.cluster_client import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT
from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.admin.offsets import listed_offsets
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.protocol.requests import EARLIEST, LATEST
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition, is_legal_topic
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode


@contextmanager
def connected(kafka: Mapping[str, Any], timeout: float = DEFAULT_TIMEOUT) -> Iterator[ClusterClient]:
    """The brokers of the cluster for the length of the ``with`` block. ``timeout`` is in seconds.

    :raises InputError: if ``timeout`` is no number.
    """
    require_seconds(timeout)
    cluster = ClusterClient(ClientSettings.from_config(kafka), timeout=float(timeout))
    try:
        yield cluster
    finally:
        cluster.close()


def topic_metadata(cluster: ClusterClient, topic: str) -> Message:
    """The cluster's metadata of ``topic``.

    :raises InputError: if it is not a topic's name.
    :raises KafkaRefusedError: if there is no such topic, or it may not be described.
    """
    require_text(topic=topic)
    if not is_legal_topic(topic):
        raise InputError(f"{topic!r} is not a topic's name")
    (entry,) = cluster.persist(lambda deadline: cluster.described_topics([topic], deadline))
    missing = entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise_for(
        ApiKey.METADATA, f"the cluster has no topic {topic!r}" if missing else f"topic {topic!r}", entry.error_code
    )
    return entry


def partitions_of(cluster: ClusterClient, topic: str, chosen: Collection[int] | None = None) -> list[TopicPartition]:
    """The partitions of ``topic``.

    :param chosen: only these; None for all.
    :raises InputError: if one of ``chosen`` does not exist.
    :raises KafkaRefusedError: as :func:`topic_metadata`.
    """
    known = sorted(entry.partition_index for entry in topic_metadata(cluster, topic).partitions)
    for index in chosen or ():
        if index not in known:
            raise InputError(f"topic {topic!r} has no partition {index}; its partitions are 0 to {known[-1]}")
    return [TopicPartition(topic, index) for index in known if chosen is None or index in chosen]


class LogEnds(NamedTuple):
    """Where logs begin and end, by partition; without those of partitions that do not exist or have no leader."""

    earliest: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]
    high: Mapping[TopicPartition, int]


def log_ends(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> LogEnds:
    """The beginnings, the last stable offsets and the high watermarks of ``partitions``, asked for in this order."""
    led = with_leader(cluster, partitions)
    return LogEnds(
        listed_offsets(cluster, led, EARLIEST, deleted_too=True),
        listed_offsets(cluster, led, LATEST, committed=True, deleted_too=True),
        listed_offsets(cluster, led, LATEST, deleted_too=True),
    )


def with_leader(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those of ``partitions`` that exist and have a leader now: others answer nothing."""
    asked = set(partitions)
    topics = sorted({partition.topic for partition in asked})

    def attempt(deadline: float) -> list[TopicPartition]:
        entries = cluster.described_topics(topics, deadline)
        nodes = cluster.nodes(deadline)
        led = {
            TopicPartition(topic.name, entry.partition_index)
            for topic in entries
            for entry in topic.partitions
            if entry.leader_id in nodes
        }
        return sorted(asked & led)

    return cluster.persist(attempt) if asked else []
