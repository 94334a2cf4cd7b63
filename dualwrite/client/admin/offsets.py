"""Offsets of partitions by ListOffsets: where their logs begin and end, and where a timestamp is."""

from collections.abc import Iterable, Mapping

from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.protocol.requests import list_offsets
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import TopicPartition


def listed_offsets(
    cluster: ClusterClient,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    *,
    committed: bool = False,
    deleted_too: bool = False,
) -> dict[TopicPartition, int]:
    """The answers of the leaders to ListOffsets.

    :param timestamp: EARLIEST or LATEST of ``protocol.requests``; or milliseconds since the epoch, for the first record
        that is not older: -1 if there is none.
    :param committed: True for the end that a read_committed consumer sees.
    :param deleted_too: leave out the partitions that do not exist.
    :raises KafkaRefusedError: if a topic does not exist, or may not be described.
    :raises KafkaUnavailableError: if a partition has no leader until the deadline.
    """
    distinct = sorted(set(partitions))

    def attempt(deadline: float) -> dict[TopicPartition, int]:
        offsets = {}
        leaders = cluster.leaders(distinct, deadline, deleted_too=deleted_too)
        for endpoint, group in by_leader(leaders).items():
            call = list_offsets(group, timestamp, committed=committed)
            for topic in cluster.ask(endpoint, call, deadline).topics:
                for entry in topic.partitions:
                    partition = TopicPartition(topic.name, entry.partition_index)
                    raise_for(call.api_key, f"{call.operation} of {partition}", entry.error_code)
                    offsets[partition] = int(entry.offset)
        missing = set(leaders) - set(offsets)
        if missing:
            raise KafkaUnavailableError(f"ListOffsets: no answer about {', '.join(map(str, sorted(missing)))}")
        return offsets

    return cluster.persist(attempt) if distinct else {}


def by_leader(leaders: Mapping[TopicPartition, Endpoint]) -> dict[Endpoint, list[TopicPartition]]:
    """Partitions grouped by leader."""
    groups: dict[Endpoint, list[TopicPartition]] = {}
    for partition, endpoint in leaders.items():
        groups.setdefault(endpoint, []).append(partition)
    return groups
