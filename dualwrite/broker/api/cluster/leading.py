"""The fields that say who leads a partition: this broker, its only replica."""

from typing import Any

from dualwrite.broker.runtime.partition import LEADER_EPOCH
from dualwrite.wire.error_codes import ErrorCode


def leading(partition: int, node_id: int) -> dict[str, Any]:
    """The fields of ``partition`` that Metadata and DescribeTopicPartitions have in common.

    :param node_id: the id of the one node.
    """
    return {
        "error_code": ErrorCode.NONE,
        "partition_index": partition,
        "leader_id": node_id,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": [node_id],
        "isr_nodes": [node_id],
        "offline_replicas": [],
    }
