"""Offsets of a place in partitions: where the log begins or ends, at an offset, or at a time."""

from collections.abc import Collection
from datetime import datetime, timedelta, timezone

from dualwrite.admin.views import Start
from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.admin.offsets import listed_offsets
from dualwrite.client.protocol.requests import EARLIEST, LATEST
from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition

_EPOCH, _MILLISECOND = datetime.fromtimestamp(0, timezone.utc), timedelta(milliseconds=1)


def start_offsets(
    cluster: ClusterClient, partitions: Collection[TopicPartition], start: Start, *, committed: bool
) -> dict[TopicPartition, int]:
    """The offset of ``start`` in each of ``partitions``.

    :param committed: True for the last stable offset as the end; False for the high watermark.
    :raises InputError: if ``start`` is a time without a zone, or before 1970, or a negative offset, or another value.
    :raises KafkaRefusedError: if a topic may not be described.
    """
    if start == "beginning":
        return listed_offsets(cluster, partitions, EARLIEST)
    if isinstance(start, datetime):
        if start.tzinfo is None or start.timestamp() < 0:
            raise InputError(f"{start.isoformat()}: use a time since 1970 with its zone")
        placed = listed_offsets(cluster, partitions, -((_EPOCH - start) // _MILLISECOND))  # rounded up, and exactly
    elif isinstance(start, int) and not isinstance(start, bool):
        if start < 0:
            raise InputError(f"offset {start}: use 0 or more")
        first = listed_offsets(cluster, partitions, EARLIEST)
        placed = {partition: max(start, first[partition]) for partition in partitions}
    elif start == "end":
        placed = {}
    else:
        raise InputError(f"{start!r}: use beginning, end, an offset or a time")
    ends = listed_offsets(cluster, partitions, LATEST, committed=committed)
    return {partition: min(offset, ends[partition]) for partition, offset in _known(placed, ends).items()}


def _known(placed: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """``placed``, with the end where there is no such record."""
    return {partition: placed[partition] if placed.get(partition, -1) >= 0 else end for partition, end in ends.items()}
