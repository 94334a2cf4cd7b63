"""Requests for diagnosis: how brokers are configured, and how far consumers of a partition can read.

``dualwrite doctor`` and ``dualwrite transactions describe`` use them. A dual write asks for nothing but the log
directories, by which it recognises a cluster.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.admin.offsets import listed_offsets
from dualwrite.client.protocol.requests import LATEST, describe_configs, describe_log_dirs
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.ids import TopicPartition


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
            settings = {}
            for node, endpoint in sorted(self._cluster.nodes(deadline).items()):
                call = describe_configs(node, names)
                (result,) = self._cluster.ask(endpoint, call, deadline).results
                raise_for(call.api_key, call.operation, result.error_code)
                settings[node] = {entry.name: entry.value for entry in result.configs if entry.name in names}
            return settings

        return self._cluster.persist(attempt)

    def log_directories(self) -> list["LogDirectory"]:
        """DescribeLogDirs at every broker: their log directories.

        :raises KafkaRefusedError: CLUSTER_AUTHORIZATION_FAILED, if the cluster's DESCRIBE operation is not granted.
        """

        def attempt(deadline: float) -> list[LogDirectory]:
            directories = []
            for node, endpoint in sorted(self._cluster.nodes(deadline).items()):
                call = describe_log_dirs(node)
                answer = self._cluster.ask(endpoint, call, deadline)
                raise_for(call.api_key, call.operation, answer.error_code)
                for entry in answer.results:
                    raise_for(call.api_key, call.operation, entry.error_code)
                    directories.append(LogDirectory(endpoint.host, str(entry.log_dir)))
            return directories

        return self._cluster.persist(attempt)

    def partition_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionEnds]:
        """ListOffsets at the leaders, once for each isolation level. Partitions of deleted topics are left out.

        :raises KafkaRefusedError: if a topic may not be described.
        """
        distinct = sorted(set(partitions))
        stable = listed_offsets(self._cluster, distinct, LATEST, committed=True, deleted_too=True)
        high = listed_offsets(self._cluster, distinct, LATEST, deleted_too=True)
        known = [partition for partition in distinct if partition in stable and partition in high]
        return {partition: PartitionEnds(stable[partition], high[partition]) for partition in known}
