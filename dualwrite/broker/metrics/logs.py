"""The metrics of the logs and of the disk."""

from collections import Counter

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.metrics.metric import BrokerMetric, Value, metrics_into

METRICS: list[BrokerMetric] = []
_metric = metrics_into(METRICS)


@_metric("gauge")
def partitions(broker: BrokerContext) -> Value:
    """Partitions of all topics, including the broker's own topics."""
    return sum(1 for _ in broker.cluster.partitions())


@_metric("gauge", "topic")
def topic_bytes(broker: BrokerContext) -> Value:
    """Bytes of a topic's segments on disk, without indexes."""
    sizes: Counter[str] = Counter()
    for partition in broker.cluster.partitions():
        sizes[partition.name.topic] += partition.log.size_bytes
    return [((topic,), size) for topic, size in sizes.items()]


@_metric("gauge")
def volume_bytes(broker: BrokerContext) -> Value:
    """Size of the volume with the data directory, in bytes (KIP-827)."""
    return broker.cluster.volume()[0]


@_metric("gauge")
def volume_free_bytes(broker: BrokerContext) -> Value:
    """Free space of the volume with the data directory, in bytes (KIP-827)."""
    return broker.cluster.volume()[1]


@_metric("gauge")
def disk_writable(broker: BrokerContext) -> Value:
    """1 if the data directory takes a block within 5 seconds; 0 if not, because the disk is full, read-only, broken or
    hangs. Each scrape tries, as ``/readyz`` does."""
    return int(broker.meters.is_disk_writable)


@_metric("histogram")
def fsync_round_seconds(broker: BrokerContext) -> Value:
    """Seconds for each round of fsyncs, including the wait for a thread. With durability=os only flush.messages and
    flush.ms make rounds."""
    return broker.meters.fsyncs
