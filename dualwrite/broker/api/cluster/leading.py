"""The fields that say who leads a partition: this broker, its only replica."""

from typing import Any

from dualwrite.broker.api.context import NODE_ID
from dualwrite.broker.runtime.partition import LEADER_EPOCH
from dualwrite.wire.error_codes import ErrorCode


def leading(partition: int) -> dict[str, Any]:
    """The fields of ``partition`` that Metadata and DescribeTopicPartitions have in common."""
    return {
        "error_code": ErrorCode.NONE,
        "partition_index": partition,
        "leader_id": NODE_ID,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": [NODE_ID],
        "isr_nodes": [NODE_ID],
        "offline_replicas": [],
    }
