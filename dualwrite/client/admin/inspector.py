"""Requests for diagnosis only: how brokers are configured, and how far consumers of a partition can read.

``dualwrite doctor`` and ``dualwrite transactions describe`` use them; a dual write never does.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dualwrite.client.admin.cluster_client import Call, raise_if_transient
from dualwrite.client.admin.control_plane import ControlPlane, by_leader
from dualwrite.client.terms.error_classes import error_of_call
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import APIS, ApiKey, Message

_BROKER = 4
"""Kafka's ConfigResource.Type of a broker."""
_LATEST = -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """Where consumers of a partition must stop: the next offset that they would read.

    :param last_stable_offset: for read_committed: the first record of an open transaction, if there is one.
    :param high_watermark: for read_uncommitted.
    """

    last_stable_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A log directory of a broker.

    :param host: the broker's advertised host.
    :param path: the path on the broker's machine.
    """

    host: str
    path: str


class Inspector(ControlPlane):
    """A control plane with requests for diagnosis. Raises the same errors as ControlPlane."""

    def broker_settings(self, names: Collection[str]) -> dict[int, dict[str, str | None]]:
        """DescribeConfigs at every broker: the values of those of ``names`` that it knows and shows, by node id.

        :raises KafkaRefusedError: CLUSTER_AUTHORIZATION_FAILED, if the DESCRIBE_CONFIGS operation is not granted.
        """

        def attempt(deadline: float) -> dict[int, dict[str, str | None]]:
            found = {}
            for node, endpoint in sorted(self._cluster.nodes(deadline).items()):
                call = Call(ApiKey.DESCRIBE_CONFIGS, _ask_settings(node, names), floor=1)
                (result,) = self._cluster.ask(endpoint, call, deadline).results
                what = f"DescribeConfigs of broker {node}"
                raise_if_transient(what, result.error_code)
                if result.error_code:
                    raise error_of_call(what, result.error_code)
                found[node] = {entry.name: entry.value for entry in result.configs if entry.name in names}
            return found

        return self._cluster.persist(attempt)

    def log_directories(self) -> list["LogDirectory"]:
        """DescribeLogDirs at every broker: their log directories.

        :raises KafkaRefusedError: CLUSTER_AUTHORIZATION_FAILED, if the cluster's DESCRIBE operation is not granted.
        """

        def attempt(deadline: float) -> list[LogDirectory]:
            found = []
            for node, endpoint in sorted(self._cluster.nodes(deadline).items()):
                message = APIS[ApiKey.DESCRIBE_LOG_DIRS].request(topics=[])
                answer = self._cluster.ask(endpoint, Call(ApiKey.DESCRIBE_LOG_DIRS, message, floor=1), deadline)
                for entry in answer.results:
                    what = f"DescribeLogDirs of broker {node}"
                    raise_if_transient(what, entry.error_code)
                    if entry.error_code:
                        raise error_of_call(what, entry.error_code)
                    found.append(LogDirectory(endpoint.host, str(entry.log_dir)))
            return found

        return self._cluster.persist(attempt)

    def partition_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionEnds]:
        """ListOffsets at the leaders, once for each isolation level; leaves out partitions of deleted topics.

        :raises KafkaRefusedError: if a topic may not be described.
        """
        wanted = sorted(set(partitions))
        stable, high = (self._latest(wanted, level) for level in (_READ_COMMITTED, _READ_UNCOMMITTED))
        known = [partition for partition in wanted if partition in stable and partition in high]
        return {partition: PartitionEnds(stable[partition], high[partition]) for partition in known}

    def _latest(self, wanted: Collection[TopicPartition], isolation_level: int) -> dict[TopicPartition, int]:
        def attempt(deadline: float) -> dict[TopicPartition, int]:
            found = {}
            leaders = self._cluster.leaders(wanted, deadline, deleted_too=True)
            for endpoint, group in by_leader(leaders).items():
                # v10 and later add nothing that is needed here.
                call = Call(ApiKey.LIST_OFFSETS, _ask_latest(group, isolation_level), floor=2, cap=9)
                for topic in self._cluster.ask(endpoint, call, deadline).topics:
                    for entry in topic.partitions:
                        partition = TopicPartition(topic.name, entry.partition_index)
                        raise_if_transient(f"ListOffsets of {partition}", entry.error_code)
                        if entry.error_code:
                            raise error_of_call(f"ListOffsets of {partition}", entry.error_code)
                        found[partition] = int(entry.offset)
            missing = set(leaders) - set(found)
            if missing:
                raise KafkaUnavailableError(f"ListOffsets: no answer about {', '.join(map(str, sorted(missing)))}")
            return found

        return self._cluster.persist(attempt) if wanted else {}


def _ask_settings(node: int, names: Collection[str]) -> Message:
    request = APIS[ApiKey.DESCRIBE_CONFIGS].request
    resource = request.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(node), configuration_keys=sorted(names)
    )
    return request(resources=[resource], include_synonyms=False, include_documentation=False)


def _ask_latest(partitions: Iterable[TopicPartition], isolation_level: int) -> Message:
    request = APIS[ApiKey.LIST_OFFSETS].request
    topic = request.ListOffsetsTopic
    indexes: dict[str, list[int]] = {}
    for partition in partitions:
        indexes.setdefault(partition.topic, []).append(partition.partition)
    topics = [
        topic(
            name=name,
            partitions=[
                topic.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=_LATEST)
                for index in wanted
            ],
        )
        for name, wanted in indexes.items()
    ]
    return request(replica_id=-1, isolation_level=isolation_level, topics=topics)
